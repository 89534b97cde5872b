"""An event loop whose time passes at once while nobody is at work.

A minute of waiting takes no time: when nothing is ready and no call of the store is under way, the
loop's clock, and the store's with it, jump to the next timer. While a call is under way the loop
really waits for it, so what happens, and in which order, is what happens in a real minute.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.store.protocol import Store
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.faults import FaultyStore, Verb

T = TypeVar("T")

Ready = list[tuple[selectors.SelectorKey, int]]


class BusyStore(FaultyStore):
    """Knows how many of its calls are under way."""

    under_way = 0

    async def _call(self, verb: Verb, run: Callable[[], Awaitable[T]]) -> T:
        self.under_way += 1
        try:
            return await super()._call(verb, run)
        finally:
            self.under_way -= 1


class WarpSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the time to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.is_busy: Callable[[], bool] = lambda: False
        self.on_jump: Callable[[float], None] = lambda seconds: None

    def select(self, timeout: float | None = None) -> Ready:
        if timeout is None or timeout <= 0 or self.is_busy():
            return super().select(None if timeout is not None and timeout > 0 else timeout)
        ready = super().select(0)
        if not ready:
            self.now_s += timeout
            self.on_jump(timeout)
        return ready


class WarpLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._warp = WarpSelector()
        super().__init__(self._warp)

    def time(self) -> float:
        return self._warp.now_s

    def follow(self, store: BusyStore, clock: VirtualClock) -> None:
        """From now on time passes for this store and its clock too."""
        self._warp.is_busy = lambda: store.under_way > 0 or store.trips.is_waiting
        self._warp.on_jump = lambda seconds: _advance(clock, seconds)


def _advance(clock: VirtualClock, seconds: float) -> None:
    clock.advance(round(seconds * 1000))


def run_warped(work: Callable[[WarpLoop], Awaitable[T]]) -> T:
    loop = WarpLoop()

    async def main() -> T:
        return await work(loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())


def watched(store: Store) -> BusyStore:
    return BusyStore(store)
