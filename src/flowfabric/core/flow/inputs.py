"""What a member is handed from its upstreams: which results, in which order, to which places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from flowfabric.core.flow.model import Edge, EdgeState, Group, Join
from flowfabric.core.ids import ExecutionId

PLACES = "\n"


class Passed(msgspec.Struct, frozen=True, gc=False):
    """What goes to one place: one result, or the list of them; a result may be missing."""

    path: str
    results: Sequence[bytes | None]
    is_list: bool


def passes(edge: Edge) -> bool:
    """Whether the result of this edge's upstream goes anywhere."""
    is_pinned = edge.state is EdgeState.SATISFIED and edge.attempt >= 0
    return is_pinned and bool(edge.argument)


def passed(
    edges: Iterable[Edge],
    groups: Iterable[Group],
    result: Callable[[ExecutionId, int], bytes | None],
) -> list[Passed]:
    """All_of passes each its own, any_of the winner, a quorum its successes in their order."""
    quorums = {group.key for group in groups if group.join == Join.QUORUM}
    lists: dict[str, list[bytes | None]] = {}
    found: list[Passed] = []
    for edge in sorted(edges, key=lambda edge: (edge.group, edge.position)):
        if not passes(edge):
            continue
        body = result(edge.upstream, edge.attempt)
        is_list = edge.group_key in quorums
        for path in edge.argument.split(PLACES):
            if is_list:
                lists.setdefault(path, []).append(body)
            else:
                found.append(Passed(path, [body], is_list=False))
    return found + [Passed(path, bodies, is_list=True) for path, bodies in lists.items()]
