"""Records that others name and that are not there: found by what was seen of a flow in one moment.

Nothing of a flow is ever removed but the whole of it, so whatever a record names must be there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flowfabric.core.flow.model import MISSING, Flow, Unreadable
from flowfabric.core.flow.views import Sight, View


def gaps_in(sight: Sight, view: View, now_ms: int) -> list[Unreadable]:
    """What is missing of what the sight asked for; nothing of a flow that is being removed."""
    flow = view.flow
    if flow is None or _is_going(flow, now_ms):
        return []
    known = {(each.kind, each.name) for each in view.unreadable}
    found = [*_executions(sight, view), *_groups(sight, view), *_edges(sight, view, flow)]
    return [each for each in dict.fromkeys(found) if (each.kind, each.name) not in known]


def _is_going(flow: Flow, now_ms: int) -> bool:
    return flow.purge_ms is not None and flow.purge_ms <= now_ms


def missing_members(flow: Flow, found: int, now_ms: int) -> list[Unreadable]:
    """A flow counts its members too: so many were found."""
    if found >= flow.total or _is_going(flow, now_ms):
        return []
    told = f"{flow.total - found} of {flow.total} members are missing"
    return [Unreadable("flow", flow.id, told)]


def _executions(sight: Sight, view: View) -> Iterator[Unreadable]:
    named = list(view.members)
    if sight.ends:
        entering = set(sight.entering)
        named += [edge.upstream for edge in view.edges if edge.downstream in entering]
    for id in named:
        if id not in view.heads:
            yield Unreadable("execution", id, MISSING)


def _groups(sight: Sight, view: View) -> Iterator[Unreadable]:
    """Every edge belongs to a group."""
    entering = set(sight.entering)
    known = {group.key for group in view.groups}
    for edge in view.edges:
        if edge.downstream in entering and edge.group_key not in known:
            yield Unreadable("group", f"{edge.downstream} {edge.group}", MISSING)


def _edges(sight: Sight, view: View, flow: Flow) -> Iterator[Unreadable]:
    """A group counts its edges, and a flow counts all of them."""
    lost = [each for each in view.unreadable if each.kind == "edge"]
    if sight.whole and len(view.edges) + len(lost) < flow.edges:
        told = f"{flow.edges - len(view.edges) - len(lost)} of {flow.edges} edges are missing"
        yield Unreadable("flow", flow.id, told)
    entering = set(sight.entering)
    counted = Counter(edge.group_key for edge in view.edges)
    for group in view.groups:
        missing = group.n - counted[group.key]
        if group.downstream in entering and missing > 0 and not lost:
            told = f"{missing} of its {group.n} edges are missing"
            yield Unreadable("group", f"{group.downstream} {group.name}", told)
