"""Lanes: whether they take work and hand it out. A fact of the lane, remembered for a second."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from flowfabric.core.model import Lane
from flowfabric.core.states import LaneState
from flowfabric.core.transition import Changeset, LaneChange
from flowfabric.engine.conflict import CONFLICT_PAUSES_SECONDS, apart, persistently
from flowfabric.errors import Conflict
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.engine")

REMEMBER_MS = 1_000
PAGE = 1_000

SERVING = (LaneState.ACTIVE, LaneState.DRAINING)
_ACCEPTING = (LaneState.ACTIVE, LaneState.PAUSED)


class Lanes:
    """What this process knows of the lanes; a lane that nobody has used yet is open."""

    def __init__(self, store: Store, clock: FollowingClock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, Lane] = {}
        self._loaded_ms: int | None = None
        self._loading: asyncio.Task[None] | None = None

    async def state(self, name: str) -> LaneState:
        await self._refresh()
        lane = self._known.get(name)
        return lane.state if lane else LaneState.ACTIVE

    async def serving(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the lanes that hand out work."""
        return tuple([name for name in names if await self.state(name) in SERVING])

    async def closed(self, names: Collection[str]) -> dict[str, LaneState]:
        """Those of the lanes that take no work, and what they are instead."""
        states = {name: await self.state(name) for name in names}
        return {name: state for name, state in states.items() if state not in _ACCEPTING}

    async def set(self, name: str, state: LaneState) -> None:
        """Set its state, unless it has it. A write whose reply was lost is not repeated when others
        have set the lane since: it could undo what they did."""
        for pause in (*CONFLICT_PAUSES_SECONDS, None):
            await self._load()
            lane = self._known.get(name)
            if lane is not None and lane.state is state:
                return
            seen = lane.rev if lane else 0
            change = LaneChange(name, seen, state)
            is_done, is_unsure = await self._commit(Changeset(lanes=[change]))
            await self._load()
            if is_done:
                return
            if is_unsure and (after := self._known.get(name)) and after.rev > seen + 1:
                raise Conflict(f"lane '{name}' was changed by another caller; it is {after.state}")
            if pause is not None:
                await apart(pause)
        raise Conflict(f"lane '{name}' kept changing")

    async def _commit(self, changes: Changeset) -> tuple[bool, bool]:
        """Whether it was written, and whether an earlier try may have been."""

        async def once(is_repeated: bool) -> tuple[bool, bool]:
            return await self._store.commit(changes, self._clock.now_ms()), is_repeated

        return await persistently(self._clock, once)

    async def _refresh(self) -> None:
        # A clock that was set back must not keep an old answer alive.
        since = self._loaded_ms
        if since is None or not since <= self._clock.now_ms() < since + REMEMBER_MS:
            await self._load_together()

    async def _load_together(self) -> None:
        """Whoever asks while somebody loads in the same event loop waits for that; nobody who gives
        up spoils it."""
        loop, loading = asyncio.get_running_loop(), self._loading
        if loading is None or loading.get_loop() is not loop:
            loading = self._loading = loop.create_task(self._load())
            loading.add_done_callback(self._loaded)
        await asyncio.shield(loading)

    def _loaded(self, loading: asyncio.Task[None]) -> None:
        if self._loading is loading:
            self._loading = None
        if not loading.cancelled():
            # Everybody who waits is told of it; if nobody does any more, it is nobody's trouble.
            loading.exception()

    async def _load(self) -> None:
        found: list[Lane] = []
        while page := await self._store.lanes(found[-1].name if found else "", PAGE):
            found += page
            if len(page) < PAGE:
                break
        for lane in found:
            # Once for as long as it is so: it is read every second.
            if lane.problem and self._known.get(lane.name) != lane:
                told = {"lane": lane.name, "problem": lane.problem}
                logger.error("lane %s cannot be read: %s", lane.name, lane.problem, extra=told)
        self._known = {lane.name: lane for lane in found}
        self._loaded_ms = self._clock.now_ms()
