"""Everything that one engine does by itself: timers, dispatch and sweeps, under one supervisor."""

from __future__ import annotations

from flowfabric.engine.collecting import COLLECTING
from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.engine.engine import Engine
from flowfabric.engine.intervals import Intervals
from flowfabric.engine.janitor import NO_INTERVALS, Janitor, Shed
from flowfabric.engine.supervisor import Health, Supervisor
from flowfabric.engine.sweeping import Scope
from flowfabric.engine.telemetry import Telemetry
from flowfabric.engine.timekeeper import Timekeeper


class Duties:
    """Any number of them may run on one store, in any number of processes.

    With a `scope`, timers and those sweepers that apply one serve only what it names.
    """

    def __init__(
        self,
        engine: Engine,
        intervals: Intervals = NO_INTERVALS,
        *,
        scope: Scope | None = None,
    ) -> None:
        store, clock = engine.store, engine.clock
        self.counts: Telemetry = engine.dispatcher.counts
        self._hints = engine.hints
        self._known = engine.known
        self._timekeeper = Timekeeper(store, clock, counts=self.counts, scope=scope)
        self._dispatcher = Dispatcher(store, clock, self.counts, engine.known)
        janitor = Janitor(Shed(store, clock, self.counts, scope), intervals)
        loops = [self._timekeeper.loop, self._dispatcher.loop, *janitor.loops]
        self._supervisor = Supervisor(loops)

    def start(self) -> None:
        self._hints.subscribe(self._timekeeper.hear)
        self._hints.subscribe(self._dispatcher.hear)
        self._known.begin()
        COLLECTING.begin()
        self._supervisor.start()

    async def stop(self, within_seconds: float) -> list[str]:
        """Let what is under way finish; answers what did not in time and was cut off."""
        try:
            return await self._supervisor.stop(within_seconds)
        finally:
            COLLECTING.end()
            self._known.end()
            self._hints.unsubscribe(self._timekeeper.hear)
            self._hints.unsubscribe(self._dispatcher.hear)

    def health(self) -> list[Health]:
        return self._supervisor.health()
