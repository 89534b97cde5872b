"""What a member is handed from its upstreams: which results, in which order, to which places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import msgspec

from flowfabric.core.flow.model import Edge, EdgeState, Group, Join
from flowfabric.core.ids import ExecutionId

PLACES = "\n"
_SATISFIED, _QUORUM = EdgeState.SATISFIED, Join.QUORUM
_in_order = attrgetter("group", "position")


class Passed(msgspec.Struct, frozen=True, gc=False):
    """What goes to one place: one result, or the list of them; a result may be missing."""

    path: str
    results: Sequence[bytes | None]
    is_list: bool


def passes(edge: Edge) -> bool:
    """Whether the result of this edge's upstream goes anywhere."""
    return edge.state is _SATISFIED and edge.attempt >= 0 and bool(edge.argument)


def passed(
    handing: Sequence[Edge],
    groups: Mapping[str, Group],
    results: Mapping[tuple[ExecutionId, int], bytes | None],
) -> list[Passed]:
    """What one member is handed by the edges to it that pass something; `groups` by name.

    All_of passes each its own, any_of the winner, a quorum its successes in their order.
    """
    lists: dict[str, list[bytes | None]] = {}
    found: list[Passed] = []
    for edge in sorted(handing, key=_in_order) if len(handing) > 1 else handing:
        body = results.get((edge.upstream, edge.attempt))
        group = groups.get(edge.group)
        is_list = group is not None and group.join == _QUORUM
        for path in edge.argument.split(PLACES):
            if is_list:
                lists.setdefault(path, []).append(body)
            else:
                found.append(Passed(path, [body], is_list=False))
    for path, bodies in lists.items():
        found.append(Passed(path, bodies, is_list=True))
    return found
