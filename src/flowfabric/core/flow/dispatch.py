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
from flowfabric.core.states import SHAPE, TERMINAL, Outcome, State
from flowfabric.core.transition import Transition

MISSING = "missing"

_PENDING, _SATISFIED, _IMPOSSIBLE = (
    GroupState.PENDING,
    GroupState.SATISFIED,
    GroupState.IMPOSSIBLE,
)
_EDGE_SATISFIED, _SKIPPED = EdgeState.SATISFIED, State.SKIPPED


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
    """A line that is acted on, its member and how that ended, every edge that leaves it, and
    those that can be."""

    line: Line
    head: Execution
    outcome: Outcome
    every: Sequence[Edge]
    edges: Sequence[Edge]


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
            every: Sequence[Edge] = leaving.get(line.execution, ())
            edges = [edge for edge in every if edge.downstream not in lost] if lost else every
            acted.append(Acted(line, head, SHAPE[head.state].outcome, every, edges))
    decided, strange = _resolve(work, acted)
    skipped = _move(work, decided)
    dangling: list[Edge] = []
    for act in acted:
        line = act.line
        nowhere = [edge for edge in act.edges if work.head(edge.downstream) is None]
        dangling += nowhere
        skips = sum(edge.downstream in skipped for edge in act.edges) if skipped else 0
        advanced = Advanced(len(act.edges) - len(nowhere), skips)
        is_left = len(act.edges) < len(act.every) or line.execution in broken
        if is_left:
            work.put_back(line)
        elif line.execution != frontier:
            _finish(work, act, advanced)
        seen = len(act.every) + broken.get(line.execution, 0)
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
    """Answers the groups that are decided now, and those that nobody here understands."""
    touched: dict[GroupKey, list[tuple[Edge, Acted]]] = {}
    for act in acted:
        for edge in act.edges:
            touched.setdefault(edge.group_key, []).append((edge, act))
    decided: list[Group] = []
    strange: list[Group] = []
    for key, ends in touched.items():
        before = work.group(key)
        after = _count(work, before, ends)
        if after is None or before is None:
            continue
        if after.state is not before.state:
            decided.append(after)
        elif not is_understood(after):
            strange.append(after)
    return decided, strange


def _count(work: Round, group: Group | None, ends: Sequence[tuple[Edge, Acted]]) -> Group | None:
    """Resolve the edges of one group, move its counters, judge it. No group, no more than that."""
    most = _passed_at_most(group)
    moved: dict[str, int] = {}
    for edge, act in sorted(ends, key=_place) if len(ends) > 1 else ends:
        outcome = act.outcome
        state = verdict(edge.kind, outcome)
        name = bucket(state, outcome)
        before = moved[name] if name in moved else getattr(group, name, 0)
        is_passed = state is _EDGE_SATISFIED and before < most
        moved[name] = before + 1
        work.resolved.append(
            Resolution(
                downstream=edge.downstream,
                group=edge.group,
                upstream=edge.upstream,
                state=state,
                generation=act.line.generation,
                attempt=pin(act.head) if is_passed else NOT_PINNED,
                outcome=outcome,
                resolved_ms=work.now_ms,
            )
        )
    if group is None:
        return None
    return decide(work, msgspec.structs.replace(group, **moved))


def _place(end: tuple[Edge, Acted]) -> int:
    return end[0].position


def _passed_at_most(group: Group | None) -> int:
    """How many successes are passed on in all: later ones are counted and not needed."""
    if group is None or group.state is not _PENDING:
        return 0
    need = needed(group)
    return group.succeeded + group.n if need is None else need


def decide(work: Round, group: Group) -> Group:
    """Judge a group whose counters, edges or seal have changed."""
    state = judge(group)
    if state is not group.state:
        group = msgspec.structs.replace(group, state=state, decided_ms=work.now_ms)
    work.put(group)
    return group


def _move(work: Round, decided: Iterable[Group]) -> Collection[ExecutionId]:
    """Move those who waited for these groups; answers whom that skips."""
    skipped: set[ExecutionId] = set()
    for group in decided:
        if move(work, group.downstream) is _SKIPPED:
            skipped.add(group.downstream)
    return skipped


def move(work: Round, downstream: ExecutionId) -> Value:
    """Release the member when all its groups are satisfied, skip it when one cannot be. Answers
    the state that this round brings it to, if it is another one."""
    head = work.head(downstream)
    if head is None:
        return None
    together = _together(work.groups_of(downstream))
    if together is _PENDING:
        return None
    transition = set_free(work, head) if together is _SATISFIED else skip(head, work.now_ms)
    if transition is not None:
        work.write(transition)
    change = work.transitions.get(downstream)
    return None if change is None else change.patch.get("state")


def _together(groups: Sequence[Group]) -> GroupState:
    """What all groups of a member are to it: satisfied, impossible, or still pending."""
    satisfied = 0
    for group in groups:
        if group.state is _SATISFIED:
            satisfied += 1
        elif group.state is _IMPOSSIBLE and group.on_impossible == OnImpossible.SKIP:
            return _IMPOSSIBLE
    return _SATISFIED if 0 < satisfied == len(groups) else _PENDING


def set_free(work: Round, head: Execution) -> Transition | None:
    """Nothing holds it back any more. In a cancelled flow that is its end: who began now would
    run although the flow is over."""
    released = release(head, work.now_ms)
    if released is None:
        return None
    return owed_cancel(work.flow, head, work.now_ms) or released


def _finish(work: Round, act: Acted, advanced: Advanced) -> None:
    """The line goes with its last edge; until then the edges remember how far it came."""
    line = act.line
    work.finish(line, act.outcome)
    if not work.has_lines:
        return
    detail = {
        "edges": advanced.edges,
        "skipped": advanced.skipped,
        "ended_ms": line.at_ms,
        "claimed_ms": work.claimed_ms,
    }
    work.notes.append(Note(ExecutionId(line.execution), "dispatched", detail))
