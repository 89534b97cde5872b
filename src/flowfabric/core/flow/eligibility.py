"""Whether a member may run, as far as the flow around it is concerned.

Ends of upstreams count from the moment they happened, also while nobody has dispatched them yet.
Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from flowfabric.core.flow.edges import bucket, is_answered, verdict
from flowfabric.core.flow.join import judge
from flowfabric.core.flow.model import Edge, EdgeState, Group, GroupState, LineKind, OnImpossible
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution
from flowfabric.core.states import RUNNABLE, SHAPE, TERMINAL, Reason


class Standing(StrEnum):
    """The answer. Time, lanes and budgets may still keep an eligible one waiting."""

    ELIGIBLE = "eligible"
    NOT_FOUND = "not_found"
    NOT_RUNNABLE = "not_runnable"  # somebody works on it, or it waits for an answer from outside
    OWNED = "owned"  # it is promised to somebody who has not begun
    TERMINAL = "terminal"
    BLOCKED = "blocked_by_dependencies"
    IMPOSSIBLE = "impossible"  # what it needs cannot happen any more


class Waits(NamedTuple):
    """What a member waits for: how many upstreams there are, and which have not ended.

    `to_replay`: those of them that have ended and must be replayed, or it waits for ever.
    `is_held`: those that depended on it are taken back first.
    """

    standing: Standing
    upstreams: int = 0
    unfinished: tuple[ExecutionId, ...] = ()
    to_replay: tuple[ExecutionId, ...] = ()
    is_held: bool = False


def standing_of(row: Execution | None) -> Standing:
    """From the row alone: what it depends on is open, or it is not."""
    if row is None:
        return Standing.NOT_FOUND
    if row.state in TERMINAL:
        return Standing.TERMINAL
    if row.reason is Reason.GRANTED:
        return Standing.OWNED
    if row.state not in RUNNABLE:
        return Standing.NOT_RUNNABLE
    return Standing.BLOCKED if row.deps_open else Standing.ELIGIBLE


def waits_of(row: Execution, view: View) -> Waits:
    """From the row and what enters it: edges, their upstreams, and the groups they belong to."""
    unfinished = tuple(
        dict.fromkeys(edge.upstream for edge in view.edges if not _has_ended(edge, view.heads))
    )
    upstreams = len({edge.upstream for edge in view.edges})
    found = standing_of(row)
    if found is Standing.BLOCKED and view.groups:
        found = _judged(view.groups, view.edges, view.heads)
    is_held = any(line.kind is LineKind.REOPEN and line.execution == row.id for line in view.lines)
    if is_held:
        found = Standing.BLOCKED
    stuck = _to_replay(view) if found is Standing.BLOCKED else ()
    return Waits(found, upstreams, unfinished, stuck, is_held)


def _to_replay(view: View) -> tuple[ExecutionId, ...]:
    """Upstreams that had their say before the member was replayed, and without whose next one a
    group of it cannot be satisfied."""
    found: list[ExecutionId] = []
    for group in view.groups:
        over = [
            edge.upstream
            for edge in view.edges
            if edge.group_key == group.key and _is_over(edge, view.heads)
        ]
        without = msgspec.structs.replace(group, failed=group.failed + len(over))
        if over and judge(without) is GroupState.IMPOSSIBLE:
            found += over
    return tuple(dict.fromkeys(found))


def _is_over(edge: Edge, heads: Mapping[ExecutionId, Execution]) -> bool:
    """The edge waits for an end that only a replay of its upstream can bring."""
    head = heads.get(edge.upstream)
    is_pending = edge.state is EdgeState.PENDING
    return (
        is_pending and head is not None and head.state in TERMINAL and not is_answered(edge, head)
    )


def _has_ended(edge: Edge, heads: Mapping[ExecutionId, Execution]) -> bool:
    head = heads.get(edge.upstream)
    return edge.state is not EdgeState.PENDING or (head is not None and is_answered(edge, head))


def _judged(
    groups: Iterable[Group], edges: Sequence[Edge], heads: Mapping[ExecutionId, Execution]
) -> Standing:
    states = [
        judge(_counted(group, [edge for edge in edges if edge.group_key == group.key], heads))
        for group in groups
        if group.on_impossible == OnImpossible.SKIP
    ]
    if GroupState.IMPOSSIBLE in states:
        return Standing.IMPOSSIBLE
    is_free = bool(states) and all(state is GroupState.SATISFIED for state in states)
    return Standing.ELIGIBLE if is_free else Standing.BLOCKED


def _counted(group: Group, edges: Iterable[Edge], heads: Mapping[ExecutionId, Execution]) -> Group:
    """The group as it will be when the ends that have happened are dispatched."""
    moved: dict[str, int] = {}
    for edge in edges:
        head = heads.get(edge.upstream)
        if edge.state is EdgeState.PENDING and head is not None and is_answered(edge, head):
            outcome = SHAPE[head.state].outcome
            name = bucket(verdict(edge.kind, outcome), outcome)
            moved[name] = moved.get(name, getattr(group, name)) + 1
    return msgspec.structs.replace(group, **moved)
