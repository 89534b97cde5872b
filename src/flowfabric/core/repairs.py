"""What a record must say about its own times, and the change that sets it right: a timer that is
not later than what it is for, and, of what is over, when it may go.

Nothing of this happens as long as every write is whole; it is the net under stores that were
restored, edited or damaged. A repair only names a time, and whoever serves it does the rest.
"""

from __future__ import annotations

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.core.flow.settling import COUNTERS, purge_ms_of
from flowfabric.core.model import Execution, Value, Writer
from flowfabric.core.policy import retention_of
from flowfabric.core.states import SHAPE, TERMINAL, State
from flowfabric.core.timers import is_unarmed, rearm
from flowfabric.core.transition import Seen, Transition


def repair(row: Execution, now_ms: int) -> Transition | None:
    """What is wrong with the times of this execution, put right; None when nothing is."""
    if row.state in TERMINAL:
        return _patched(row, {"purge_ms": _purge_ms(row)}) if _stays_for_ever(row) else None
    if row.parked:
        return None
    # Nobody can finish it without its token, so nobody loses anything.
    is_unusable = row.lease_until_ms is None or not row.lease_token
    if row.state is State.ACTIVE and is_unusable:
        return _patched(row, {"lease_until_ms": now_ms, "due_ms": now_ms})
    if row.state is State.DELAYED and row.not_before_ms is None:
        return _patched(row, {"not_before_ms": now_ms, "due_ms": now_ms})
    return rearm(row) if is_unarmed(row) else None


def _stays_for_ever(row: Execution) -> bool:
    """A member goes with its flow and needs no time of its own."""
    return not row.flow and row.purge_ms is None


def _purge_ms(row: Execution) -> int:
    ended_ms = row.updated_ms if row.ended_ms is None else row.ended_ms
    return ended_ms + retention_of(row.policy).kept_ms(SHAPE[row.state].outcome)


def _patched(row: Execution, patch: dict[str, Value]) -> Transition:
    return Transition(row.id, Seen(row.rev, row.state), Writer.TIMEKEEPER, patch)


def repair_flow(flow: Flow, now_ms: int) -> FlowPatch | None:
    """The same for a flow: its deadline, and when it may go."""
    if flow.settled and flow.purge_ms is None:
        ends = {outcome: getattr(flow, name) for outcome, name in COUNTERS.items()}
        return FlowPatch(flow.id, flow.rev, {"purge_ms": purge_ms_of(flow, ends, flow.updated_ms)})
    is_watched = flow.state is FlowState.OPEN and not flow.settled and not flow.parked
    if is_watched and flow.deadline_ms is not None and _is_unarmed(flow, flow.deadline_ms, now_ms):
        return FlowPatch(flow.id, flow.rev, {"due_ms": flow.deadline_ms})
    return None


def _is_unarmed(flow: Flow, deadline_ms: int, now_ms: int) -> bool:
    """A deadline that has passed was served: then there is no timer any more."""
    if flow.due_ms is None:
        return deadline_ms > now_ms
    return flow.due_ms > deadline_ms
