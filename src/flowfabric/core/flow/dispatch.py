"""What the ends of members mean for those that wait for them: one work, one commit.

Repeating is harmless. An edge is resolved once and remembers by which generation; a line whose
generation or end is no longer the upstream's is superseded; a group is decided once, and later
ends only move its counters. Members that have ended are never touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from flowfabric.core.flow.cancel import owed_cancel
from flowfabric.core.flow.changes import Note, Resolution
from flowfabric.core.flow.edges import bucket, outcome_of, pin, verdict
from flowfabric.core.flow.join import is_understood, judge, needed
from flowfabric.core.flow.members import release, skip
from flowfabric.core.flow.model import (
    NOT_PINNED,
    Edge,
    EdgeState,
    Group,
    GroupKey,
    GroupState,
    Line,
    OnImpossible,
)
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Value
from flowfabric.core.states import SHAPE, TERMINAL, State
from flowfabric.core.transition import Transition

MISSING = "missing"


class Advanced(msgspec.Struct, frozen=True, gc=False):
    """The line was acted on: so many edges follow from it, so many members were skipped."""

    edges: int
    skipped: int = 0


class NoOp(msgspec.Struct, frozen=True, gc=False):
    """Nothing follows from the line."""

    reason: str


class Answer(msgspec.Struct, frozen=True, gc=False):
    """`edges` were seen to leave the member; `goes_on` when the next round sees more of them."""

    line: Line
    outcome: Advanced | NoOp
    edges: int = 0
    goes_on: bool = False


class Ends(msgspec.Struct, frozen=True, gc=False):
    """What a round made of its lines: `decided` groups, those that nobody here understands, and
    edges whose downstream is not there."""

    answers: list[Answer]
    decided: list[Group]
    strange: list[Group]
    dangling: list[Edge]


class Acted(msgspec.Struct, frozen=True, gc=False):
    """A line that is acted on, every edge that leaves its member, and those that can be."""

    line: Line
    every: list[Edge]
    edges: list[Edge]


def on_ends(work: Round, lines: Sequence[Line], view: View, limit: int) -> Ends:
    """Resolve the edges that leave these members, judge their groups, move those that wait."""
    work.look(view)
    broken: Mapping[str, int] = {}
    lost: Collection[str] = ()
    if view.unreadable:
        broken = _broken(view, {line.execution for line in lines})
        lost = {each.name.split(" ")[0] for each in view.unreadable if each.kind != "edge"}
    frontier = _frontier(view.edges, broken, limit)
    leaving = _by_upstream(view.edges)
    answers: list[Answer] = []
    acted: list[Acted] = []
    for line in lines:
        head = work.head(ExecutionId(line.execution))
        if head is None and line.execution in lost:
            work.put_back(line)
            answers.append(Answer(line, NoOp("unreadable")))
        elif head is None or is_superseded(line, head):
            work.finish(line)
            answers.append(Answer(line, NoOp("superseded" if head else MISSING)))
        elif frontier is None or line.execution <= frontier:
            every = leaving.get(line.execution, [])
            edges = [edge for edge in every if edge.downstream not in lost] if lost else every
            acted.append(Acted(line, every, edges))
    decided, strange = _resolve(work, acted)
    waited = dict.fromkeys([group.downstream for group in decided])
    skipped = {id for id in waited if move(work, id) is State.SKIPPED}
    dangling: list[Edge] = []
    for act in acted:
        line, every, edges = act.line, act.every, act.edges
        nowhere = [edge for edge in edges if work.head(edge.downstream) is None]
        dangling += nowhere
        skips = sum(edge.downstream in skipped for edge in edges) if skipped else 0
        advanced = Advanced(len(edges) - len(nowhere), skips)
        is_left = len(edges) < len(every) or line.execution in broken
        if is_left:
            work.put_back(line)
        elif line.execution != frontier:
            _finish(work, line, advanced)
        seen = len(every) + broken.get(line.execution, 0)
        goes_on = line.execution == frontier and not is_left
        answers.append(Answer(line, advanced, seen, goes_on))
    return Ends(answers, decided, strange, dangling)


def _broken(view: View, asked: Collection[str]) -> dict[str, int]:
    """How many edges that were asked for cannot be read, by upstream: they were looked at, too."""
    names = (each.name.split(" ")[0] for each in view.unreadable if each.kind == "edge")
    return Counter(name for name in names if name in asked)


def _by_upstream(edges: Iterable[Edge]) -> dict[str, list[Edge]]:
    found: dict[str, list[Edge]] = {}
    for edge in edges:
        found.setdefault(edge.upstream, []).append(edge)
    return found


def is_superseded(line: Line, head: Execution) -> bool:
    """Whether the member has gone on since: it was replayed, or ended in another way."""
    if head.state not in TERMINAL or head.replay_count != line.generation:
        return True
    return SHAPE[head.state].outcome != outcome_of(line.about)


def _frontier(edges: Sequence[Edge], broken: Mapping[str, int], limit: int) -> str | None:
    """The upstream in whose edges the look ended; None if it saw all there are."""
    if len(edges) + sum(broken.values()) < limit:
        return None
    return max([*broken, *(edge.upstream for edge in edges[-1:])])


def _resolve(work: Round, acted: Iterable[Acted]) -> tuple[list[Group], list[Group]]:
    touched: dict[GroupKey, list[tuple[Edge, Line]]] = {}
    for act in acted:
        for edge in act.edges:
            touched.setdefault(edge.group_key, []).append((edge, act.line))
    decided: list[Group] = []
    strange: list[Group] = []
    for key, ends in touched.items():
        before = work.group(key)
        after = _count(work, before, ends)
        if after is None or before is None:
            continue
        if not is_understood(after):
            strange.append(after)
        elif after.state is not before.state:
            decided.append(after)
    return decided, strange


def _count(work: Round, group: Group | None, ends: Sequence[tuple[Edge, Line]]) -> Group | None:
    """Resolve the edges of one group, move its counters, judge it. No group, no more than that."""
    room = _room(group)
    counts: dict[str, int] = {}
    for edge, line in sorted(ends, key=_place) if len(ends) > 1 else ends:
        outcome = outcome_of(line.about)
        state = verdict(edge.kind, outcome)
        name = bucket(state, outcome)
        before = counts.get(name, 0)
        is_passed = state is EdgeState.SATISFIED and before < room
        attempt = pin(work.head(edge.upstream)) if is_passed else NOT_PINNED
        counts[name] = before + 1
        work.resolved.append(
            Resolution(
                downstream=edge.downstream,
                group=edge.group,
                upstream=edge.upstream,
                state=state,
                generation=line.generation,
                attempt=attempt,
                outcome=outcome,
                resolved_ms=work.now_ms,
            )
        )
    if group is None:
        return None
    moved = {name: getattr(group, name) + count for name, count in counts.items()}
    return decide(work, msgspec.structs.replace(group, **moved))


def _place(end: tuple[Edge, Line]) -> int:
    return end[0].position


def _room(group: Group | None) -> int:
    """How many more successes are passed on: later ones are counted and not needed."""
    if group is None or group.state is not GroupState.PENDING:
        return 0
    need = needed(group)
    return group.n if need is None else need - group.succeeded


def decide(work: Round, group: Group) -> Group:
    """Judge a group whose counters, edges or seal have changed."""
    state = judge(group)
    if state is not group.state:
        group = msgspec.structs.replace(group, state=state, decided_ms=work.now_ms)
    work.groups[group.key] = group
    return group


def move(work: Round, downstream: ExecutionId) -> Value:
    """Release the member when all its groups are satisfied, skip it when one cannot be. Answers
    the state that this round brings it to, if it is another one."""
    head = work.head(downstream)
    if head is None:
        return None
    transition = None
    match _together(work.groups_of(downstream)):
        case GroupState.IMPOSSIBLE:
            transition = skip(head, work.now_ms)
        case GroupState.SATISFIED:
            transition = set_free(work, head)
        case _:
            return None
    if transition is not None:
        work.write(transition)
    change = work.transitions.get(downstream)
    return None if change is None else change.patch.get("state")


def _together(groups: Sequence[Group]) -> GroupState:
    """What all groups of a member are to it."""
    states = {group.state for group in groups}
    if GroupState.IMPOSSIBLE in states and any(map(_skips, groups)):
        return GroupState.IMPOSSIBLE
    return GroupState.SATISFIED if states == {GroupState.SATISFIED} else GroupState.PENDING


def _skips(group: Group) -> bool:
    return group.state is GroupState.IMPOSSIBLE and group.on_impossible == OnImpossible.SKIP


def set_free(work: Round, head: Execution) -> Transition | None:
    """Nothing holds it back any more. In a cancelled flow that is its end: who began now would
    run although the flow is over."""
    released = release(head, work.now_ms)
    if released is None:
        return None
    return owed_cancel(work.flow, head, work.now_ms) or released


def _finish(work: Round, line: Line, advanced: Advanced) -> None:
    """The line goes with its last edge; until then the edges remember how far it came."""
    work.finish(line, outcome_of(line.about))
    if not work.has_lines:
        return
    detail = {
        "edges": advanced.edges,
        "skipped": advanced.skipped,
        "ended_ms": line.at_ms,
        "claimed_ms": work.claimed_ms,
    }
    work.notes.append(Note(ExecutionId(line.execution), "dispatched", detail))
