"""From what a builder says to the records of a flow, or to a typed refusal; nothing is written.

Checks, in this order: an edge from a member to itself, an edge of an unknown member, an edge that
is there twice, a member of another partition, a join that can never be, a circle.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from flowfabric.core import names
from flowfabric.core.flow.model import (
    START,
    Edge,
    EdgeKind,
    Flow,
    Group,
    GroupKey,
    Join,
    OnSatisfied,
)
from flowfabric.core.flow.settling import encode_retention
from flowfabric.core.ids import (
    ExecutionId,
    FlowId,
    PartitionCounts,
    execution_id,
    flow_partition,
)
from flowfabric.core.lifecycle import Order, submit
from flowfabric.core.model import Submission
from flowfabric.core.policy import DEFAULT, RetentionPolicy
from flowfabric.errors import InvalidGraph, InvalidInput

K_MAX = 2**31 - 1


class Link(msgspec.Struct, frozen=True, gc=False):
    """An edge to be drawn."""

    upstream: ExecutionId
    downstream: ExecutionId
    kind: EdgeKind = EdgeKind.SUCCESS_ONLY
    group: str = START
    argument: str = ""


class Policy(NamedTuple):
    """How a group joins; without one it is all_of."""

    join: Join = Join.ALL_OF
    k: int = 1
    on_satisfied: OnSatisfied = OnSatisfied.LET_RUN


_ALL_OF = Policy()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A whole flow as its builder says it."""

    id: FlowId
    namespace: str
    name: str
    orders: Sequence[Order]
    links: Sequence[Link] = ()
    policies: Mapping[GroupKey, Policy] = msgspec.field(default_factory=dict)
    creator: str = ""
    digest: str = ""
    deadline_ms: int | None = None
    retention: RetentionPolicy = DEFAULT.retention_policy
    keep_until_ms: int = 0


class Drawn(NamedTuple):
    """The records of a flow that is submitted at once: every group is sealed."""

    flow: Flow
    members: list[Submission]
    edges: list[Edge]
    groups: list[Group]


def draw(plan: Plan, now_ms: int, counts: PartitionCounts, *, is_staged: bool = False) -> Drawn:
    """Check a plan and make its records; members that wait for others are held back.

    Those of a staged flow are all held back, until the flow is opened.
    """
    places = {order.id: place for place, order in enumerate(plan.orders)}
    check_links(plan.links, places)
    check_partition(plan.id, places, counts)
    groups = groups_of(plan.id, plan.links, plan.policies)
    # What only ever waits for what was said before it waits in no circle.
    if any(places[link.upstream] > places[link.downstream] for link in plan.links):
        check_circles((link.upstream, link.downstream) for link in plan.links)
    waiting = {group.downstream for group in groups}
    members = [
        submit(order, now_ms, flow=plan.id, deps_open=is_staged or order.id in waiting)
        for order in plan.orders
    ]
    flow = Flow(
        id=plan.id,
        namespace=names.namespace_name(plan.namespace),
        name=names.task_name(plan.name),
        creator=names.note(plan.creator, "creator") if plan.creator else "",
        created_ms=now_ms,
        updated_ms=now_ms,
        digest=plan.digest,
        deadline_ms=plan.deadline_ms,
        due_ms=plan.deadline_ms,
        total=len(members),
        edges=len(plan.links),
        graph_revision=len(members) + len(plan.links),
        is_open=not is_staged,
        retention=encode_retention(plan.retention),
        keep_until_ms=plan.keep_until_ms,
    )
    return Drawn(flow, members, edges_of(plan.id, plan.links, now_ms), groups)


def check_links(links: Iterable[Link], known: Container[ExecutionId]) -> None:
    seen: set[tuple[ExecutionId, ExecutionId, str]] = set()
    for link in links:
        upstream, downstream = link.upstream, link.downstream
        if upstream == downstream:
            raise _refused("self_referencing_edge", f"{upstream} cannot wait for itself")
        if upstream not in known or downstream not in known:
            end = downstream if upstream in known else upstream
            raise _refused("execution_not_in_flow", f"{end} is not a member of the flow")
        key = (upstream, downstream, link.group)
        if key in seen:
            raise _refused(
                "dependency_already_exists", f"{downstream} waits for {upstream} already"
            )
        if link.argument and link.kind is EdgeKind.ORDER:
            raise InvalidInput("passes nothing", field="argument", hint="use another kind of edge")
        seen.add(key)


def check_partition(flow: FlowId, members: Iterable[ExecutionId], counts: PartitionCounts) -> None:
    partition = flow_partition(flow, counts)
    begin = execution_id(partition, "")
    for id in members:
        if not id.startswith(begin):
            raise InvalidInput(
                f"{id} is not in the partition of its flow",
                field="execution_id",
                code="invalid_partition_index",
                hint=f"ids of this flow begin with {{fp:{partition}}}",
            )


def check_circles(pairs: Iterable[tuple[ExecutionId, ExecutionId]]) -> None:
    """Take away, again and again, what waits for nothing; what is left waits in a circle."""
    following: dict[ExecutionId, list[ExecutionId]] = {}
    waits: dict[ExecutionId, int] = {}
    for upstream, downstream in pairs:
        following.setdefault(upstream, []).append(downstream)
        waits[downstream] = waits.get(downstream, 0) + 1
    free = [id for id in following if id not in waits]
    for id in free:
        for after in following.get(id, ()):
            waits[after] -= 1
            if waits[after] == 0:
                free.append(after)
    stuck = [id for id, count in waits.items() if count]
    if stuck:
        raise _refused("cycle_detected", f"{stuck[0]} waits for itself, through others")


def groups_of(
    flow: FlowId, links: Iterable[Link], policies: Mapping[GroupKey, Policy]
) -> list[Group]:
    sizes: dict[GroupKey, int] = {}
    for link in links:
        key = GroupKey(link.downstream, link.group)
        sizes[key] = sizes.get(key, 0) + 1
    lonely = [key for key in policies if key not in sizes]
    if lonely:
        raise InvalidInput(
            f"{lonely[0].downstream} waits for nothing", field="policy", hint="name its upstreams"
        )
    return [group_of(flow, key, policies.get(key, _ALL_OF), n) for key, n in sizes.items()]


def group_of(flow: FlowId, key: GroupKey, policy: Policy, n: int, *, sealed: bool = True) -> Group:
    check_policy(policy, n if sealed else K_MAX)
    return Group(
        flow=flow,
        downstream=key.downstream,
        name=key.name,
        join=policy.join,
        k=policy.k if policy.join is Join.QUORUM else 1,
        on_satisfied=policy.on_satisfied,
        sealed=sealed,
        n=n,
    )


def check_policy(policy: Policy, n: int) -> None:
    if policy.join is Join.QUORUM and not 1 <= policy.k <= n:
        raise InvalidInput(
            f"a quorum of {policy.k} cannot be reached",
            field="k",
            hint=f"k must be at least 1 and at most {n}",
        )


def edges_of(flow: FlowId, links: Iterable[Link], now_ms: int) -> list[Edge]:
    """In each group they keep the order in which they were drawn."""
    places: dict[tuple[ExecutionId, str], int] = {}
    edges: list[Edge] = []
    for link in links:
        key = link.downstream, link.group
        place = places[key] = places.get(key, -1) + 1
        edges.append(
            Edge(
                flow=flow,
                upstream=link.upstream,
                downstream=link.downstream,
                group=link.group,
                kind=link.kind,
                position=place,
                argument=link.argument,
                created_ms=now_ms,
            )
        )
    return edges


def _refused(code: str, message: str) -> InvalidGraph:
    return InvalidGraph(message, code=code)
