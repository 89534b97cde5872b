"""The promise: nothing that is not over lies for ever.

Every execution that has not ended can be claimed, is held by a live lease, or names what will wake
it. Here is said of one row, and of what it depends on, how that is not so; nothing is repaired.
"""

from __future__ import annotations

from flowfabric.core.explain import explain
from flowfabric.core.flow.edges import is_answered
from flowfabric.core.flow.model import EdgeState
from flowfabric.core.flow.views import View
from flowfabric.core.model import Execution
from flowfabric.core.states import CLAIMABLE, TERMINAL, Reason, State
from flowfabric.core.timers import is_unarmed, next_due


def broken_promise(row: Execution, now_ms: int) -> str:
    """Why the row itself will never be woken; empty when it will be. Parked is another matter."""
    if row.state in TERMINAL or row.state in CLAIMABLE or row.parked:
        return ""
    missing = missing_of_lease(row)
    if missing:
        return f"active without {', '.join(missing)}: its lease is incomplete"
    said = explain(row, now_ms)
    if said.wakes in ("timer", "lease") and said.until_ms is None:
        return f"{row.state} without a timer to end it"
    if is_unarmed(row):
        return f"{row.state}: next due at {next_due(row)}, but its timer is set to {row.due_ms}"
    return ""


def missing_of_lease(row: Execution) -> list[str]:
    """The columns that every lease has and that this one lacks."""
    if row.state is not State.ACTIVE:
        return []
    parts: dict[str, object] = {
        "lease_token": row.lease_token,
        "worker": row.worker,
        "lease_until_ms": row.lease_until_ms,
        "epoch": row.epoch,
    }
    if row.reason is not Reason.GRANTED:
        parts["attempt_started_ms"] = row.attempt_started_ms
    return [name for name, value in parts.items() if not value]


def broken_wait(row: Execution, view: View) -> str:
    """Why none of the executions it depends on will release it; empty when one can."""
    if row.state is not State.BLOCKED_DEPENDENCIES:
        return ""
    if view.flow is None:
        return "is blocked on dependencies, but its flow is missing"
    # A staged flow is opened or removed as a whole, and an open line tells of what is to be done.
    if not view.flow.is_open or view.lines:
        return ""
    if any(group.downstream == row.id and not group.sealed for group in view.groups):
        return ""
    for edge in view.edges:
        upstream = view.heads.get(edge.upstream)
        is_open = upstream is not None and not is_answered(edge, upstream)
        if edge.downstream == row.id and edge.state is EdgeState.PENDING and is_open:
            return ""
    return "all dependencies finished and nothing is queued to release it"
