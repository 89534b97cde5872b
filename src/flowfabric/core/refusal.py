"""Why a guarded write was refused, in the documented order, or that it had happened already.

    not there > not active > revoked > expired > somebody else's

A refusal that shows our own token and the effect we wanted is success: the first reply was lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowfabric.core.model import Execution, Lease, Value
from flowfabric.core.states import (
    CLAIMABLE,
    RUNNABLE,
    SHAPE,
    AttemptKind,
    AttemptState,
    Phase,
    Reason,
    State,
)
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    FlowFabricError,
    LeaseExpired,
    LeaseRevoked,
    StaleLease,
)


def not_found(id: str) -> ExecutionNotFound:
    return ExecutionNotFound(f"execution {id} not found", details={"execution": id})


def not_active(row: Execution) -> ExecutionNotActive:
    """Says what it is instead: the outcome, epoch, phase and attempt."""
    shape = SHAPE[row.state]
    return ExecutionNotActive(
        f"execution {row.id} is {row.state}",
        details={
            "terminal_outcome": shape.outcome,
            "lease_epoch": row.epoch,
            "lifecycle_phase": shape.phase,
            "attempt": row.attempt,
            "state": row.state,
            "reason": row.outcome_detail,
        },
    )


def refusal_of_lease(row: Execution | None, lease: Lease, now_ms: int) -> FlowFabricError | None:
    """The first check that fails for somebody who shows this lease; None if all hold."""
    if row is None:
        return not_found(lease.id)
    if SHAPE[row.state].phase is not Phase.ACTIVE:
        return not_active(row)
    if row.state is State.REVOKED:
        return LeaseRevoked(
            f"the lease of {row.id} was revoked: {row.outcome_detail or 'operator'}"
        )
    if row.state is State.ORPHANED or row.lease_until_ms is None or row.lease_until_ms <= now_ms:
        return LeaseExpired(f"the lease of {row.id} ended before it was renewed")
    if not is_owner(row, lease):
        return StaleLease(
            f"{row.id} is held by {row.worker or 'another worker'} (epoch {row.epoch})"
        )
    if (row.reason is Reason.GRANTED) == lease.started:
        return StaleLease(f"the lease of {row.id} is in the wrong phase for this call")
    return None


def is_owner(row: Execution, lease: Lease) -> bool:
    return row.lease_token == lease.token and row.epoch == lease.epoch


def completed_by(row: Execution, lease: Lease) -> bool:
    """The same owner completed it before."""
    return row.state is State.COMPLETED and is_owner(row, lease)


def failed_by(row: Execution, lease: Lease) -> bool:
    """The same owner failed it for good before."""
    return row.state is State.FAILED and is_owner(row, lease)


def cancelled_by(row: Execution, lease: Lease) -> bool:
    """The same owner gave it back before, when it was not wanted any more."""
    return row.state is State.CANCELLED and is_owner(row, lease)


def retried_by(row: Execution, lease: Lease) -> bool:
    """The same owner failed it before, and a retry is on its way."""
    return row.attempt_state is AttemptState.PENDING_RETRY and is_owner(row, lease)


def is_same_failure(row: Execution, patch: Mapping[str, Value]) -> bool:
    """Whether the stored failure is the one of this patch: as final, and for the same reason."""
    said = (patch["state"] == State.FAILED, patch["outcome_detail"], patch["outcome_category"])
    return said == (row.state is State.FAILED, row.outcome_detail, row.outcome_category)


def is_same_delay(row: Execution, until_ms: int | None, now_ms: int) -> bool:
    """Whether it was given back until this instant, None for at once. A delay that is over is
    forgotten, and a member of a flow waits for its timer even when it is given back at once."""
    if until_ms is None or until_ms <= now_ms:
        return row.not_before_ms is None or row.not_before_ms <= now_ms + 1
    return row.not_before_ms == until_ms


def delayed_by(row: Execution, lease: Lease) -> bool:
    """The same owner gave it back before, to go on with this attempt."""
    return (
        row.attempt_state is AttemptState.INTERRUPTED
        and row.next_kind is AttemptKind.RESUME
        and row.state not in (State.ACTIVE, State.ORPHANED, State.REVOKED)
        and is_owner(row, lease)
    )


def returned_by(row: Execution, lease: Lease) -> bool:
    """The same owner gave its unstarted grant back before."""
    gone = row.state in CLAIMABLE | RUNNABLE
    return not lease.started and gone and is_owner(row, lease)


def started_by(row: Execution, lease: Lease) -> bool:
    """The same owner started its grant before."""
    return (row.state is State.ACTIVE and row.attempt_state is AttemptState.RUNNING) and is_owner(
        row, lease
    )
