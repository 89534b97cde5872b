"""New members of a flow that is there already, with the edges by which they wait.

They come with all they wait for, in one commit and sealed, so that none of them can be claimed
before its edges count. Edges that lead to older members are drawn one by one instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from flowfabric.core.flow.cancel import require_open
from flowfabric.core.flow.dispatch import decide
from flowfabric.core.flow.graph import (
    Link,
    Policy,
    check_circles,
    check_links,
    check_partition,
    exact_links,
    groups_of,
)
from flowfabric.core.flow.growing import attach, grow
from flowfabric.core.flow.model import Group, GroupKey, GroupState, LineKind
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId, PartitionCounts
from flowfabric.core.lifecycle import Order, submit
from flowfabric.errors import InvalidGraph, InvalidInput

RECORDS_MAX = 500


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """Members to be, the edges that lead to them, and how these join."""

    orders: Sequence[Order]
    links: Sequence[Link] = ()
    policies: Mapping[GroupKey, Policy] = msgspec.field(default_factory=dict)

    @property
    def ids(self) -> list[ExecutionId]:
        return [order.id for order in self.orders]


def is_added(flow: str, new: Addition, view: View) -> bool:
    """Whether all of it is there as it is wanted, as far as heads and edges tell."""
    ids = set(new.ids)
    rows = [view.heads.get(order.id) for order in new.orders]
    are_same = all(
        row is not None
        and (row.flow, row.namespace, row.lane, row.kind, row.policy)
        == (flow, order.namespace, order.lane, order.kind, order.policy)
        for row, order in zip(rows, new.orders, strict=True)
    )
    drawn = {(*edge.key, edge.kind, edge.argument) for edge in view.edges if edge.downstream in ids}
    wanted = {(k.downstream, k.group, k.upstream, k.kind, k.argument) for k in new.links}
    return are_same and wanted <= drawn


def add(
    work: Round, new: Addition, members: Collection[ExecutionId], counts: PartitionCounts
) -> None:
    """Write them all; what they wait for may have happened, or be impossible, already."""
    require_open(work.flow)
    new = msgspec.structs.replace(new, links=exact_links(new.links))
    _check(work, new, members, counts)
    groups = groups_of(work.flow.id, new.links, new.policies)
    drawn = [_draw(work, group, new.links) for group in groups]
    held = {group.downstream for group in drawn if group.state is not GroupState.SATISFIED}
    for order in new.orders:
        deps_open = order.id in held
        work.members.append(submit(order, work.now_ms, flow=work.flow.id, deps_open=deps_open))
    if any(group.state is GroupState.IMPOSSIBLE for group in drawn):
        # Nobody can be written and skipped at once: the next round looks at all that are held back.
        work.owe(LineKind.OPEN_FLOW, work.flow.id)
    grow(work, members=len(new.orders), edges=len(new.links))


def _check(
    work: Round, new: Addition, members: Collection[ExecutionId], counts: PartitionCounts
) -> None:
    if len(new.orders) + 2 * len(new.links) > RECORDS_MAX:
        raise InvalidInput(
            f"the addition has more than {RECORDS_MAX} records",
            field="orders",
            hint="add them in portions",
        )
    ids = new.ids
    check_links(new.links, {*members, *ids})
    for link in new.links:
        if link.downstream in members:
            raise InvalidGraph(
                f"{link.downstream} is already a member",
                code="invalid_dependency",
                hint="draw edges to it one by one",
            )
    check_partition(work.flow.id, ids, counts)
    check_circles((link.upstream, link.downstream) for link in new.links)


def _draw(work: Round, whole: Group, links: Iterable[Link]) -> Group:
    """The group with its edges one by one, and sealed with the last."""
    group = msgspec.structs.replace(whole, n=0, sealed=False)
    for link in links:
        if GroupKey(link.downstream, link.group) == whole.key:
            group = attach(work, link, group)
    return decide(work, msgspec.structs.replace(group, sealed=True))
