"""From what a builder says to the records of a flow, or to a typed refusal; nothing is written.

Checks, in this order: an edge from a member to itself, an edge of an unknown member, an edge that
is there twice, a member of another partition, a join that can never be, a circle.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from flowfabric.core import exact, names
from flowfabric.core.duration import instant_ms
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
from flowfabric.core.lifecycle import lateness as too_late
from flowfabric.core.model import Submission
from flowfabric.core.policy import DEFAULT, RetentionPolicy
from flowfabric.errors import InvalidGraph, InvalidInput, StoreUnavailable

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


def lateness(plan: Plan, now_ms: int) -> InvalidInput | StoreUnavailable | None:
    """Why the flow can be made no longer: its deadline had passed when the caller asked, or that of
    a member leaves no time. It may have been made before."""
    for order in plan.orders:
        if order.deadline_ms is not None and (late := too_late(order, now_ms)) is not None:
            return late
    if plan.deadline_ms is None:
        return None
    asked = (order.asked_ms for order in plan.orders if order.asked_ms is not None)
    if instant_ms(plan.deadline_ms, "deadline") > min(asked, default=now_ms):
        return None
    return InvalidInput("the deadline is in the past", field="deadline", hint="pass a later one")


def draw(plan: Plan, now_ms: int, counts: PartitionCounts, *, is_staged: bool = False) -> Drawn:
    """Check a plan and make its records; members that wait for others are held back.

    Those of a staged flow are all held back, until the flow is opened.
    """
    places = {order.id: place for place, order in enumerate(plan.orders)}
    links = exact_links(plan.links)
    check_links(links, places)
    check_partition(plan.id, places, counts)
    groups = groups_of(plan.id, links, plan.policies)
    # What only ever waits for what was said before it waits in no circle.
    if any(places[link.upstream] > places[link.downstream] for link in links):
        check_circles((link.upstream, link.downstream) for link in links)
    waiting = {group.downstream for group in groups}
    members = [
        submit(order, now_ms, flow=plan.id, deps_open=is_staged or order.id in waiting)
        for order in plan.orders
    ]
    deadline_ms = None if plan.deadline_ms is None else instant_ms(plan.deadline_ms, "deadline")
    flow = Flow(
        id=plan.id,
        namespace=names.namespace_name(plan.namespace),
        name=names.task_name(plan.name),
        creator=names.note(plan.creator, "creator") if plan.creator else "",
        created_ms=now_ms,
        updated_ms=now_ms,
        digest=names.note(plan.digest, "digest") if plan.digest else "",
        deadline_ms=deadline_ms,
        due_ms=deadline_ms,
        total=len(members),
        edges=len(links),
        graph_revision=len(members) + len(links),
        is_open=not is_staged,
        retention=encode_retention(plan.retention),
        keep_until_ms=instant_ms(plan.keep_until_ms, "keep_until_ms"),
    )
    return Drawn(flow, members, edges_of(plan.id, links, now_ms), groups)


def exact_links(links: Sequence[Link]) -> Sequence[Link]:
    """The edges with every column of its exact type."""
    return links if all(map(_is_exact, links)) else [exact_link(link) for link in links]


def exact_link(link: Link) -> Link:
    if _is_exact(link):
        return link
    return msgspec.structs.replace(
        link,
        kind=exact.word(EdgeKind, link.kind, "kind"),
        group=names.group_name(link.group),
        argument=names.argument_path(link.argument),
    )


def _is_exact(link: Link) -> bool:
    """Whether there is nothing to look at more closely."""
    group, argument = link.group, link.argument
    return (
        type(link.kind) is EdgeKind
        and (group is START or (type(group) is str and group.isidentifier()))
        and type(argument) is str
        and argument.isascii()
        and argument.isprintable()
    )


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
                "dependency_already_exists", f"{downstream} already waits for {upstream}"
            )
        if link.argument and link.kind is EdgeKind.ORDER:
            raise InvalidInput(
                "an edge of kind 'order' carries no result",
                field="argument",
                hint="use another kind",
            )
        seen.add(key)


def check_partition(flow: FlowId, members: Iterable[ExecutionId], counts: PartitionCounts) -> None:
    partition = flow_partition(flow, counts)
    begin = execution_id(partition, "")
    for id in members:
        if type(id) is not str:
            exact.text(id, "execution_id")
        if not id.startswith(begin):
            raise InvalidInput(
                f"{id} is not in the partition of its flow",
                field="execution_id",
                code="invalid_partition_index",
                hint=f"mint its members for partition {partition}",
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
        raise _refused("cycle_detected", f"{stuck[0]} waits for itself through other members")


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
            f"{lonely[0].downstream} has no upstreams", field="policy", hint="add edges to it"
        )
    return [group_of(flow, key, policies.get(key, _ALL_OF), n) for key, n in sizes.items()]


def group_of(flow: FlowId, key: GroupKey, policy: Policy, n: int, *, sealed: bool = True) -> Group:
    policy = exact_policy(policy, n if sealed else K_MAX)
    return Group(
        flow=flow,
        downstream=key.downstream,
        name=START if key.name is START else names.group_name(key.name),
        join=policy.join,
        k=policy.k,
        on_satisfied=policy.on_satisfied,
        sealed=sealed,
        n=n,
    )


def exact_policy(policy: Policy, n: int) -> Policy:
    """The policy with every column of its exact type; `n` upstreams are there to succeed."""
    if policy is _ALL_OF:
        return policy
    join = exact.word(Join, policy.join, "join")
    k = quorum_of(policy.k, n) if join is Join.QUORUM else 1
    return Policy(join, k, exact.word(OnSatisfied, policy.on_satisfied, "on_satisfied"))


def quorum_of(k: object, n: int) -> int:
    """How many of `n` must succeed: a number that can be reached."""
    return exact.whole(k, "k", f"k must be at least 1 and at most {n}", low=1, high=n)


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
