"""Graphs that are too big for one commit: written in portions that nobody sees, then opened.

How far it came is kept in the flow itself, so whoever submits the same again goes on from there,
also while somebody else is at it: each portion is written once, under the flow's `rev`, and all of
them find the flow open in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.digest import is_same
from flowfabric.core.flow.graph import Drawn, Plan, draw
from flowfabric.core.flow.model import Edge, Flow, Group, Line, LineKind, line_id
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import FlowId, PartitionCounts
from flowfabric.core.model import Submission, Value
from flowfabric.core.retention import FlowDeparture, Purge
from flowfabric.core.transition import BATCH_LIMIT, Changeset
from flowfabric.engine.conflict import persistently
from flowfabric.engine.looking import look
from flowfabric.errors import IdempotencyConflict, InvalidInput
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

T = TypeVar("T")

SMALL = BATCH_LIMIT
# Nobody goes on with it for so long: then nothing of it stays.
UNOPENED_MS = 3_600_000

_replaced: Callable[..., Flow] = msgspec.structs.replace


class FlowStaging:
    """Writes one big flow after another. Any number may write the same one."""

    def __init__(self, store: Store, clock: FollowingClock) -> None:
        self._store = store
        self._clock = clock

    async def stage(self, plan: Plan, counts: PartitionCounts) -> bool:
        """Until the flow is open; answers whether this call has opened it."""
        steps = _Steps(plan, draw(plan, self._clock.now_ms(), counts, is_staged=True))
        flow: Flow | None = None
        while flow is None or not flow.is_open:
            if flow is not None and self._is_left(flow, steps):
                await self._remove(flow, steps)
                flow = None
            elif flow is not None:
                require_same(flow, plan)
            flow = await self._step(steps, flow)
        require_same(flow, plan)
        return steps.has_opened

    def _is_left(self, flow: Flow, steps: _Steps) -> bool:
        """Whether nobody goes on with it: somebody may be removing it at this moment."""
        is_due = flow.purge_ms is not None and flow.purge_ms <= self._clock.now_ms()
        return is_due or flow.graph_revision > len(steps.portions)

    async def _step(self, steps: _Steps, flow: Flow | None) -> Flow | None:
        """The flow after its next step, or as somebody else has made it meanwhile."""

        async def once(is_repeated: bool) -> Flow | None:
            if is_repeated:
                # Whatever an unanswered call has written is there now.
                found = await self._seen(steps.id)
                if _rev(found) != _rev(flow):
                    return found
            now_ms = self._clock.now_ms()
            changes, after = steps.next(flow, now_ms)
            if await self._store.commit(changes, now_ms):
                return after
            steps.has_opened = False
            found = await self._seen(steps.id)
            if _rev(found) == _rev(flow):
                raise InvalidInput(
                    "a member already exists", field="execution_id", hint="mint new ids"
                )
            return found

        return await persistently(self._clock, once)

    async def _remove(self, flow: Flow, steps: _Steps) -> None:
        """Part of it may be gone already: nothing of it is of use."""
        left: Flow | None = flow
        while left is not None and not left.is_open and self._is_left(left, steps):
            left = await self._removed_more(left)

    async def _removed_more(self, flow: Flow) -> Flow | None:
        async def once(_: bool) -> Flow | None:
            seen = FlowDeparture(flow.id, flow.rev)
            await self._store.purge(Purge(now_ms=self._clock.now_ms(), flows=[seen]))
            return await self._seen(flow.id)

        return await persistently(self._clock, once)

    async def _seen(self, id: FlowId) -> Flow | None:
        return (await look(self._store, Sight(flow=id))).flow


def _rev(flow: Flow | None) -> int:
    return 0 if flow is None else flow.rev


class _Steps:
    """What is to be written, in the order in which it is. While a flow is staged its
    `graph_revision` counts the portions that are there."""

    def __init__(self, plan: Plan, drawn: Drawn) -> None:
        self.id = plan.id
        self.has_opened = False
        self._whole = drawn.flow
        self.portions = _portions(drawn)

    def next(self, flow: Flow | None, now_ms: int) -> tuple[Changeset, Flow]:
        """What to write now, and the flow as it is then."""
        until_ms = now_ms + UNOPENED_MS
        if flow is None:
            new = _replaced(self._whole, due_ms=None, graph_revision=0, purge_ms=until_ms)
            return Changeset(new_flows=[new]), new
        written = flow.graph_revision
        if written < len(self.portions):
            patch: dict[str, Value] = {"graph_revision": written + 1, "purge_ms": until_ms}
            changes = self.portions[written].under(flow, patch)
        else:
            # Its time begins when it is there.
            whole = self._whole
            patch = {
                "is_open": True,
                "graph_revision": whole.graph_revision,
                "deadline_ms": whole.deadline_ms,
                "due_ms": whole.deadline_ms,
                "keep_until_ms": whole.keep_until_ms,
                "purge_ms": None,
            }
            self.has_opened = True
            opening = [_opening(self.id, now_ms)]
            changes = Changeset(flows=[FlowPatch(flow.id, flow.rev, patch)], lines=opening)
        return changes, _replaced(flow, **patch, rev=flow.rev + 1)


class _Portion(msgspec.Struct, frozen=True):
    """A part of a staged flow, small enough for one call."""

    members: Sequence[Submission] = ()
    groups: Sequence[Group] = ()
    edges: Sequence[Edge] = ()

    def under(self, flow: Flow, patch: dict[str, Value]) -> Changeset:
        return Changeset(
            flows=[FlowPatch(flow.id, flow.rev, patch)],
            members=self.members,
            groups=self.groups,
            edges=self.edges,
        )


def require_same(flow: Flow, plan: Plan) -> None:
    """What is there must mean what is submitted."""
    sizes = len(plan.orders), len(plan.links)
    # An open flow may have grown since.
    is_other = not flow.is_open and sizes != (flow.total, flow.edges)
    if is_other or not is_same(flow.digest, plan.digest):
        raise IdempotencyConflict(
            f"flow {plan.id} was submitted with other members", details={"flow": plan.id}
        )


def _portions(drawn: Drawn) -> list[_Portion]:
    """The same ones for the same plan: members, then groups, then edges."""
    members = [_Portion(members=some) for some in _cut(drawn.members)]
    groups = [_Portion(groups=some) for some in _cut(drawn.groups)]
    return [*members, *groups, *(_Portion(edges=some) for some in _cut(drawn.edges))]


def _cut(records: Sequence[T]) -> list[Sequence[T]]:
    return [records[start : start + SMALL] for start in range(0, len(records), SMALL)]


def _opening(flow: FlowId, now_ms: int) -> Line:
    kind = LineKind.OPEN_FLOW
    return Line(flow=flow, at_ms=now_ms, id=line_id(kind, flow), kind=kind)
