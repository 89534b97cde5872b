"""Flows that are built step by step. Part of the engine's verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from flowfabric.core.flow import growing
from flowfabric.core.flow.adding import Addition, add, is_added
from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import START, Flow, Group, GroupKey
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.siblings import cancels_rest, owe
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import (
    ExecutionId,
    FlowId,
    PartitionCounts,
    flow_partition,
    parse_execution_id,
    partition_of,
)
from flowfabric.core.refusal import not_found
from flowfabric.core.requests import Request
from flowfabric.core.transition import Changeset
from flowfabric.engine.flow_writes import Again, FlowWrites
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.requesting import requested
from flowfabric.engine.rounds import ALL_EDGES
from flowfabric.errors import Conflict, IdempotencyConflict, InvalidInput, LaneClosed


class Grown(msgspec.Struct, frozen=True):
    """The flow after a step; `changed` is False when there was nothing to do."""

    members: int
    edges: int
    graph_revision: int
    changed: bool = True
    group: Group | None = None


class _LookFurther(Exception):
    """The step decides a group, and more of the flow must be seen to say what follows."""


# None: it is so already.
Judge = Callable[[Flow, View, int], tuple[Round, Group] | None]


class FlowBuilding:
    """Every verb is one guarded change of the flow, decided again when somebody was faster."""

    def __init__(self, writes: FlowWrites, lanes: Lanes) -> None:
        self.counts = PartitionCounts()
        self._writes = writes
        self._lanes = lanes

    async def join(self, flow: FlowId, id: str, *, request: str | None = None) -> Grown:
        """Make an execution a member of a flow in the same partition."""
        id = parse_execution_id(id)
        if partition_of(id) != flow_partition(flow, self.counts):
            raise InvalidInput(
                f"{id} is not in the partition of flow {flow}",
                field="execution_id",
                code="invalid_partition_index",
                hint="mint the id for the flow",
            )

        def decide(seen: Flow, view: View, now_ms: int) -> tuple[Changeset | None, Grown]:
            work = _round(seen, view, now_ms)
            row = work.head(id)
            if row is None:
                growing.require_revision(seen, None)
                raise not_found(id)
            changed = growing.join(work, row)
            return (_changes(work) if changed else None), _grown(work, changed=changed)

        again = _again(requested(request, "join", id))
        return await self._writes.change(Sight(flow=flow, heads=[id]), decide, again)

    async def add(
        self,
        flow: FlowId,
        new: Addition,
        *,
        expected_revision: int | None = None,
        request: str | None = None,
    ) -> Grown:
        """Make new members with all that they wait for; repeating it changes nothing."""
        closed = await self._lanes.closed({order.lane for order in new.orders})
        for lane, state in closed.items():
            raise LaneClosed(f"lane '{lane}' is {state}", field="lane")
        ids = new.ids

        def decide(seen: Flow, view: View, now_ms: int) -> tuple[Changeset | None, Grown]:
            work = _round(seen, view, now_ms)
            there = [id for id in ids if work.head(id) is not None]
            if there == ids and is_added(flow, new, view):
                return None, _grown(work, changed=False)
            if there:
                raise InvalidInput(
                    f"{there[0]} already exists", field="orders", hint="mint new ids"
                )
            growing.require_revision(seen, expected_revision)
            members = [id for id, head in view.heads.items() if head.flow == flow]
            add(work, new, members, self.counts)
            return _changes(work), _grown(work)

        inputs = [(order.id, order.payload) for order in new.orders]
        ends = [end for link in new.links for end in (link.upstream, link.downstream)]
        sight = Sight(flow=flow, heads=list(dict.fromkeys([*ids, *ends])), entering=ids)
        again = _again(requested(request, "add", inputs, new.links))
        grown = await self._writes.change(sight, decide, again)
        if not grown.changed:
            await self._require_inputs(new)
        return grown

    async def _require_inputs(self, new: Addition) -> None:
        """Members that were there must have been made with the same inputs."""
        found = await self._writes.payloads(new.ids)
        for order in new.orders:
            if found.get(order.id) != order.payload:
                raise IdempotencyConflict(
                    f"{order.id} was added with another input", details={"execution": order.id}
                )

    async def link(
        self,
        flow: FlowId,
        new: Link,
        *,
        expected_revision: int | None = None,
        request: str | None = None,
    ) -> Grown:
        """Draw an edge; with an expected revision, only if the graph is as the caller knows it.

        An edge that is there as it is wanted stays as it is.
        """
        ends = [new.upstream, new.downstream]
        key = GroupKey(new.downstream, new.group)

        def decide(seen: Flow, view: View, now_ms: int) -> tuple[Round, Group] | None:
            if growing.is_drawn(new, view.edges):
                return None
            work = _round(seen, view, now_ms)
            growing.require_revision(seen, expected_revision)
            members = [id for id in ends if id in view.heads and view.heads[id].flow == flow]
            return work, growing.link(work, new, view.edges, members)

        sight = Sight(flow=flow, heads=ends, groups=[new.downstream], whole=True)
        return await self._judged(sight, key, decide, requested(request, "link", new))

    async def seal(
        self,
        flow: FlowId,
        downstream: ExecutionId,
        group: str = START,
        *,
        request: str | None = None,
    ) -> Grown:
        """Say that no more edges come: from now on the group is judged."""
        key = GroupKey(downstream, group)

        def decide(seen: Flow, view: View, now_ms: int) -> tuple[Round, Group] | None:
            work = _round(seen, view, now_ms)
            known = work.group(key)
            if known is not None and known.sealed:
                return None
            return work, growing.seal(work, key)

        sight = Sight(flow=flow, heads=[downstream], groups=[downstream])
        wanted = requested(request, "seal", downstream, group)
        return await self._judged(sight, key, decide, wanted)

    async def _judged(self, sight: Sight, key: GroupKey, decide: Judge, request: Request) -> Grown:
        """A step that may decide a group: then who is needed no more is listed in its commit."""
        downstream, again = key.downstream, _again(request, key)

        def judge(seen: Flow, view: View, now_ms: int) -> tuple[Changeset | None, Grown]:
            decided = decide(seen, view, now_ms)
            if decided is None:
                work = _round(seen, view, now_ms)
                return None, _grown(work, changed=False, group=work.group(key))
            work, group = decided
            was = [each.state for each in view.groups if each.key == group.key]
            if cancels_rest(group) and was != [group.state]:
                if not wider:
                    raise _LookFurther
                _owe(work, group, view, wider)
            return _changes(work), _grown(work, group=work.group(group.key))

        wider: list[ExecutionId] = []
        try:
            return await self._writes.change(sight, judge, again)
        except _LookFurther:
            _, near = await self._writes.whole_view(Sight(flow=sight.flow, entering=[downstream]))
        wider = [downstream, *(edge.upstream for edge in near.edges)]
        sight = msgspec.structs.replace(
            sight, entering=[downstream], ends=True, leaving=wider, edges=ALL_EDGES
        )
        return await self._writes.change(sight, judge, again)

    async def set_policy(
        self,
        flow: FlowId,
        downstream: ExecutionId,
        policy: Policy,
        group: str = START,
        *,
        request: str | None = None,
    ) -> bool:
        """How a downstream joins; False when it was set so before."""
        key = GroupKey(downstream, group)

        def decide(seen: Flow, view: View, now_ms: int) -> tuple[Changeset | None, bool]:
            work = _round(seen, view, now_ms)
            changed = growing.set_policy(work, key, policy)
            return (_changes(work) if changed else None), changed

        wanted = requested(request, "set_policy", downstream, group, policy)
        again: Again[bool] = Again(wanted, lambda _: "", lambda *_: True)
        return await self._writes.change(Sight(flow=flow, groups=[downstream]), decide, again)


def _owe(work: Round, group: Group, view: View, known: Sequence[ExecutionId]) -> None:
    """List who is owed a cancel; `known` are those whose other downstreams were looked at."""
    mine = [edge.upstream for edge in view.edges if edge.group_key == group.key]
    if not set(mine) <= set(known):
        raise Conflict(f"another edge to {group.downstream} was added at the same time")
    owe(work, [group], view, view)


def _round(flow: Flow, view: View, now_ms: int) -> Round:
    work = Round(flow, now_ms)
    work.look(view)
    return work


def _changes(work: Round) -> Changeset:
    # A dispatcher that is at it keeps its lease; its next commit is refused and decided again.
    return work.changeset(busy_until_ms=work.flow.busy_until_ms)


def _grown(work: Round, *, changed: bool = True, group: Group | None = None) -> Grown:
    flow, patch = work.flow, work.patch
    counts = [patch.get(name, getattr(flow, name)) for name in ("total", "edges", "graph_revision")]
    members, edges, revision = (count if isinstance(count, int) else 0 for count in counts)
    return Grown(members, edges, revision, changed=changed, group=group)


def _again(request: Request, key: GroupKey | None = None) -> Again[Grown]:
    """How a step that changed the flow is told again; its group is told as it is by then."""

    def retell(known: str, view: View) -> Grown:
        members, edges, revision = msgspec.json.decode(known, type=tuple[int, int, int])
        group = next((each for each in view.groups if each.key == key), None)
        return Grown(members, edges, revision, group=group)

    return Again(request, _told, retell)


def _told(grown: Grown) -> str:
    return f"[{grown.members},{grown.edges},{grown.graph_revision}]"
