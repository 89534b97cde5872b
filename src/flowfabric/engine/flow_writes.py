"""The road of every change of a flow: look, decide, commit, and again when somebody was faster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import FlowId
from flowfabric.core.transition import Changeset, Seen
from flowfabric.engine.conflict import PAUSES_SECONDS, persistently
from flowfabric.errors import Conflict, FlowNotFound
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

T = TypeVar("T")

# What is committed, and what the caller is answered once it is.
Decision = tuple[Changeset | None, T]
Look = Callable[[FlowId], Sight]
Decide = Callable[[Flow, View, int], Decision[T]]

_replace: Callable[..., Flow] = msgspec.structs.replace


class FlowWrites:
    """Changes of flows, guarded by what was seen of them."""

    def __init__(self, store: Store, clock: FollowingClock) -> None:
        self._store = store
        self._clock = clock

    async def view(self, sight: Sight) -> tuple[Flow, View]:
        """A flow that is still being submitted is not there for anybody but its submitter."""
        view = (await self._store.graph([sight]))[0]
        if view.flow is None or not view.flow.is_open:
            raise _no_flow(sight.flow)
        return view.flow, view

    async def change(self, sight: Sight, decide: Decide[T]) -> T:
        """Three attempts against others; an answer that was lost is found again."""
        sent: tuple[Flow, Changeset, T] | None = None

        async def once(_: int) -> tuple[bool, T]:
            nonlocal sent
            flow, view = await self.view(sight)
            if sent is not None and _is_ours(flow, view, sent[0], sent[1]):
                return True, sent[2]
            now_ms = self._clock.now_ms()
            changes, answer = decide(flow, view, now_ms)
            if changes is None:
                return True, answer
            sent = _after(flow, changes), changes, answer
            done = await self._store.commit(changes, now_ms)
            # It was answered, so the next look need not ask whose write it sees.
            sent = None
            return done, answer

        for pause in (*PAUSES_SECONDS, None):
            done, answer = await persistently(self._clock, once)
            if done:
                return answer
            if pause is not None:
                await asyncio.sleep(pause)
        raise Conflict(
            f"flow {sight.flow} kept changing",
            code="conflict",
            details={"flow": sight.flow, "kind": "retry_exhausted"},
        )

    async def add(self, id: FlowId, decide: Callable[[int], Changeset]) -> None:
        """A change that no other change of the flow can refuse: it only has to be there."""

        async def once(_: bool) -> bool:
            now_ms = self._clock.now_ms()
            return await self._store.commit(decide(now_ms), now_ms)

        if not await persistently(self._clock, once):
            raise _no_flow(id)


def _no_flow(id: FlowId) -> FlowNotFound:
    return FlowNotFound(f"there is no flow {id}", details={"flow": id})


def _after(flow: Flow, changes: Changeset) -> Flow:
    return _replace(flow, **{**changes.flows[0].patch, "rev": flow.rev + 1})


def _is_ours(flow: Flow, view: View, expected: Flow, changes: Changeset) -> bool:
    """Whether a write whose answer was lost is what is there; a dispatcher's lease is no change."""
    if _replace(flow, busy_until_ms=0) != _replace(expected, busy_until_ms=0):
        return False
    edges = {edge.key for edge in view.edges}
    rows = [(view.heads.get(t.id), t.guard) for t in changes.transitions]
    return all(edge.key in edges for edge in changes.edges) and all(
        row is None or not isinstance(guard, Seen) or row.rev == guard.rev + 1
        for row, guard in rows
    )
