"""An event loop in a thread of its own, for programs without one: scripts, Django, Flask, threads.

The thread starts with the first call and ends with `close`, or with the process. A forked child
starts one of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.errors import Refused
from flowfabric.forking import begin_here_and_in_children, uncut

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers in any thread; each waits for its own."""

    def __init__(self, is_needed: Callable[[asyncio.AbstractEventLoop], bool]) -> None:
        """`is_needed`: whether an event loop must go on for calls to be answered."""
        self._is_needed = is_needed
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        self._starting = uncut(threading.Lock())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Awaitable[T]) -> T:
        """Wait for it. An interrupt (Ctrl-C) of the caller cancels it."""
        here, loop = _loop_here(), self._running_loop()
        if here is not None and (here is loop or self._is_needed(here)):
            _close(work)
            raise Refused(
                "a synchronous call would block the event loop that serves it",
                hint="await the call of the app itself, without `.sync`",
            )
        future = asyncio.run_coroutine_threadsafe(_awaited(work), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread. The next call starts another."""
        with self._starting:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="flowfabric-sync", daemon=True
                )
                self._thread.start()
            return self._loop


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _close(work: object) -> None:
    """A coroutine that is not going to be awaited says so loudly unless it is closed."""
    if asyncio.iscoroutine(work):
        work.close()
