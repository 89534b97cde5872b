"""Time that passes only when everybody waits: an event loop without a real clock, and the clocks
that are read in it.

Whatever runs in this loop runs in the same order every time: nothing comes from outside, and a
wait of an hour takes no time at all.
"""

from __future__ import annotations

import asyncio
import selectors

from flowfabric.testing.clock import START_MS


class Deadlock(RuntimeError):
    """Everybody waits for something that nobody will do."""


class _NoWaiting(selectors.SelectSelector):
    """Where the loop would sleep, time moves on instead."""

    now: float = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("everybody waits, and nothing is left that could happen")
        self.now += max(timeout, 0.0)
        return []


class Timeline(asyncio.SelectorEventLoop):
    """An event loop whose time is that of the simulation."""

    def __init__(self) -> None:
        self._skipping = _NoWaiting()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now

    def now_ms(self) -> int:
        return START_MS + int(self._skipping.now * 1000)

    def skip(self, seconds: float) -> None:
        """So much time is over at once, for everybody: as if the machine had slept."""
        self._skipping.now += seconds

    async def rest(self, seconds: float) -> None:
        """Until so much simulated time has passed; nobody really waits."""
        over = self.create_future()
        timer = self.call_later(seconds, _wake, over)
        try:
            await over
        finally:
            timer.cancel()


def _wake(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


class LocalClock:
    """The clock of one machine: off by some milliseconds, and set now and then."""

    def __init__(self, timeline: Timeline, off_ms: int) -> None:
        self._timeline = timeline
        self._off_ms = off_ms

    def now_ms(self) -> int:
        return self._timeline.now_ms() + self._off_ms

    def jump(self, ms: int) -> None:
        self._off_ms += ms
