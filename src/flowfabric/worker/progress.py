"""Progress of an attempt, said from wherever its task runs.

In the event loop of the worker it is awaited. In a thread, where a plain function runs, the call
itself hands it to the loop and returns when it is stored. In another event loop, which a plain
function may run, it is awaited there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent import futures

from flowfabric.core.model import Lease
from flowfabric.errors import LeaseLost, StoreUnavailable

# Longer than any store takes: only a loop that is blocked, or that has ended, lets a thread wait.
WAIT_SECONDS = 30.0

Progress = Callable[[Lease, int | None, str | None], Awaitable[None]]
Send = Callable[[Lease, int | None, str | None], Coroutine[object, None, None]]


class Done:
    """What was done already; to await it does nothing."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class LoopProgress:
    """Sends progress in an event loop; by default in the one that this is made in."""

    def __init__(self, send: Send, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._send = send
        self._loop = loop or asyncio.get_running_loop()

    def __call__(self, lease: Lease, pct: int | None, message: str | None) -> Awaitable[None]:
        here = running_loop()
        if here is self._loop:
            return self._send(lease, pct, message)
        if self._loop.is_closed():
            raise LeaseLost("the worker of this attempt has stopped")
        sent = asyncio.run_coroutine_threadsafe(self._send(lease, pct, message), self._loop)
        if here is not None:
            return asyncio.wrap_future(sent)
        _wait(sent)
        return Done()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that this thread runs, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wait(sent: futures.Future[None]) -> None:
    try:
        sent.result(WAIT_SECONDS)
    except futures.CancelledError as error:
        raise LeaseLost("the worker of this attempt is stopping") from error
    except TimeoutError as error:
        if sent.done():
            raise
        sent.cancel()
        raise StoreUnavailable(
            f"progress was not stored within {WAIT_SECONDS:g} s",
            hint="an async task may block the event loop of this worker; check its log",
        ) from error
