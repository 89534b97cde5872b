"""Replay of members: what is taken back with them, and what stays.

The end that is taken back was either counted, then the counter goes down, or its line is still
open, then the line goes. Edges that are resolved stay so, unless everything that depended on the
member is to run again. Groups are counted anew from their edges, never adjusted.

A member that was skipped, or ended before it was told to be, has its impossible edges opened again.
One whose upstream has run again meanwhile, to an end that satisfies it, is resolved at once; the
others wait for their upstreams to be replayed in turn. A group that has enough without what was
opened is decided at once, so nobody waits for what will not come.

Whoever runs again only because of its upstream waits for nobody who does not: a late success of an
upstream that has come to another end since is what that end is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from flowfabric.core.flow.changes import Resolution
from flowfabric.core.flow.dispatch import decide
from flowfabric.core.flow.edges import bucket, pin, verdict
from flowfabric.core.flow.join import judge, needed
from flowfabric.core.flow.members import hold, release
from flowfabric.core.flow.model import (
    NOT_PINNED,
    Edge,
    EdgeKey,
    EdgeState,
    Group,
    GroupKey,
    GroupState,
    Line,
    LineKind,
)
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution
from flowfabric.core.operator import replay
from flowfabric.core.states import SHAPE, TERMINAL, Outcome, State
from flowfabric.errors import ExecutionNotTerminal


def dependants(
    id: ExecutionId,
    edges: Sequence[Edge],
    groups: Iterable[Group],
    heads: Mapping[ExecutionId, Execution],
) -> set[ExecutionId]:
    """Who runs again with this member: those that its end released or skipped, and theirs.

    Whoever would be skipped at once, by an upstream that does not run again, is not among them.
    """
    known = {group.key: group for group in groups}
    leaving: dict[ExecutionId, list[Edge]] = {}
    entering: dict[ExecutionId, list[Edge]] = {}
    for edge in edges:
        leaving.setdefault(edge.upstream, []).append(edge)
        entering.setdefault(edge.downstream, []).append(_as_ended(edge, heads.get(edge.upstream)))
    found = {id}
    queue = [id]
    for each in queue:
        for edge in leaving.get(each, ()):
            group = known.get(edge.group_key)
            if edge.downstream not in found and depends(edge, group.state if group else None):
                found.add(edge.downstream)
                queue.append(edge.downstream)
    for each in reversed(deepest_first(found, edges)):
        if each != id and not _can_run(entering[each], known, found):
            found.discard(each)
    return found - {id}


def deepest_first(again: Collection[ExecutionId], edges: Sequence[Edge]) -> list[ExecutionId]:
    """Everybody before those that it depends on."""
    inner = [edge for edge in edges if edge.upstream in again and edge.downstream in again]
    left = Counter(edge.upstream for edge in inner)
    entering: dict[ExecutionId, list[ExecutionId]] = {}
    for edge in inner:
        entering.setdefault(edge.downstream, []).append(edge.upstream)
    queue = sorted(id for id in again if not left[id])
    for id in queue:
        for upstream in entering.get(id, ()):
            left[upstream] -= 1
            if not left[upstream]:
                queue.append(upstream)
    return queue


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


class Opened(NamedTuple):
    """Whose ends are taken back: `again`; of `taken` that has happened, with this generation."""

    again: Collection[ExecutionId]
    taken: Mapping[ExecutionId, int] = {}


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
    again = {row.id, *again}
    if row.state is State.SKIPPED or row.deps_open:
        open_hopeless(work, row.id, view.edges)
    inner = [
        edge
        for edge in view.edges
        if edge.state is not EdgeState.PENDING
        and edge.downstream in again
        and edge.upstream in again
    ]
    open_again(work, inner, Opened(again), recount=view)
    told = ends_of(view.lines)
    for id in sorted(again):
        head = work.head(id)
        if head is not None:
            take_back(work, head, told, reason)


def open_again(
    work: Round, edges: Iterable[Edge], opened: Opened, recount: View | None = None
) -> None:
    """These edges wait once more; with `recount`, all that is around, their groups are judged."""
    changed = {edge.key: _opened(work, edge, opened.taken.get(edge.upstream)) for edge in edges}
    if recount is None:
        work.resolved += [_resolution(changed[key]) for key in sorted(changed)]
        return
    _recount(work, changed, recount.edges, partial(_caught_up, work, ends_of(recount.lines)))


def open_hopeless(work: Round, id: ExecutionId, edges: Iterable[Edge]) -> None:
    """Whoever could not run waits again for what made that so."""
    edges = list(edges)
    lost = [edge for edge in edges if edge.downstream == id and _is_hopeless(work, edge)]
    _recount(work, {edge.key: _anew(work, edge) for edge in lost}, edges, partial(_anew, work))


def _is_hopeless(work: Round, edge: Edge) -> bool:
    """Whether it is one of those that made its group impossible."""
    group = work.group(edge.group_key)
    is_lost = group is not None and group.state is GroupState.IMPOSSIBLE
    return is_lost and edge.state is EdgeState.IMPOSSIBLE


def _recount(
    work: Round,
    changed: dict[EdgeKey, Edge],
    edges: Iterable[Edge],
    refreshed: Callable[[Edge], Edge],
) -> None:
    """Count and judge the groups of these edges anew, and choose whose results they pass on;
    `refreshed` says what has become of a late success."""
    mine: dict[GroupKey, list[Edge]] = {edge.group_key: [] for edge in changed.values()}
    for edge in edges:
        if edge.group_key in mine:
            if edge.key not in changed and _is_stale(edge, work.head(edge.upstream)):
                changed[edge.key] = refreshed(edge)
            mine[edge.group_key].append(changed.get(edge.key, edge))
    for key, every in mine.items():
        group = work.group(key)
        if group is not None:
            group = decide(work, _pending(group, _counts(every)))
            changed |= {edge.key: edge for edge in _pinned(work, group, every)}
    work.resolved += [_resolution(changed[key]) for key in sorted(changed)]


def _has_moved(edge: Edge, head: Execution | None) -> bool:
    """Whether its upstream was replayed after it resolved this edge."""
    return head is not None and head.replay_count > edge.generation


def _is_stale(edge: Edge, head: Execution | None) -> bool:
    """A late success that nobody was handed, of an upstream that has another result now."""
    is_late = edge.state is EdgeState.SATISFIED and edge.attempt == NOT_PINNED
    return is_late and _has_moved(edge, head)


def _as_ended(edge: Edge, head: Execution | None) -> Edge:
    """The edge, or a late success as what its upstream has come to since."""
    if head is None or head.state not in TERMINAL or not _is_stale(edge, head):
        return edge
    outcome = SHAPE[head.state].outcome
    return msgspec.structs.replace(edge, state=verdict(edge.kind, outcome), outcome=outcome)


def _anew(work: Round, edge: Edge) -> Edge:
    """Open it; or resolve it, if its upstream ended since in a way that satisfies it."""
    head = work.head(edge.upstream)
    if head is not None and head.state in TERMINAL and _has_moved(edge, head):
        ended = _ended_as(work, edge, head)
        if ended.state is EdgeState.SATISFIED:
            return ended
    return _opened(work, edge)


def _caught_up(work: Round, untold: Container[str], edge: Edge) -> Edge:
    """Resolve it by the end that its upstream came to; open it while there is none, or nobody has
    acted on it yet."""
    head = work.head(edge.upstream)
    if head is None or head.state not in TERMINAL or head.id in untold:
        return _opened(work, edge)
    return _ended_as(work, edge, head)


def _ended_as(work: Round, edge: Edge, head: Execution) -> Edge:
    """What this end of its upstream makes of it."""
    outcome = SHAPE[head.state].outcome
    return msgspec.structs.replace(
        edge,
        state=verdict(edge.kind, outcome),
        generation=head.replay_count,
        attempt=NOT_PINNED,
        outcome=outcome,
        resolved_ms=work.now_ms,
    )


def _opened(work: Round, edge: Edge, generation: int | None = None) -> Edge:
    """It waits for the next generation of its upstream: the one there is has had its say."""
    if generation is None:
        head = work.head(edge.upstream)
        generation = 0 if head is None else head.replay_count + 1
    return msgspec.structs.replace(
        edge,
        state=EdgeState.PENDING,
        generation=generation,
        attempt=NOT_PINNED,
        outcome=Outcome.NONE,
        resolved_ms=None,
    )


def _pinned(work: Round, group: Group, edges: Iterable[Edge]) -> list[Edge]:
    """Those that change: the first successes, as many as the group needs, pass their results on."""
    need = needed(group)
    room = group.n if need is None else need
    met = [edge for edge in edges if edge.state is EdgeState.SATISFIED]
    found: list[Edge] = []
    for place, edge in enumerate(sorted(met, key=lambda edge: edge.position)):
        attempt = edge.attempt if place < room else NOT_PINNED
        if place < room and attempt == NOT_PINNED:
            attempt = pin(work.head(edge.upstream))
        if attempt != edge.attempt:
            found.append(msgspec.structs.replace(edge, attempt=attempt))
    return found


def _resolution(edge: Edge) -> Resolution:
    return Resolution(
        *edge.key, edge.state, edge.generation, edge.attempt, edge.outcome, edge.resolved_ms
    )


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


def ends_of(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """By member the lines of its ends that nobody has acted on."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        if line.kind is LineKind.ENDED:
            found.setdefault(line.execution, []).append(line)
    return found


def take_back(
    work: Round,
    row: Execution,
    told: Mapping[str, Sequence[Line]],
    reason: str,
    *,
    waits: bool | None = None,
) -> None:
    """Its end did not happen: neither its line nor its count may stay. It waits if a group does,
    or if that is said."""
    if waits is None:
        waits = any(group.state is GroupState.PENDING for group in work.groups_of(row.id))
    if row.state not in TERMINAL:
        transition = hold(row, work.now_ms) if waits else release(row, work.now_ms)
        if transition is not None:
            work.write(transition)
        return
    again = replay(msgspec.structs.replace(row, deps_open=waits), work.now_ms, reason)
    if waits is not row.deps_open:
        patch = {**again.patch, "deps_open": waits}
        again = msgspec.structs.replace(again, patch=patch)
    work.write(again)
    mine = told.get(row.id, ())
    work.done += mine
    if not mine:
        work.count(SHAPE[row.state].outcome, -1)
