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

from flowfabric.core.flow.members import release
from flowfabric.core.flow.model import Edge, EdgeState, Group, GroupState, Line, LineKind, line_id
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
from flowfabric.core.policy import parse_policy
from flowfabric.core.states import TERMINAL
from flowfabric.core.transition import clip
from flowfabric.errors import ReplaysExhausted


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
        if row is not None and row.state in TERMINAL and _is_exhausted(row):
            raise ReplaysExhausted(f"execution {row.id} was replayed {row.replay_count} times")


def _is_exhausted(row: Execution) -> bool:
    return row.replay_count >= parse_policy(row.policy).max_replay_count


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


def reopen(
    work: Round, line: Line, portion: Sequence[ExecutionId], view: View, opened: Opened
) -> bool:
    """Take these members back. False: there is only one, with more edges than fit; until the last
    of them its group stays as it is, so that it is found again."""
    mine = set(portion)
    entering = [
        edge
        for edge in view.edges
        if edge.downstream in mine
        and edge.upstream in opened.again
        and edge.state is not EdgeState.PENDING
    ]
    if len(entering) > opened.limit:
        entering.sort(key=lambda edge: _is_needed(work, edge))
        open_again(work, entering[: opened.limit], opened)
        return False
    # One that ran once more meanwhile, for the last time that it may, is left alone.
    able = {id for id in portion if not _is_left(work.head(id))}
    theirs = [edge for edge in entering if edge.downstream in able]
    open_again(work, theirs, opened, recount=view.edges)
    told = ends_of(view.lines)
    for id in portion:
        row = work.head(id)
        if row is not None and id in able:
            take_back(work, row, told, line.about)
    return True


def _is_left(row: Execution | None) -> bool:
    return row is None or (row.state in TERMINAL and _is_exhausted(row))


def _is_needed(work: Round, edge: Edge) -> bool:
    """Those by which the member is found to depend on its upstreams go last."""
    group = work.group(edge.group_key)
    return depends(edge, None if group is None else group.state)


def let_go(work: Round, line: Line, view: View) -> None:
    """Everything is taken back: the member waits for what it depends on itself, or runs."""
    work.finish(line)
    row = work.head(ExecutionId(line.execution))
    if row is None or row.state in TERMINAL or row.replay_count != line.generation:
        return
    open_hopeless(work, row.id, view.edges)
    if any(group.state is GroupState.PENDING for group in work.groups_of(row.id)):
        return
    transition = release(row, work.now_ms)
    if transition is not None:
        work.write(transition)
