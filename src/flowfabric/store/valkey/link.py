"""One connection in one event loop: requests go out as they come, replies are matched in order.

Many callers share it without waiting for each other; what they ask within one turn of the loop
goes out together. A link that is lost stays lost, and whoever waited hears that the outcome is
not known. Nothing here knows what is asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import hiredis

from flowfabric.errors import StoreUnavailable

Cell = str | int | bytes
Reply = None | int | bytes | str | Exception | list["Reply"]
# Its types ask for a tuple of one; it packs any number.
_pack: Callable[[tuple[Cell, ...]], bytes] = getattr(hiredis, "pack_command")  # noqa: B009

_NOTHING = object()


class ReplyError(Exception):
    """What the server answered instead of doing it."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


def pack(*cells: Cell) -> bytes:
    """A request as it is sent; texts are UTF-8."""
    return _pack(cells)


class Link(asyncio.Protocol):
    """`ask` sends a number of packed requests and answers their replies, in order."""

    def __init__(
        self, timeout_seconds: float, on_push: Callable[[list[Reply]], None] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout_seconds
        self._on_push = on_push
        self._reader = hiredis.Reader(
            protocolError=ReplyError, replyError=ReplyError, notEnoughData=_NOTHING
        )
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._waiting: deque[_Asked] = deque()
        self._watching: asyncio.TimerHandle | None = None
        self._lost: StoreUnavailable | None = None
        self.gone = asyncio.Event()

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def ask(self, requests: Sequence[bytes]) -> asyncio.Future[list[Reply]]:
        asked = _Asked(self._loop.create_future(), len(requests), self._loop.time() + self._timeout)
        if self._lost is not None:
            asked.future.set_exception(self._lost)
            return asked.future
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += requests
        self._waiting.append(asked)
        if self._watching is None:
            self._watching = self._loop.call_later(self._timeout, self._watch)
        return asked.future

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops have transports of their own, with the same verbs and no common class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NOTHING:
                self._take(reply)
        except ReplyError as error:
            problem = f"the server does not speak the protocol: {error}"
            self.lose(StoreUnavailable(problem, code="protocol"))

    def _take(self, reply: Reply) -> None:
        if not self._waiting:
            if self._on_push is not None and isinstance(reply, list):
                self._on_push(reply)
            return
        asked = self._waiting[0]
        asked.replies.append(reply)
        if len(asked.replies) == asked.count:
            self._waiting.popleft()
            if not asked.future.done():
                asked.future.set_result(asked.replies)

    def _watch(self) -> None:
        """One timer for all who wait: the first of them has waited longest."""
        self._watching = None
        if not self._waiting:
            return
        left = self._waiting[0].until - self._loop.time()
        if left <= 0:
            self.lose(StoreUnavailable(f"no answer within {self._timeout:g} s"))
        else:
            self._watching = self._loop.call_later(left, self._watch)

    def connection_lost(self, error: Exception | None) -> None:
        lost = StoreUnavailable(f"the connection was lost: {error or 'the server closed it'}")
        lost.__cause__ = error or ConnectionAbortedError("the server closed it")
        self.lose(lost)

    def lose(self, error: StoreUnavailable) -> None:
        """End it; everybody who waits hears of it. Only in the loop that it belongs to."""
        if self._lost is not None:
            return
        self._lost = error
        self.gone.set()
        waiting, self._waiting = self._waiting, deque()
        for asked in waiting:
            if not asked.future.done():
                asked.future.set_exception(error)
        if self._watching is not None:
            self._watching.cancel()
        if self._transport is not None:
            self._transport.abort()


class _Asked:
    """Replies that somebody waits for."""

    __slots__ = ("count", "future", "replies", "until")

    def __init__(self, future: asyncio.Future[list[Reply]], count: int, until: float) -> None:
        self.future = future
        self.count = count
        self.until = until
        self.replies: list[Reply] = []
