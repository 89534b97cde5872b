"""Building a flow step by step: members join, edges are drawn, groups are sealed.

An edge counts from the moment it is drawn: who waits is held back in the same commit, and an
upstream that has ended already resolves it at once. A group is judged only when it is sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.core.flow.cancel import require_open
from flowfabric.core.flow.dispatch import decide, move
from flowfabric.core.flow.edges import bucket, pin, verdict
from flowfabric.core.flow.graph import Link, Policy, check_links, exact_link, group_of
from flowfabric.core.flow.join import needed
from flowfabric.core.flow.members import hold
from flowfabric.core.flow.model import (
    NOT_PINNED,
    Edge,
    EdgeState,
    Flow,
    Group,
    GroupKey,
    GroupState,
)
from flowfabric.core.flow.round import Round
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Value, Writer
from flowfabric.core.operator import not_eligible, observed
from flowfabric.core.states import SHAPE, TERMINAL, State
from flowfabric.core.transition import LogLine, Transition, end_of
from flowfabric.errors import AlreadyInFlow, InvalidGraph, InvalidInput, StaleGraphRevision


def require_revision(flow: Flow, expected: int | None) -> None:
    require_open(flow)
    if expected is not None and expected != flow.graph_revision:
        raise StaleGraphRevision(
            f"flow {flow.id} is at revision {flow.graph_revision}, not {expected}",
            details={"revision": flow.graph_revision},
        )


def join(work: Round, row: Execution) -> bool:
    """An execution becomes a member; False when it is one already. Its end is counted, too."""
    require_open(work.flow)
    if row.flow == work.flow.id:
        return False
    if row.flow:
        raise AlreadyInFlow(f"{row.id} is a member of {row.flow}", details={"flow": row.flow})
    if row.state is State.ACTIVE:
        # Its holder decides from the lease, which does not know of the flow: the flow would never
        # hear of the end.
        raise not_eligible(row)
    joined = msgspec.structs.replace(row, flow=work.flow.id)
    line = end_of(joined, {"state": row.state}, work.now_ms)
    patch: dict[str, Value] = {
        "flow": work.flow.id,
        "purge_ms": None,
        "updated_ms": work.now_ms,
    }
    log = LogLine("joined_flow", {"flow": work.flow.id})
    work.write(Transition(row.id, observed(row), Writer.ENGINE, patch, log, line=line))
    grow(work, members=1)
    return True


def grow(work: Round, *, members: int = 0, edges: int = 0) -> None:
    flow = work.flow
    work.patch |= {
        "total": flow.total + members,
        "edges": flow.edges + edges,
        "graph_revision": flow.graph_revision + members + edges,
    }


def is_drawn(new: Link, edges: Iterable[Edge]) -> bool:
    """Whether this edge is there as it is wanted."""
    wanted = (new.downstream, new.group, new.upstream)
    return any(
        edge.key == wanted and (edge.kind, edge.argument) == (new.kind, new.argument)
        for edge in edges
    )


def link(work: Round, new: Link, edges: Sequence[Edge], members: Iterable[ExecutionId]) -> Group:
    """Draw one edge between members; answers the group it belongs to."""
    new = exact_link(new)
    check_links([new], set(members))
    _check_circle(new, edges)
    key = GroupKey(new.downstream, new.group)
    if any(edge.key == (new.downstream, new.group, new.upstream) for edge in edges):
        raise InvalidGraph(
            f"{new.downstream} already waits for {new.upstream}", code="dependency_already_exists"
        )
    group = work.group(key) or group_of(work.flow.id, key, Policy(), 0, sealed=False)
    if group.state is not GroupState.PENDING:
        raise InvalidInput(
            f"the join of {new.downstream} is already decided",
            field="group",
            hint="use another group",
        )
    group = attach(work, new, group)
    grow(work, edges=1)
    _hold_or_move(work, new.downstream, group)
    return group


def _check_circle(new: Link, edges: Iterable[Edge]) -> None:
    """Walk on from the downstream; whoever comes to the upstream has closed a circle."""
    following: dict[ExecutionId, list[ExecutionId]] = {}
    for edge in edges:
        following.setdefault(edge.upstream, []).append(edge.downstream)
    seen = {new.downstream: None}
    queue = [new.downstream]
    for id in queue:
        for after in following.get(id, ()):
            if after == new.upstream:
                raise InvalidGraph(
                    f"{new.upstream} already waits for {new.downstream}", code="cycle_detected"
                )
            if after not in seen:
                seen[after] = None
                queue.append(after)


def attach(work: Round, new: Link, group: Group) -> Group:
    """One more edge of a group; an upstream that has ended resolves it at once."""
    edge = Edge(
        flow=work.flow.id,
        upstream=new.upstream,
        downstream=new.downstream,
        group=new.group,
        kind=new.kind,
        position=group.n,
        argument=new.argument,
        created_ms=work.now_ms,
    )
    group = msgspec.structs.replace(group, n=group.n + 1)
    head = work.head(new.upstream)
    if head is not None and head.state in TERMINAL:
        edge, group = _resolved(work, edge, head, group)
    work.edges.append(edge)
    return decide(work, group)


def _resolved(work: Round, edge: Edge, head: Execution, group: Group) -> tuple[Edge, Group]:
    outcome = SHAPE[head.state].outcome
    state = verdict(edge.kind, outcome)
    need = needed(group)
    is_passed = state is EdgeState.SATISFIED and (need is None or group.succeeded < need)
    name = bucket(state, outcome)
    done = msgspec.structs.replace(
        edge,
        state=state,
        generation=head.replay_count,
        attempt=pin(head) if is_passed else NOT_PINNED,
        outcome=outcome,
        resolved_ms=work.now_ms,
    )
    return done, msgspec.structs.replace(group, **{name: getattr(group, name) + 1})


def seal(work: Round, key: GroupKey) -> Group:
    """Nothing more will be drawn to it: it can be judged."""
    require_open(work.flow)
    group = work.group(key)
    if group is None:
        raise InvalidInput(f"{key.downstream} has no upstreams", field="downstream")
    if not group.sealed:
        group = decide(work, msgspec.structs.replace(group, sealed=True))
        _hold_or_move(work, key.downstream, group)
    return group


def set_policy(work: Round, key: GroupKey, policy: Policy) -> bool:
    """How a downstream will join; False when it is so already. It must come before the edges."""
    require_open(work.flow)
    wanted = group_of(work.flow.id, key, policy, 0, sealed=False)
    group = work.group(key)
    if group is not None and _policy_of(group) == _policy_of(wanted):
        return False
    if group is not None and group.n:
        raise InvalidInput(
            "the join policy is fixed by the first edge",
            field="policy",
            hint="set it before drawing edges",
            code="edge_group_policy_already_fixed",
        )
    work.put(wanted)
    return True


def _policy_of(group: Group) -> tuple[str, int, str]:
    return group.join, group.k, group.on_satisfied


def _hold_or_move(work: Round, downstream: ExecutionId, group: Group) -> None:
    if group.state is not GroupState.PENDING:
        move(work, downstream)
        return
    head = work.head(downstream)
    if head is not None and (transition := hold(head, work.now_ms)) is not None:
        work.write(transition)
