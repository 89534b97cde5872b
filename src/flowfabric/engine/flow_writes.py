"""The road of every change of a flow: look, decide, commit, and again when somebody was faster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import FlowId
from flowfabric.core.transition import Changeset
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
        view = (await self._store.graph([sight]))[0]
        if view.flow is None:
            raise FlowNotFound(f"there is no flow {sight.flow}", details={"flow": sight.flow})
        return view.flow, view

    async def change(self, sight: Sight, decide: Decide[T]) -> T:
        """Three attempts against others; an answer that was lost is found again."""
        sent: tuple[Flow, T] | None = None

        async def once(_: int) -> tuple[bool, T]:
            nonlocal sent
            flow, view = await self.view(sight)
            if sent is not None and _same(flow, sent[0]):
                return True, sent[1]
            now_ms = self._clock.now_ms()
            changes, answer = decide(flow, view, now_ms)
            if changes is None:
                return True, answer
            sent = _after(flow, changes), answer
            return await self._store.commit(changes, now_ms), answer

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


def _after(flow: Flow, changes: Changeset) -> Flow:
    return _replace(flow, **{**changes.flows[0].patch, "rev": flow.rev + 1})


def _same(flow: Flow, expected: Flow) -> bool:
    """Whether it is what our own write made of it; a lease of a dispatcher is no change."""
    return _replace(flow, busy_until_ms=0) == _replace(expected, busy_until_ms=0)
