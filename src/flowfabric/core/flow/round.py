"""One round of one flow: what the decisions of a dispatch gather before they become one commit.

A round knows the flow as it was seen and answers every question about its groups with what the
round has made of them so far, so that decisions of one commit see each other.
"""

from __future__ import annotations

import msgspec

from flowfabric.core.flow.changes import FlowPatch, Note, Resolution
from flowfabric.core.flow.model import (
    Edge,
    Flow,
    FlowState,
    Group,
    GroupKey,
    Line,
    LineKind,
    line_id,
)
from flowfabric.core.flow.outcome import FlowOutcome
from flowfabric.core.flow.settling import BAD, COUNTERS, settled
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Submission, Value
from flowfabric.core.states import Outcome
from flowfabric.core.timers import pause_after
from flowfabric.core.transition import Changeset, Transition


class Round:
    """Gathers; decides nothing. `changeset` is all of it under the flow's `rev`.

    Without `has_lines` the ends that it is about are written by itself, and never were lines.
    """

    def __init__(
        self, flow: Flow, now_ms: int, claimed_ms: int | None = None, *, has_lines: bool = True
    ) -> None:
        self.flow = flow
        self.has_lines = has_lines
        self.now_ms = now_ms
        self.claimed_ms = now_ms if claimed_ms is None else claimed_ms
        self.patch: dict[str, Value] = {}
        self.counted: dict[str, int] = {}
        # How many members of the flow have ended with this round.
        self.ended = flow.ended
        self.members: list[Submission] = []
        self.edges: list[Edge] = []
        self.resolved: list[Resolution] = []
        self.groups: dict[GroupKey, Group] = {}
        self.transitions: dict[ExecutionId, Transition] = {}
        self.lines: list[Line] = []
        self.done: list[Line] = []
        self.notes: list[Note] = []
        self.outcome = FlowOutcome.PENDING
        self._groups: dict[ExecutionId, dict[str, Group]] = {}
        self._heads: dict[ExecutionId, Execution] = {}

    def look(self, view: View) -> None:
        """More of the flow was read."""
        for group in view.groups:
            if not self.groups or group.key not in self.groups:
                self._groups.setdefault(group.downstream, {})[group.name] = group
        self._heads |= view.heads

    def group(self, key: GroupKey) -> Group | None:
        return self._groups.get(key.downstream, {}).get(key.name)

    def groups_of(self, downstream: ExecutionId) -> list[Group]:
        """Every group of a downstream, as this round has made them."""
        return list(self._groups.get(downstream, {}).values())

    def put(self, group: Group) -> None:
        """Write a group, new or not."""
        self.groups[group.key] = group
        self._groups.setdefault(group.downstream, {})[group.name] = group

    def head(self, id: ExecutionId) -> Execution | None:
        return self._heads.get(id)

    def write(self, transition: Transition) -> None:
        """Change a member, once; an end goes before whatever else was decided about it."""
        is_end = transition.line is not None and not self.ends(transition.id)
        if is_end or transition.id not in self.transitions:
            self.transitions[transition.id] = transition

    def ends(self, id: ExecutionId) -> bool:
        """Whether this round ends the member."""
        change = self.transitions.get(id)
        return change is not None and change.line is not None

    def finish(self, line: Line, outcome: Outcome | None = None) -> None:
        """The line is done; with an outcome, its member is counted as ended."""
        self.done.append(line)
        if outcome is not None:
            self.count(outcome, 1)

    def count(self, outcome: Outcome, by: int) -> None:
        """So many more members have ended in this way, or fewer."""
        name = COUNTERS[outcome]
        self.counted[name] = self.counted.get(name, 0) + by
        self.ended += by

    def put_back(self, line: Line) -> None:
        """It cannot be done now: later again, further away each time."""
        failures = line.failures + 1
        later = msgspec.structs.replace(
            line, failures=failures, next_try_ms=self.now_ms + pause_after(failures)
        )
        self.lines.append(later)

    def owe(self, kind: LineKind, execution: str, about: str = "") -> None:
        """Leave something to be done, for the next round."""
        self.lines.append(
            Line(
                flow=self.flow.id,
                at_ms=self.now_ms,
                id=line_id(kind, execution, 0, about),
                kind=kind,
                execution=execution,
                about=about,
            )
        )

    @property
    def leaves_work(self) -> bool:
        """Whether this round itself makes lines that can be done at once."""
        made = [t.line for t in self.transitions.values() if t.line is not None]
        return bool(made) or any(line.next_try_ms <= self.now_ms for line in self.lines)

    def _settled(self) -> dict[str, Value]:
        """What follows if every member has ended with this round, or one is alive again."""
        flow = self.flow
        if not self.counted and "total" not in self.patch:
            return {}
        total = self._total
        if self.ended != total and not flow.settled:
            return {}
        return settled(flow, self._ends(), total, self.now_ms, outcome=self.outcome)

    @property
    def is_to_be_judged(self) -> bool:
        """Whether the flow settles with this round, and not everything in it succeeded."""
        if not self.counted or self.ended != self._total:
            return False
        ends = self._ends()
        return self.flow.state is FlowState.OPEN and any(ends[each] for each in BAD)

    @property
    def _total(self) -> int:
        return int(self.patch.get("total") or self.flow.total)

    def _ends(self) -> dict[Outcome, int]:
        return {
            outcome: getattr(self.flow, name) + self.counted.get(name, 0)
            for outcome, name in COUNTERS.items()
        }

    def _done(self) -> list[Line]:
        """What is done and owed again at the same moment stays."""
        owed = {(line.at_ms, line.id) for line in self.lines}
        return (
            [line for line in self.done if (line.at_ms, line.id) not in owed] if owed else self.done
        )

    def changeset(self, *, busy_until_ms: int = 0) -> Changeset:
        flow = self.flow
        patch: dict[str, Value] = {"updated_ms": self.now_ms, **self.patch}
        for name, moved in self.counted.items():
            patch[name] = getattr(flow, name) + moved
        if busy_until_ms != flow.busy_until_ms:
            patch["busy_until_ms"] = busy_until_ms
        patch |= self._settled()
        if flow.failures:
            patch |= {"failures": 0, "next_try_ms": 0, "parked": ""}
        return Changeset(
            transitions=list(self.transitions.values()),
            flows=[FlowPatch(flow.id, flow.rev, patch)],
            members=self.members,
            edges=self.edges,
            resolved=self.resolved,
            groups=list(self.groups.values()),
            lines=self.lines,
            done=self._done() if self.has_lines else (),
            notes=self.notes,
        )
