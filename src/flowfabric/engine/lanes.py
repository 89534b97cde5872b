"""Lanes: whether they take work and hand it out. A fact of the lane, remembered for a second."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from flowfabric.core.model import Lane
from flowfabric.core.states import LaneState
from flowfabric.core.transition import Changeset, LaneChange
from flowfabric.engine.conflict import PAUSES_SECONDS
from flowfabric.errors import Conflict
from flowfabric.store.clock import Clock
from flowfabric.store.protocol import Store

REMEMBER_MS = 1_000
PAGE = 1_000

_SERVING = (LaneState.ACTIVE, LaneState.DRAINING)
_ACCEPTING = (LaneState.ACTIVE, LaneState.PAUSED)


class Lanes:
    """What this process knows of the lanes; a lane that nobody has used yet is open."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, Lane] = {}
        self._stale_at_ms = 0

    async def state(self, name: str) -> LaneState:
        await self._refresh()
        lane = self._known.get(name)
        return lane.state if lane else LaneState.ACTIVE

    async def serving(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the lanes that hand out work."""
        return tuple([name for name in names if await self.state(name) in _SERVING])

    async def closed(self, names: Collection[str]) -> dict[str, LaneState]:
        """Those of the lanes that take no work, and what they are instead."""
        states = {name: await self.state(name) for name in names}
        return {name: state for name, state in states.items() if state not in _ACCEPTING}

    async def set(self, name: str, state: LaneState) -> None:
        for pause in (*PAUSES_SECONDS, None):
            await self._load()
            lane = self._known.get(name)
            change = LaneChange(name, lane.rev if lane else 0, state)
            if await self._store.commit(Changeset(lanes=[change]), self._clock.now_ms()):
                await self._load()
                return
            if pause is not None:
                await asyncio.sleep(pause)
        raise Conflict(f"lane '{name}' kept changing")

    async def _refresh(self) -> None:
        if self._clock.now_ms() >= self._stale_at_ms:
            await self._load()

    async def _load(self) -> None:
        found: list[Lane] = []
        while page := await self._store.lanes(found[-1].name if found else "", PAGE):
            found += page
            if len(page) < PAGE:
                break
        self._known = {lane.name: lane for lane in found}
        self._stale_at_ms = self._clock.now_ms() + REMEMBER_MS
