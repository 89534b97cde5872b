"""What must be true of every flow at every moment, said about its records.

Each rule is a function from one flow to the sentences that say how it is broken. The rules are
written from what the columns mean, not with the functions that decide, so that a decision that is
wrong is found here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from flowfabric.core.flow.model import (
    NOT_PINNED,
    CancelPolicy,
    Edge,
    EdgeState,
    Flow,
    FlowState,
    Group,
    GroupKey,
    GroupState,
    Join,
    Line,
    LineKind,
    reopening_of,
)
from flowfabric.core.model import Execution
from flowfabric.core.states import RUNNABLE, TERMINAL, Outcome, Reason, State

_COUNTED = ("completed", "failed", "cancelled", "expired", "skipped")
_WENT_WRONG = (Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED)


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """All records of one flow, seen in one moment."""

    flow: Flow
    members: Sequence[Execution]
    edges: Sequence[Edge]
    groups: Sequence[Group]
    lines: Sequence[Line]


Rule = Callable[[Whole], Iterator[str]]


def broken_flow(whole: Whole) -> list[str]:
    """Every sentence about what is wrong; none for a flow as it should be."""
    return [said for rule in RULES for said in rule(whole)]


def _sizes(whole: Whole) -> Iterator[str]:
    if whole.flow.total != len(whole.members):
        yield f"has {len(whole.members)} members and says {whole.flow.total}"
    if whole.flow.edges != len(whole.edges):
        yield f"has {len(whole.edges)} edges and says {whole.flow.edges}"


def _counters(whole: Whole) -> Iterator[str]:
    """A member that ended is counted, or its line is still open; never both, never neither."""
    kinds = {LineKind.ENDED}
    untold = {(line.execution, line.generation) for line in whole.lines if line.kind in kinds}
    ends = Counter(
        str(row.state)
        for row in whole.members
        if row.state in TERMINAL and (row.id, row.replay_count) not in untold
    )
    for name in _COUNTED:
        if getattr(whole.flow, name) != ends[name]:
            yield f"{ends[name]} members are {name}, and {getattr(whole.flow, name)} are counted"


def _groups(whole: Whole) -> Iterator[str]:
    if reopening_of(whole.lines) is not None:
        return
    entering: dict[GroupKey, list[Edge]] = {group.key: [] for group in whole.groups}
    for edge in whole.edges:
        entering.setdefault(edge.group_key, []).append(edge)
    for group in whole.groups:
        edges = entering[group.key]
        met = [edge for edge in edges if edge.state is EdgeState.SATISFIED]
        lost = [edge for edge in edges if edge.state is EdgeState.IMPOSSIBLE]
        wrong = sum(edge.outcome in _WENT_WRONG for edge in lost)
        counts = (len(edges), len(met), wrong, len(lost) - wrong)
        said = (group.n, group.succeeded, group.failed, group.skipped)
        if said != counts:
            yield f"{group.key} counts {said}, its edges {counts}"
        need = {Join.ALL_OF: group.n, Join.ANY_OF: 1}.get(Join(group.join), group.k)
        if group.sealed and group.state is not _decided(group.n, len(met), len(lost), need):
            yield f"{group.key} is {group.state} with {counts}"
        if sum(edge.attempt != NOT_PINNED for edge in edges) > need:
            yield f"{group.key} passes on more than it needs"


def _decided(n: int, met: int, lost: int, need: int) -> GroupState:
    if met >= need:
        return GroupState.SATISFIED
    return GroupState.IMPOSSIBLE if n - lost < need else GroupState.PENDING


def _edges(whole: Whole) -> Iterator[str]:
    heads = {row.id: row for row in whole.members}
    for edge in whole.edges:
        upstream = heads.get(edge.upstream)
        is_resolved = edge.state is not EdgeState.PENDING
        # One that was opened again waits for the generation that a replay would begin.
        latest = -1 if upstream is None else upstream.replay_count + (not is_resolved)
        if edge.generation > latest:
            yield f"{edge.key} is of an end that is still to come"
        if is_resolved is (edge.resolved_ms is None) or is_resolved is (edge.outcome == "none"):
            yield f"{edge.key} is {edge.state}, {edge.outcome}, at {edge.resolved_ms}"
        if edge.attempt != NOT_PINNED and edge.state is not EdgeState.SATISFIED:
            yield f"{edge.key} passes on what it did not get"


def _held_back(whole: Whole) -> Iterator[str]:
    """Who can run has nothing to wait for, and who waits has."""
    holding = {LineKind.OPEN_FLOW, LineKind.REOPEN}
    if not whole.flow.is_open or any(line.kind in holding for line in whole.lines):
        return
    waits = {group.downstream for group in whole.groups if group.state is GroupState.PENDING}
    for row in whole.members:
        if row.state in RUNNABLE and row.deps_open is not (row.id in waits):
            yield f"{row.id} is {row.state}, deps_open={row.deps_open}, pending={row.id in waits}"


def _owed(whole: Whole) -> Iterator[str]:
    """A list, its flag and its line are there together."""
    kinds = {LineKind.CANCEL_SIBLINGS}
    open_lines = {(line.execution, line.about) for line in whole.lines if line.kind in kinds}
    for group in whole.groups:
        if group.cancel_owed is not bool(group.owed):
            yield f"{group.key} owes {group.owed!r} and says {group.cancel_owed}"
        if group.cancel_owed and (group.downstream, group.name) not in open_lines:
            yield f"{group.key} owes cancels, but nothing is queued to carry them out"


def _cancelled(whole: Whole) -> Iterator[str]:
    """Once its cancel has reached every member, nothing can start in a cancelled flow."""
    flow = whole.flow
    reaching = {LineKind.CANCEL_FLOW, LineKind.REOPEN}
    is_alone = flow.cancel_policy == CancelPolicy.FLOW_ONLY
    if flow.state is not FlowState.CANCELLED or is_alone:
        return
    if any(line.kind in reaching for line in whole.lines):
        return
    for row in whole.members:
        may_end = (row.state, row.reason) == (State.ACTIVE, Reason.CANCEL_ON_RETURN)
        if row.state not in TERMINAL and not may_end:
            yield f"{row.id} is {row.state} ({row.reason}), and nothing will cancel it"


RULES: tuple[Rule, ...] = (_sizes, _counters, _groups, _edges, _held_back, _owed, _cancelled)
