"""The road of every change of a flow: look, decide, commit, and again when somebody was faster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Want
from flowfabric.core.requests import Request, answer_of, with_answer
from flowfabric.core.transition import Changeset
from flowfabric.engine.conflict import PAUSES_SECONDS, persistently
from flowfabric.engine.looking import look, require_whole
from flowfabric.engine.requesting import requested
from flowfabric.errors import Conflict, FlowNotFound
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

T = TypeVar("T")

# What is committed, and what the caller is answered once it is.
Decision = tuple[Changeset | None, T]
Look = Callable[[FlowId], Sight]
Decide = Callable[[Flow, View, int], Decision[T]]


class Again(NamedTuple, Generic[T]):
    """A request, and how its answer is kept with the flow and told again."""

    request: Request
    tell: Callable[[T], str]
    retell: Callable[[str, View], T]


class FlowWrites:
    """Changes of flows, guarded by what was seen of them."""

    def __init__(self, store: Store, clock: FollowingClock) -> None:
        self._store = store
        self._clock = clock

    async def view(self, sight: Sight) -> tuple[Flow, View]:
        """A flow that is still being submitted is not there for anybody but its submitter; one that
        cannot be read is `Corrupt`. What of its records cannot be read is left to the caller."""
        view = await look(self._store, sight)
        if view.flow is None or not view.flow.is_open:
            raise _no_flow(sight.flow)
        return view.flow, view

    async def whole_view(self, sight: Sight) -> tuple[Flow, View]:
        """The same with everything that was asked for: `Corrupt` names what cannot be read."""
        flow, view = await self.view(sight)
        require_whole(sight, view, self._clock.now_ms())
        return flow, view

    async def payloads(self, ids: Sequence[ExecutionId]) -> dict[ExecutionId, bytes]:
        """The inputs of those that are there."""
        found = await self._store.load(Want(ids=ids, payload=True))
        return {each.head.id: each.payload for each in found if each is not None}

    async def change(self, sight: Sight, decide: Decide[T], again: Again[T] | None = None) -> T:
        """Three attempts against others. A request that has changed the flow before does nothing
        and is answered what it was answered then."""
        request = again.request if again is not None else requested(None, "change")
        sent: list[T] = []

        async def once(_: int) -> tuple[bool, T]:
            # What is decided from less than was asked for may be wrong.
            flow, view = await self.whole_view(sight)
            known = answer_of(flow.requests, request)
            if known is not None:
                return True, sent[-1] if again is None else again.retell(known, view)
            now_ms = self._clock.now_ms()
            changes, answer = decide(flow, view, now_ms)
            if changes is None:
                return True, answer
            sent.append(answer)
            told = again.tell(answer) if again is not None else ""
            signed = _signed(changes, with_answer(flow.requests, request, told))
            return await self._store.commit(signed, now_ms), answer

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
    return FlowNotFound(f"flow {id} not found", details={"flow": id})


def _signed(changes: Changeset, requests: str) -> Changeset:
    """The same with the request that asked for it."""
    (flow,) = changes.flows
    patch = FlowPatch(flow.id, flow.rev, {**flow.patch, "requests": requests})
    return msgspec.structs.replace(changes, flows=[patch])
