"""What must be true of every flow at every moment, whoever works on it.

Written from what the records mean: which counters there are, what an edge says about its upstream,
when a group is decided. The tables of the code that decides are not used here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from flowfabric.core.flow.model import (
    Edge,
    EdgeKind,
    EdgeState,
    Flow,
    Group,
    GroupState,
    Line,
    LineKind,
)
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import NO_ATTEMPT, Execution
from flowfabric.core.states import TERMINAL, State
from flowfabric.testing.simulation.watched import WatchedStore

_COUNTERS = ("completed", "failed", "cancelled", "expired", "skipped")
_BAD = ("failed", "cancelled", "expired")
_OUTCOME = {"completed": "success"}


class Family:
    """A flow with all that belongs to it, in one moment."""

    def __init__(self, flow: Flow, members: Sequence[Execution], view: View) -> None:
        self.flow = flow
        self.members = {row.id: row for row in members}
        self.edges = view.edges
        self.groups = view.groups
        self.lines = view.lines

    def ends_to_tell(self, row: Execution) -> list[Line]:
        """Open lines that say how the last generation of a member ended."""
        return [
            line
            for line in self.lines
            if line.kind is LineKind.ENDED
            and line.execution == row.id
            and line.generation == row.replay_count
        ]


async def family_of(store: WatchedStore, id: FlowId) -> Family | None:
    flow, members = store.flow_of(id), store.members_of(id)
    if flow is None:
        return None
    ids = [row.id for row in members]
    view = (await store.graph([Sight(flow=id, whole=True, groups=ids, lines=True)]))[0]
    return Family(flow, members, view)


def broken_family(family: Family) -> list[str]:
    """Every sentence about what is wrong with it; one that is being staged is nobody's yet."""
    if not family.flow.is_open:
        return []
    found = [*_counters(family), *_settled(family)]
    edges: dict[tuple[ExecutionId, str], list[Edge]] = {}
    for edge in family.edges:
        edges.setdefault((edge.downstream, edge.group), []).append(edge)
        found += _edge(family, edge)
    for group in family.groups:
        found += _group(family, group, edges.get((group.downstream, group.name), []))
    for row in family.members.values():
        found += _member(family, row)
    return [f"flow {family.flow.id}: {said}" for said in found]


def _counters(family: Family) -> Iterator[str]:
    flow = family.flow
    if flow.total != len(family.members):
        yield f"counts {flow.total} members and has {len(family.members)}"
    counted = Counter(
        str(row.state)
        for row in family.members.values()
        if row.state in TERMINAL and not family.ends_to_tell(row)
    )
    for name in _COUNTERS:
        if getattr(flow, name) != counted[name]:
            yield f"counts {getattr(flow, name)} {name}, its members say {counted[name]}"


def _settled(family: Family) -> Iterator[str]:
    flow = family.flow
    is_over = bool(family.members) and flow.ended == flow.total
    if flow.settled is not is_over:
        yield f"is {'' if flow.settled else 'not '}settled with {flow.ended} of {flow.total} ended"
    if (flow.purge_ms is not None) is not flow.settled:
        yield f"may go at {flow.purge_ms}, settled: {flow.settled}"
    if flow.parked or flow.failures >= 3:
        yield f"failed {flow.failures} times: {flow.parked}"


def _edge(family: Family, edge: Edge) -> Iterator[str]:
    name = f"edge {edge.upstream} > {edge.downstream}"
    upstream = family.members.get(edge.upstream)
    if upstream is None or edge.downstream not in family.members:
        yield f"{name} has no ends"
        return
    if edge.state is EdgeState.PENDING:
        waits_for_this = edge.generation <= upstream.replay_count
        if upstream.state in TERMINAL and waits_for_this and not family.ends_to_tell(upstream):
            yield f"{name} is pending, its upstream is {upstream.state}, and no line says so"
        return
    is_satisfied = _satisfies(edge.kind, str(edge.outcome))
    if is_satisfied is not (edge.state is EdgeState.SATISFIED):
        yield f"{name} ({edge.kind}) is {edge.state} by {edge.outcome}"
    if edge.generation > upstream.replay_count:
        yield f"{name} knows generation {edge.generation} of {upstream.replay_count}"
    elif edge.generation == upstream.replay_count:
        outcome = _OUTCOME.get(str(upstream.state), str(upstream.state))
        if outcome != str(edge.outcome):
            yield f"{name} says {edge.outcome}, its upstream is {upstream.state}"


def _satisfies(kind: EdgeKind, outcome: str) -> bool:
    if kind is EdgeKind.SUCCESS_ONLY:
        return outcome == "success"
    return outcome in _BAD if kind is EdgeKind.FAILURE else outcome != "none"


def _group(family: Family, group: Group, edges: Sequence[Edge]) -> Iterator[str]:
    name = f"group of {group.downstream}"
    good = sum(edge.state is EdgeState.SATISFIED for edge in edges)
    impossible = [edge for edge in edges if edge.state is EdgeState.IMPOSSIBLE]
    wrong = sum(str(edge.outcome) in _BAD for edge in impossible)
    counted = (len(edges), good, wrong, len(impossible) - wrong)
    if counted != (group.n, group.succeeded, group.failed, group.skipped):
        yield f"{name} counts {group}, its edges say {counted}"
    need = {"all_of": len(edges), "any_of": 1}.get(group.join, group.k)
    can_be = len(edges) - len(impossible) >= need
    expected = GroupState.PENDING if can_be else GroupState.IMPOSSIBLE
    if good >= need:
        expected = GroupState.SATISFIED
    is_cancelled = group.state is GroupState.CANCELLED
    if group.sealed and edges and group.state is not expected and not is_cancelled:
        yield f"{name} is {group.state}, should be {expected}: {counted}, {group.join} {group.k}"


def _member(family: Family, row: Execution) -> Iterator[str]:
    """Nobody runs before what it waits for, and nobody waits for what is decided."""
    states = [group.state for group in family.groups if group.downstream == row.id]
    if row.state in TERMINAL or not states:
        return
    is_free = all(state is GroupState.SATISFIED for state in states)
    # What has begun goes on, also when an upstream of it is replayed.
    has_begun = row.attempt != NO_ATTEMPT or row.state is State.ACTIVE
    if not is_free and not row.deps_open and not has_begun:
        yield f"{row.id} is {row.state}, its groups are {states}"
    if is_free and row.deps_open and row.state is not State.BLOCKED_OPERATOR:
        yield f"{row.id} is {row.state}, though its groups are {states}"
