"""What people and services decide about an execution that they do not hold.

Each decision is made from a row that was read and is guarded by its `rev`: whatever changes in
between makes the store say no, and the decision is made again from the new row.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from flowfabric.core import names
from flowfabric.core.endings import FLOW_CASCADE, Ending, ended_from_outside
from flowfabric.core.exact import word
from flowfabric.core.leases import lose
from flowfabric.core.model import Admission, Execution, Lease, Loss, Value, Writer
from flowfabric.core.policy import parse_policy
from flowfabric.core.refusal import not_active, refusal_of_lease
from flowfabric.core.settle import Facts, facts_of, settle
from flowfabric.core.states import (
    RUNNABLE,
    TERMINAL,
    AttemptKind,
    AttemptState,
    Outcome,
    Reason,
    State,
)
from flowfabric.core.transition import LogLine, Seen, Transition, clip, end_of
from flowfabric.errors import (
    ExecutionNotEligible,
    ExecutionNotTerminal,
    InvalidInput,
    Refused,
    ReplaysExhausted,
)

RECHECK_MS = 5_000


NO_TAGS: Mapping[str, str] = MappingProxyType({})


class Source(StrEnum):
    """Who asks for a cancel; a lease holder must show its lease."""

    OPERATOR = "operator_override"
    LEASE_HOLDER = "lease_holder"
    FLOW_CASCADE = FLOW_CASCADE
    SYSTEM_TIMEOUT = "system_timeout"


class ExpireReason(StrEnum):
    ATTEMPT_TIMEOUT = "attempt_timeout"
    EXECUTION_DEADLINE = "execution_deadline"


class RevokeOutcome(NamedTuple):
    """A revoked lease, or why there was nothing to revoke."""

    revoked: bool
    epoch: int
    reason: str = ""


def observed(row: Execution) -> Seen:
    return Seen(row.rev, row.state)


def cancel(
    row: Execution,
    now_ms: int,
    reason: str,
    *,
    source: Source,
    lease: Lease | None = None,
    category: str = "",
) -> Transition:
    """End it as cancelled, from any state that is not the end; kept under the source, unless a
    `category` says more."""
    source = word(Source, source, "source")
    if row.state in TERMINAL:
        raise not_active(row)
    if source is Source.LEASE_HOLDER and row.state not in RUNNABLE:
        if lease is None:
            raise fence_required()
        refusal = refusal_of_lease(row, lease, now_ms)
        if refusal is not None:
            raise refusal
    ending = Ending(Outcome.CANCELLED, clip(reason), category or source)
    patch, attempt = ended_from_outside(row, ending, now_ms)
    line = LogLine("cancelled", {"reason": ending.detail, "source": source})
    end = end_of(row, patch, now_ms)
    return Transition(row.id, observed(row), Writer.ENGINE, patch, line, attempt, line=end)


def fence_required() -> InvalidInput:
    return InvalidInput(
        "a lease is required to cancel running work",
        field="lease",
        code="fence_required",
        hint="pass the lease that the claim returned, or override as an operator",
    )


def expire(row: Execution, now_ms: int, reason: ExpireReason) -> Transition | None:
    """End it as expired; None when it is over already."""
    reason = word(ExpireReason, reason, "reason")
    if row.state in TERMINAL:
        return None
    ending = Ending(Outcome.EXPIRED, reason, reason)
    patch, attempt = ended_from_outside(row, ending, now_ms)
    line = LogLine("expired", {"reason": reason})
    end = end_of(row, patch, now_ms)
    return Transition(row.id, observed(row), Writer.ENGINE, patch, line, attempt, line=end)


def revoke(
    row: Execution, now_ms: int, reason: str, *, worker: str | None = None
) -> Transition | RevokeOutcome:
    """Take the lease away; the work becomes claimable at once, as a new attempt."""
    if row.state in TERMINAL:
        raise not_active(row)
    if row.state is not State.ACTIVE:
        return RevokeOutcome(False, row.epoch, _already(row))
    if worker is not None and row.worker != worker:
        return RevokeOutcome(False, row.epoch, "different_worker_instance_id")
    patch, attempt, line = lose(row, now_ms, Loss.REVOKED, clip(reason))
    end = end_of(row, patch, now_ms)
    return Transition(
        row.id, observed(row), Writer.ENGINE, patch, line, attempt, line=end, route=row.route
    )


def _already(row: Execution) -> str:
    if row.state is State.REVOKED:
        return "already_revoked"
    return "already_expired" if row.state is State.ORPHANED else "no_active_lease"


def may_replay(row: Execution) -> bool:
    """Whether it has been replayed less often than it may."""
    return row.replay_count < parse_policy(row.policy).max_replay_count


def require_replay(row: Execution) -> None:
    if not may_replay(row):
        raise ReplaysExhausted(f"execution {row.id} was replayed {row.replay_count} times")


def replay(row: Execution, now_ms: int, reason: str = "") -> Transition:
    """Run a finished execution again, with fresh retries and without a deadline that is past."""
    if row.state not in TERMINAL:
        raise ExecutionNotTerminal(f"execution {row.id} is {row.state}")
    require_replay(row)
    policy = parse_policy(row.policy)
    deadline = row.deadline_ms if row.deadline_ms and row.deadline_ms > now_ms else None
    facts = Facts(deadline_ms=deadline, next_kind=AttemptKind.REPLAY, deps_open=row.deps_open)
    patch = settle(facts, now_ms).patch(
        attempt_state=AttemptState.PENDING_REPLAY,
        next_attempt=row.attempt + 1,
        next_kind=AttemptKind.REPLAY,
        attempt_left_ms=policy.timeout_policy.attempt_timeout_ms,
        replay_count=row.replay_count + 1,
        generation=row.generation + 1,
        retry_count=0,
        reclaim_count=0,
        paused=False,
        admission=Admission.NONE,
        recheck_ms=None,
        lost=Loss.NONE,
        deadline_ms=deadline,
        ended_ms=None,
        purge_ms=None,
        outcome_detail="",
        outcome_category="",
        updated_ms=now_ms,
    )
    if row.failures:
        patch |= {"failures": 0, "parked": ""}
    line = LogLine("replayed", {"replay_count": row.replay_count + 1, "reason": clip(reason)})
    return Transition(row.id, observed(row), Writer.ENGINE, patch, line, route=row.route)


def has_priority(row: Execution, priority: int) -> bool:
    """Whether it waits with this priority already."""
    return row.state is State.WAITING and row.priority == priority


def change_priority(row: Execution, now_ms: int, priority: int) -> Transition:
    """Only what waits for a worker has a place in the queue to change."""
    if row.state is not State.WAITING:
        raise not_eligible(row)
    priority = names.priority(priority)
    patch: dict[str, Value] = {"priority": priority, "updated_ms": now_ms}
    line = LogLine("priority_changed", {"from": row.priority, "to": priority})
    return Transition(row.id, observed(row), Writer.ENGINE, patch, line)


def has_tags(known: Mapping[str, str], tags: Mapping[str, str]) -> bool:
    """Whether all of them are set already."""
    return tags.items() <= known.items()


def set_tags(
    row: Execution, now_ms: int, tags: Mapping[str, str], *, known: Mapping[str, str] = NO_TAGS
) -> Transition:
    """Set tags; those that are known stay, and together they must not be too many."""
    if not tags:
        raise InvalidInput("no tags were passed", field="tags", hint="pass at least one")
    names.tags({**known, **tags})
    patch: dict[str, Value] = {"updated_ms": now_ms}
    line = LogLine("tagged", {"keys": clip(",".join(sorted(tags)))})
    return Transition(row.id, observed(row), Writer.ENGINE, patch, line, tags=tags)


_GATES: dict[Reason, Admission] = {
    Reason.WAITING_FOR_BUDGET: Admission.BUDGET,
    Reason.WAITING_FOR_QUOTA: Admission.QUOTA,
    Reason.WAITING_FOR_CAPABLE_WORKER: Admission.ROUTE,
    Reason.PAUSED_BY_POLICY: Admission.LANE,
}


def is_blocked_for(row: Execution, reason: Reason) -> bool:
    """Whether it is blocked for this reason already, until it is unblocked. A gate that is asked
    again after a while is not: blocking once more moves that instant."""
    if reason is Reason.PAUSED_BY_OPERATOR:
        return row.state in RUNNABLE and row.paused
    is_shut = row.admission is Admission.LANE and reason is Reason.PAUSED_BY_POLICY
    return row.state in RUNNABLE and is_shut


def block(row: Execution, now_ms: int, reason: Reason, *, detail: str = "") -> Transition:
    """Keep it from running: until it is unblocked or, at a gate, until the gate is asked again."""
    reason = word(Reason, reason, "reason")
    _require_runnable(row)
    if reason is Reason.PAUSED_BY_OPERATOR:
        facts = msgspec.structs.replace(facts_of(row), paused=True)
    elif reason in _GATES:
        if row.admission not in (Admission.NONE, _GATES[reason]):
            # One gate at a time: opening the second would forget the first.
            raise not_eligible(row)
        recheck = None if reason is Reason.PAUSED_BY_POLICY else now_ms + RECHECK_MS
        facts = msgspec.structs.replace(facts_of(row), admission=_GATES[reason], recheck_ms=recheck)
    else:
        raise InvalidInput(
            f"unknown blocking reason {reason}",
            field="reason",
            code="invalid_blocking_reason",
            hint=f"use one of paused_by_operator, {', '.join(_GATES)}",
        )
    patch = _gates(facts, now_ms)
    line = LogLine("blocked", {"reason": reason, "detail": clip(detail, field="detail")})
    return Transition(row.id, observed(row), Writer.ENGINE, patch, line, route=row.route)


def unblock(row: Execution, now_ms: int, expected: Reason | None = None) -> Transition:
    """Take away the block that shows. Whatever else keeps it from running still does."""
    _require_runnable(row)
    shown = _shown_block(row)
    wanted = shown if expected is None else word(Reason, expected, "expected")
    if shown is None or wanted is not shown:
        raise not_eligible(row)
    if shown is Reason.PAUSED_BY_OPERATOR:
        facts = msgspec.structs.replace(facts_of(row), paused=False)
    else:
        facts = msgspec.structs.replace(facts_of(row), admission=Admission.NONE, recheck_ms=None)
    patch = _gates(facts, now_ms)
    line = LogLine("unblocked", {"reason": shown})
    return Transition(row.id, observed(row), Writer.ENGINE, patch, line, route=row.route)


def purge(row: Execution, now_ms: int) -> Transition:
    """Let a finished execution go before its retention is over."""
    if row.state not in TERMINAL:
        raise ExecutionNotTerminal(f"execution {row.id} is {row.state}")
    if row.flow:
        raise Refused(
            f"execution {row.id} is a member of flow {row.flow}",
            hint="members are deleted with their flow, after its retention",
        )
    patch: dict[str, Value] = {"purge_ms": now_ms}
    return Transition(row.id, observed(row), Writer.ENGINE, patch)


def _shown_block(row: Execution) -> Reason | None:
    if row.paused:
        return Reason.PAUSED_BY_OPERATOR
    for reason, gate in _GATES.items():
        if row.admission is gate:
            return reason
    return None


def _gates(facts: Facts, now_ms: int) -> dict[str, Value]:
    return settle(facts, now_ms).patch(
        paused=facts.paused,
        admission=facts.admission,
        recheck_ms=facts.recheck_ms,
        updated_ms=now_ms,
    )


def _require_runnable(row: Execution) -> None:
    if row.state in TERMINAL:
        raise not_active(row)
    if row.state not in RUNNABLE:
        raise not_eligible(row)


def not_eligible(row: Execution) -> ExecutionNotEligible:
    return ExecutionNotEligible(
        f"execution {row.id} is {row.state} ({row.reason})",
        details={"state": row.state, "reason": row.reason},
    )
