"""What happens when a lease is lost, however it was: judged once, here, reclaim cap included."""

from __future__ import annotations

import msgspec

from flowfabric.core.endings import (
    Ending,
    attempt_of,
    cancelled_on_return,
    ended_from_outside,
    is_unwanted,
)
from flowfabric.core.model import Attempt, Execution, Loss, Value
from flowfabric.core.policy import parse_policy
from flowfabric.core.settle import facts_of, settle
from flowfabric.core.states import AttemptKind, AttemptLifecycle, AttemptState, Outcome, Reason
from flowfabric.core.transition import LogLine

MAX_RECLAIMS = "max_reclaims_exceeded"

Decision = tuple[dict[str, Value], Attempt | None, LogLine]

_LINE: dict[Loss, str] = {Loss.EXPIRED: "lease_expired", Loss.REVOKED: "lease_revoked"}


def lose(row: Execution, now_ms: int, how: Loss, detail: str = "") -> Decision:
    """A started lease is gone: claimable as a new attempt, or over when the cap is reached, or
    when it is not wanted any more."""
    if row.reason is Reason.GRANTED:
        return give_back(row, now_ms, "grant_revoked" if how is Loss.REVOKED else "grant_expired")
    interrupted = attempt_of(
        row,
        AttemptLifecycle.INTERRUPTED_RECLAIMED,
        now_ms,
        detail=detail or _LINE[how],
        category=_LINE[how],
    )
    policy = parse_policy(row.policy).timeout_policy
    if row.reclaim_count >= policy.max_reclaim_count:
        ending = Ending(Outcome.FAILED, MAX_RECLAIMS, MAX_RECLAIMS)
        patch, _ = ended_from_outside(row, ending, now_ms)
        # The execution failed; its attempt did not, it was lost like those before.
        return patch, interrupted, LogLine("failed", {"reason": MAX_RECLAIMS, "lost": how})
    if is_unwanted(row):
        patch, line = cancelled_on_return(row, now_ms)
        return patch | {"epoch": row.epoch + 1}, interrupted, line
    facts = msgspec.structs.replace(facts_of(row), next_kind=AttemptKind.RECLAIM, lost=how)
    patch = settle(facts, now_ms).patch(
        attempt_state=AttemptState.INTERRUPTED,
        next_attempt=row.attempt + 1,
        next_kind=AttemptKind.RECLAIM,
        attempt_left_ms=policy.attempt_timeout_ms,
        reclaim_count=max(row.reclaim_count, 0) + 1,
        lost=how,
        outcome_detail=detail,
        outcome_category=_LINE[how],
        **disowned(row, now_ms),
    )
    line = LogLine(_LINE[how], {"worker": row.worker, "reason": detail})
    return patch, interrupted, line


def give_back(row: Execution, now_ms: int, line: str) -> Decision:
    """An unstarted grant is gone: back to what the facts say, nothing counted."""
    patch = settle(facts_of(row), now_ms).patch(**disowned(row, now_ms))
    return patch, None, LogLine(line, {"worker": row.worker})


def disowned(row: Execution, now_ms: int) -> dict[str, Value]:
    """A lease that ends from outside raises the epoch, so that its holder is fenced off."""
    return {
        "epoch": row.epoch + 1,
        "lease_until_ms": None,
        "attempt_until_ms": None,
        "worker": "",
        "updated_ms": now_ms,
    }
