"""The one routine that ends an execution, whatever the road: complete, fail, cancel, expire,
reclaim cap. Records that an execution owns are never closed one by one; readers derive that they
are closed from how their owner ended.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from flowfabric.core.model import NO_ATTEMPT, Attempt, Execution, Value
from flowfabric.core.policy import retention_of
from flowfabric.core.states import (
    AttemptKind,
    AttemptLifecycle,
    AttemptState,
    Outcome,
    Reason,
    State,
)
from flowfabric.core.transition import LogLine

_STATE: dict[Outcome, State] = {
    Outcome.SUCCESS: State.COMPLETED,
    Outcome.FAILED: State.FAILED,
    Outcome.CANCELLED: State.CANCELLED,
    Outcome.EXPIRED: State.EXPIRED,
    Outcome.SKIPPED: State.SKIPPED,
}

_LIFECYCLE: dict[Outcome, AttemptLifecycle] = {
    Outcome.SUCCESS: AttemptLifecycle.ENDED_SUCCESS,
    Outcome.FAILED: AttemptLifecycle.ENDED_FAILURE,
    Outcome.CANCELLED: AttemptLifecycle.ENDED_CANCELLED,
    Outcome.EXPIRED: AttemptLifecycle.ENDED_FAILURE,
    Outcome.SKIPPED: AttemptLifecycle.ENDED_CANCELLED,
}


# Nothing waits for it, nobody holds it, and no timer runs.
_OVER: dict[str, Value] = {
    "reason": Reason.NONE,
    "lease_until_ms": None,
    "attempt_until_ms": None,
    "worker": "",
    "due_ms": None,
}


# Who asked for the cancel of a member because of its flow.
FLOW_CASCADE = "flow_cascade"


class Ending(NamedTuple):
    outcome: Outcome
    detail: str = ""
    category: str = ""


def ended(
    head: Execution, ending: Ending, now_ms: int, attempt_state: AttemptState
) -> dict[str, Value]:
    """The columns of an execution that is over, and when it may go; a member goes with its flow."""
    purge_ms = None
    if not head.flow:
        purge_ms = now_ms + retention_of(head.policy).kept_ms(ending.outcome)
    return {
        "state": _STATE[ending.outcome],
        "attempt_state": attempt_state,
        "outcome_detail": ending.detail,
        "outcome_category": ending.category,
        "ended_ms": now_ms,
        "updated_ms": now_ms,
        "purge_ms": purge_ms,
        **_OVER,
    }


def ended_from_outside(
    row: Execution, ending: Ending, now_ms: int
) -> tuple[dict[str, Value], Attempt | None]:
    """End what may be held by somebody: a lease that ends from outside raises the epoch."""
    if row.attempt == NO_ATTEMPT:
        patch, attempt = ended(row, ending, now_ms, row.attempt_state), None
    else:
        patch = ended(row, ending, now_ms, AttemptState.TERMINAL)
        attempt = _open_attempt(row, ending, now_ms)
    if row.state is State.ACTIVE:
        patch["epoch"] = row.epoch + 1
    return patch, attempt


def is_unwanted(row: Execution) -> bool:
    """Whether it may end, and is cancelled when it comes back unfinished."""
    return row.reason is Reason.CANCEL_ON_RETURN


def cancelled_on_return(row: Execution, now_ms: int) -> tuple[dict[str, Value], LogLine]:
    """It came back and is not tried again; why was written when that was decided."""
    ending = Ending(Outcome.CANCELLED, row.outcome_detail, row.outcome_category)
    line = LogLine("cancelled", {"reason": ending.detail, "source": FLOW_CASCADE})
    return ended(row, ending, now_ms, AttemptState.TERMINAL), line


def _open_attempt(row: Execution, ending: Ending, now_ms: int) -> Attempt | None:
    running = row.state is State.ACTIVE and row.attempt_state is AttemptState.RUNNING
    interrupted = row.next_kind is AttemptKind.RESUME and not running
    if not running and not interrupted:
        return None
    if interrupted:
        # Nobody works on it now: who did last is in its record already.
        row = msgspec.structs.replace(row, worker="", epoch=0)
    return attempt_of(
        row, _LIFECYCLE[ending.outcome], now_ms, detail=ending.detail, category=ending.category
    )


def attempt_of(
    head: Execution,
    lifecycle: AttemptLifecycle,
    ended_ms: int | None,
    *,
    detail: str = "",
    category: str = "",
    result: bytes | None = None,
) -> Attempt:
    """The record of the attempt that this head runs, or ran last."""
    return Attempt(
        execution=head.id,
        attempt=head.attempt,
        kind=head.attempt_kind,
        lifecycle=lifecycle,
        worker=head.worker,
        epoch=head.epoch,
        started_ms=head.attempt_started_ms,
        ended_ms=ended_ms,
        detail=detail,
        category=category,
        result=result,
    )
