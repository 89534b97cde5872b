"""Taking back everything that depended on a member, in portions that one commit can hold.

First the member itself is taken back and held, with a line that says what is to be done. Then come
those that depend on it, the deepest first, and last it is let go: nothing runs anew before all is
taken back. Whoever is taken back waits for the next generation of its upstreams, whether they were
taken back already or not. Because everybody goes before those it depends on, what is left can be
found from the flow at any time, and nothing of the walk is stored but its line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from flowfabric.core.flow.dispatch import set_free
from flowfabric.core.flow.model import (
    NOT_PINNED,
    Edge,
    EdgeState,
    Group,
    GroupState,
    Line,
    LineKind,
    line_id,
)
from flowfabric.core.flow.replay import (
    Opened,
    depends,
    ends_of,
    open_again,
    open_hopeless,
    take_back,
)
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution
from flowfabric.core.operator import may_replay, require_replay
from flowfabric.core.states import TERMINAL
from flowfabric.core.transition import clip


def weights(
    ids: Iterable[ExecutionId], edges: Sequence[Edge], groups: Sequence[Group]
) -> Counter[ExecutionId]:
    """By member how many records change with it, and at most are read for it."""
    found = Counter(dict.fromkeys(ids, 1))
    for id in (*(edge.downstream for edge in edges), *(group.downstream for group in groups)):
        if id in found:
            found[id] += 1
    return found


def require_replays(again: Collection[ExecutionId], heads: Mapping[ExecutionId, Execution]) -> None:
    """None of them has run as often as it may."""
    for id in sorted(again):
        row = heads.get(id)
        if row is not None and row.state in TERMINAL:
            require_replay(row)


def hold_back(work: Round, row: Execution, view: View, reason: str) -> None:
    """Take the member back and hold it; its line says that those who depended on it follow."""
    take_back(work, row, ends_of(view.lines), reason, waits=True)
    generation = row.replay_count + 1
    work.lines.append(
        Line(
            flow=work.flow.id,
            at_ms=work.now_ms,
            id=line_id(LineKind.REOPEN, row.id, generation),
            kind=LineKind.REOPEN,
            execution=row.id,
            generation=generation,
            about=clip(reason),
        )
    )


def to_open(
    edges: Iterable[Edge], ids: Collection[ExecutionId], again: Collection[ExecutionId]
) -> list[Edge]:
    """What enters these members from others that are taken back."""
    return [
        edge
        for edge in edges
        if edge.downstream in ids and edge.upstream in again and edge.state is not EdgeState.PENDING
    ]


def needed_last(edges: Iterable[Edge], groups: Iterable[Group]) -> list[Edge]:
    """Those by which a member is found to depend on its upstreams go last; until then it is found
    again, because its groups stay as they are as long as it has ended."""
    states = {group.key: group.state for group in groups}
    return sorted(edges, key=lambda edge: depends(edge, states.get(edge.group_key)))


def is_asked_about(edge: Edge, again: Collection[ExecutionId]) -> bool:
    """Whether it matters what became of its upstream when the edges of a group are counted anew."""
    if edge.state is EdgeState.PENDING:
        return False
    return edge.upstream in again or edge.attempt == NOT_PINNED


def reopen(
    work: Round, ids: Sequence[ExecutionId], view: View, opened: Opened, *, reason: str
) -> None:
    """Take these members back, with all that enters them."""
    # One that ran once more meanwhile, for the last time that it may, is left alone.
    able = {id for id in ids if not _is_left(work.head(id))}
    open_again(work, to_open(view.edges, able, opened.again), opened, recount=view)
    told = ends_of(view.lines)
    for id in ids:
        row = work.head(id)
        if row is not None and id in able:
            take_back(work, row, told, reason)


def _is_left(row: Execution | None) -> bool:
    return row is None or (row.state in TERMINAL and not may_replay(row))


def let_go(work: Round, line: Line, view: View) -> None:
    """Everything is taken back: the member waits for what it depends on itself, or runs."""
    work.finish(line)
    row = work.head(ExecutionId(line.execution))
    if row is None or row.state in TERMINAL or row.replay_count != line.generation:
        return
    open_hopeless(work, row.id, view.edges)
    if any(group.state is GroupState.PENDING for group in work.groups_of(row.id)):
        return
    transition = set_free(work, row)
    if transition is not None:
        work.write(transition)
