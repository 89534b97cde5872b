"""How a dispatcher lets go of the flows that it leased: at once, or until later if one of them
made trouble. One that cannot be written keeps no other back; its lease ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import FlowId
from flowfabric.core.model import Value
from flowfabric.core.timers import POISON_LIMIT, pause_after
from flowfabric.core.transition import Changeset, clip
from flowfabric.engine import dispatch_log
from flowfabric.engine.conflict import PAUSES_SECONDS, persistently
from flowfabric.engine.isolation import isolated
from flowfabric.errors import FlowFabricError
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store


class FlowLeases:
    def __init__(self, store: Store, clock: FollowingClock) -> None:
        self._store = store
        self._clock = clock

    async def let_go(self, flows: Sequence[Flow], for_ms: int = 0) -> list[Flow]:
        """End our leases, now or so soon; whoever changes one of the flows meanwhile may. Answers
        those that are leased still."""
        left = list({flow.id: flow for flow in flows}.values())
        for pause in (0.0, *PAUSES_SECONDS):
            if pause:
                await asyncio.sleep(pause)
                left = await self.still_ours(left)
            if not left:
                return []
            until_ms = self._clock.now_ms() + for_ms if for_ms else 0
            left = await self._unwritten(left, until_ms)
        return left

    async def still_ours(self, flows: Sequence[Flow]) -> list[Flow]:
        """These flows as they are now, of those that nobody else has leased since."""

        async def look_at(some: Sequence[Flow]) -> list[Flow]:
            views = await self._store.graph([Sight(flow=flow.id) for flow in some])
            return [
                view.flow
                for flow, view in zip(some, views, strict=True)
                if view.flow is not None and view.flow.busy_until_ms == flow.busy_until_ms
            ]

        ours, lost = await isolated(flows, look_at)
        for flow, error in lost:
            dispatch_log.not_put_back(flow.id, error)
        return ours

    async def _unwritten(self, flows: Sequence[Flow], until_ms: int) -> list[Flow]:
        back: dict[str, Value] = {"busy_until_ms": until_ms}

        async def write(some: Sequence[Flow]) -> list[Flow]:
            batch = [Changeset(flows=[FlowPatch(flow.id, flow.rev, back)]) for flow in some]

            async def once(_: bool) -> list[bool]:
                return await self._store.commit_each(batch, self._clock.now_ms())

            answers = await persistently(self._clock, once)
            return [flow for flow, done in zip(some, answers, strict=True) if not done]

        left, lost = await isolated(flows, write)
        for flow, error in lost:
            dispatch_log.not_put_back(flow.id, error)
        return left

    async def put_back(self, id: FlowId, error: Exception) -> None:
        """Move a flow that made trouble forward in time, durably; after a limit it is parked."""
        told = str(error) if isinstance(error, FlowFabricError) else repr(error)
        try:
            flow = (await self._store.graph([Sight(flow=id)]))[0].flow
            if flow is None:
                return
            now_ms = self._clock.now_ms()
            failures = flow.failures + 1
            patch: dict[str, Value] = {
                "failures": failures,
                "next_try_ms": now_ms + pause_after(failures),
                "parked": clip(told) if failures >= POISON_LIMIT else "",
                "busy_until_ms": 0,
            }
            await self._store.commit(Changeset(flows=[FlowPatch(id, flow.rev, patch)]), now_ms)
        except Exception as again:
            # Its lease ends by itself, and it is tried then.
            dispatch_log.not_put_back(id, again)
