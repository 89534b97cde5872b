"""Replay of members: what is taken back with them, and what stays.

The end that is taken back was either counted, then the counter goes down, or its line is still
open, then the line goes. Edges that are resolved stay so, unless everything that depended on the
member is to run again. Groups are counted anew from their edges, never adjusted.

A skipped member that is replayed has its impossible edges opened again; they wait for their
upstreams to be replayed in turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from flowfabric.core.flow.changes import Resolution
from flowfabric.core.flow.edges import bucket
from flowfabric.core.flow.join import judge
from flowfabric.core.flow.members import hold
from flowfabric.core.flow.model import (
    NOT_PINNED,
    Edge,
    EdgeState,
    Group,
    GroupKey,
    GroupState,
    LineKind,
)
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.settling import COUNTERS
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution
from flowfabric.core.operator import replay
from flowfabric.core.states import RUNNABLE, SHAPE, TERMINAL, Outcome, State
from flowfabric.errors import ExecutionNotTerminal


def dependants(id: ExecutionId, edges: Sequence[Edge], groups: Iterable[Group]) -> set[ExecutionId]:
    """Who runs again with this member: those that its end released or skipped, and theirs.

    Whoever would be skipped at once, by an upstream that does not run again, is not among them.
    """
    known = {group.key: group for group in groups}
    leaving: dict[ExecutionId, list[Edge]] = {}
    entering: dict[ExecutionId, list[Edge]] = {}
    for edge in edges:
        leaving.setdefault(edge.upstream, []).append(edge)
        entering.setdefault(edge.downstream, []).append(edge)
    found = {id}
    queue = [id]
    for each in queue:
        for edge in leaving.get(each, ()):
            group = known.get(edge.group_key)
            if edge.downstream not in found and depends(edge, group.state if group else None):
                found.add(edge.downstream)
                queue.append(edge.downstream)
    changed = True
    while changed:
        hopeless = {
            each for each in found if each != id and not _can_run(entering[each], known, found)
        }
        found -= hopeless
        changed = bool(hopeless)
    return found - {id}


def _can_run(
    edges: Iterable[Edge], groups: Mapping[GroupKey, Group], again: Collection[ExecutionId]
) -> bool:
    """Whether it waits for somebody who runs again, and nothing else makes that vain."""
    edges = list(edges)
    if not any(edge.upstream in again for edge in edges):
        return False
    for key in {edge.group_key for edge in edges}:
        mine = [edge for edge in edges if edge.group_key == key and edge.upstream not in again]
        group = groups.get(key)
        if group is not None and judge(_pending(group, _counts(mine))) is GroupState.IMPOSSIBLE:
            return False
    return True


def depends(edge: Edge, group: GroupState | None) -> bool:
    """Whether the downstream has what it is from this edge; a late success changed nothing."""
    if edge.state is EdgeState.SATISFIED:
        return edge.attempt != NOT_PINNED
    return edge.state is EdgeState.IMPOSSIBLE and group is GroupState.IMPOSSIBLE


def replay_member(
    work: Round,
    row: Execution,
    view: View,
    *,
    reason: str = "",
    again: Collection[ExecutionId] = (),
) -> None:
    """Run this member again, and with it those that depended on it, if they are named."""
    if row.state not in TERMINAL:
        raise ExecutionNotTerminal(f"execution {row.id} is {row.state}")
    is_skipped = row.state is State.SKIPPED
    opened = [
        edge
        for edge in view.edges
        if edge.state is not EdgeState.PENDING
        and _is_reopened(edge, row.id, again, is_skipped=is_skipped)
    ]
    _reopen(work, opened, view.edges)
    _take_back(work, row, view, reason, is_held=is_skipped)
    for id in sorted(again):
        head = work.head(id)
        if head is not None:
            _take_back(work, head, view, reason, is_held=True)


def _is_reopened(
    edge: Edge, id: ExecutionId, again: Collection[ExecutionId], *, is_skipped: bool
) -> bool:
    if edge.downstream in again:
        return edge.upstream == id or edge.upstream in again
    return is_skipped and edge.downstream == id and edge.state is EdgeState.IMPOSSIBLE


def _reopen(work: Round, opened: Sequence[Edge], edges: Iterable[Edge]) -> None:
    keys = {edge.key for edge in opened}
    work.resolved += [
        Resolution(*key, EdgeState.PENDING, 0, NOT_PINNED, Outcome.NONE, None)
        for key in sorted(keys)
    ]
    left: dict[GroupKey, list[Edge]] = {edge.group_key: [] for edge in opened}
    for edge in edges:
        if edge.group_key in left and edge.key not in keys:
            left[edge.group_key].append(edge)
    for key, mine in left.items():
        group = work.group(key)
        if group is not None:
            work.groups[key] = _pending(group, _counts(mine))


def _counts(edges: Iterable[Edge]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for edge in edges:
        if edge.state is not EdgeState.PENDING:
            name = bucket(edge.state, edge.outcome)
            counts[name] = counts.get(name, 0) + 1
    return counts


def _pending(group: Group, counts: dict[str, int]) -> Group:
    return msgspec.structs.replace(
        group,
        state=GroupState.PENDING,
        succeeded=counts.get("succeeded", 0),
        failed=counts.get("failed", 0),
        skipped=counts.get("skipped", 0),
        decided_ms=None,
        cancel_owed=False,
        cancel_reason="",
        owed="",
    )


def _take_back(work: Round, row: Execution, view: View, reason: str, *, is_held: bool) -> None:
    """Its end did not happen: neither its line nor its count may stay."""
    if row.state not in TERMINAL:
        if row.state in RUNNABLE and (transition := hold(row, work.now_ms)) is not None:
            work.write(transition)
        return
    held = msgspec.structs.replace(row, deps_open=row.deps_open or is_held)
    again = replay(held, work.now_ms, reason)
    if is_held:
        patch = {**again.patch, "deps_open": True}
        again = msgspec.structs.replace(again, patch=patch)
    work.write(again)
    mine = [line for line in view.lines if line.kind is LineKind.ENDED and line.execution == row.id]
    work.done += mine
    if not mine:
        work.counted[COUNTERS[SHAPE[row.state].outcome]] -= 1
