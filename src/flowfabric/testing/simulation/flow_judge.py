"""What must be true of every flow at every moment of a simulation, besides the rules for any flow.

Nothing is damaged here, so nothing may be missing either: an end that others wait for has a line,
a resolved edge says what its upstream says, and a flow is settled as soon as all are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowfabric.core.flow.model import Edge, EdgeKind, EdgeState, LineKind
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import FlowId
from flowfabric.core.model import Execution
from flowfabric.core.states import TERMINAL
from flowfabric.testing.flow_invariants import Whole, broken_flow
from flowfabric.testing.simulation.watched import WatchedStore

FAILURES_MAX = 3
_BAD = ("failed", "cancelled", "expired")
_OUTCOME = {"completed": "success"}


async def whole_of(store: WatchedStore, id: FlowId) -> Whole | None:
    flow, members = store.flow_of(id), store.members_of(id)
    if flow is None:
        return None
    ids = [row.id for row in members]
    view = (await store.graph([Sight(flow=id, whole=True, groups=ids, lines=True)]))[0]
    return Whole(flow=flow, members=members, edges=view.edges, groups=view.groups, lines=view.lines)


def broken_whole(whole: Whole) -> list[str]:
    """Every sentence about what is wrong; a flow that is being staged is nobody's yet."""
    if not whole.flow.is_open:
        return []
    found = [*broken_flow(whole), *_settled(whole)]
    heads = {row.id: row for row in whole.members}
    for edge in whole.edges:
        found += _edge(whole, edge, heads[edge.upstream])
    return [f"flow {whole.flow.id}: {said}" for said in found]


def _settled(whole: Whole) -> Iterator[str]:
    flow = whole.flow
    is_over = bool(whole.members) and flow.ended == flow.total
    if flow.settled is not is_over:
        yield f"is {'' if flow.settled else 'not '}settled with {flow.ended} of {flow.total} ended"
    if (flow.purge_ms is not None) is not flow.settled:
        yield f"may go at {flow.purge_ms}, settled: {flow.settled}"
    if flow.parked or flow.failures >= FAILURES_MAX:
        yield f"failed {flow.failures} times: {flow.parked}"


def _edge(whole: Whole, edge: Edge, upstream: Execution) -> Iterator[str]:
    if edge.state is EdgeState.PENDING:
        waits_for_this = edge.generation <= upstream.replay_count
        if upstream.state in TERMINAL and waits_for_this and not _is_told(whole, upstream):
            yield f"{edge.key} is pending, its upstream {upstream.state}, no outbox entry is open"
        return
    if _satisfies(edge.kind, str(edge.outcome)) is not (edge.state is EdgeState.SATISFIED):
        yield f"{edge.key} ({edge.kind}) is {edge.state} by {edge.outcome}"
    outcome = _OUTCOME.get(str(upstream.state), str(upstream.state))
    if edge.generation == upstream.replay_count and outcome != str(edge.outcome):
        yield f"{edge.key} says {edge.outcome}, its upstream is {upstream.state}"


def _is_told(whole: Whole, row: Execution) -> bool:
    """Whether an open line says how the last generation of this member ended."""
    return any(
        line.kind is LineKind.ENDED
        and (line.execution, line.generation) == (row.id, row.replay_count)
        for line in whole.lines
    )


def _satisfies(kind: EdgeKind, outcome: str) -> bool:
    if kind is EdgeKind.SUCCESS_ONLY:
        return outcome == "success"
    return outcome in _BAD if kind is EdgeKind.FAILURE else outcome != "none"
