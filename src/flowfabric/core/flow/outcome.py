"""What came of a flow as a whole: whether everything that did not succeed was absorbed.

The derived state counts: one cancelled loser of a race makes it `failed`. The outcome judges. A
member that failed, was cancelled or expired is absorbed when one of these holds:

    it was cancelled as a superfluous upstream of a decided join
    a failure branch of it (`node.failed`) was not skipped: like `except`, it deals with the failure
    members want its success, and each of them went on without it: was not skipped, or was skipped
    and is absorbed itself, because each member that wanted its success went on, and so on down

Waiting for the end (`node.ended`) is like `finally`: it neither absorbs nor keeps from it. Members
that went on but ended badly are judged themselves. An edge that an earlier life of its upstream
resolved absorbs nothing of a later one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from flowfabric.core.flow.model import CancelReason, Edge, EdgeKind, EdgeState
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution
from flowfabric.core.operator import Source
from flowfabric.core.states import State

_WANTS = (EdgeKind.SUCCESS_ONLY, EdgeKind.COMPLETION)


class FlowOutcome(StrEnum):
    """`pending` until every member has ended."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


def is_loser(row: Execution) -> bool:
    """Whether it was cancelled because a decided join did not need it any more."""
    is_cascade = row.outcome_category == Source.FLOW_CASCADE
    return row.state is State.CANCELLED and is_cascade and row.outcome_detail in tuple(CancelReason)


def is_absorbed(
    bad: Collection[Execution], skipped: Collection[ExecutionId], edges: Iterable[Edge]
) -> bool:
    """`bad`: every member that failed, was cancelled or expired; `skipped`: every one that was."""
    rows = {row.id: row for row in bad if not is_loser(row)}
    leaving: dict[ExecutionId, list[Edge]] = {}
    for edge in edges:
        if edge.upstream in rows or edge.upstream in skipped:
            leaving.setdefault(edge.upstream, []).append(edge)
    harmed = _harmed(skipped, leaving)
    return all(_is_absorbed(row, leaving.get(row.id, []), skipped, harmed) for row in rows.values())


def _harmed(
    skipped: Collection[ExecutionId], leaving: Mapping[ExecutionId, list[Edge]]
) -> set[ExecutionId]:
    """Skipped members that something is missing for: nobody wanted them and went on, or one that
    wanted them is missing itself."""
    entering: dict[ExecutionId, list[ExecutionId]] = {}
    queue: list[ExecutionId] = []
    for id in skipped:
        wants = [edge for edge in leaving.get(id, []) if edge.kind in _WANTS]
        if not wants:
            queue.append(id)
        for edge in wants:
            entering.setdefault(edge.downstream, []).append(id)
    found = set(queue)
    for id in queue:
        for upstream in entering.get(id, []):
            if upstream not in found:
                found.add(upstream)
                queue.append(upstream)
    return found


def _is_absorbed(
    row: Execution,
    leaving: Iterable[Edge],
    skipped: Collection[ExecutionId],
    harmed: Collection[ExecutionId],
) -> bool:
    mine = [edge for edge in leaving if _is_about(edge, row)]
    if any(edge.kind is EdgeKind.FAILURE and edge.downstream not in skipped for edge in mine):
        return True
    wants = [edge for edge in mine if edge.kind in _WANTS]
    return bool(wants) and all(edge.downstream not in harmed for edge in wants)


def _is_about(edge: Edge, row: Execution) -> bool:
    """Whether it was this life of its upstream that resolved the edge, or does so now."""
    return edge.state is EdgeState.PENDING or edge.generation == row.replay_count
