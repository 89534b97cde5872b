"""Every clock of an execution in one place.

An execution has one timer, `due_ms`: the earliest of its named due times. It may be earlier than
the truth (a renewal does not move it), never later. When it fires, `on_due` looks at the row as it
is now and says which duty it was; nothing due means that the timer is armed again.

    lease_expiry         active     lease_until_ms      the worker went silent
    grant_expiry         active     lease_until_ms      granted and never started
    attempt_timeout      active     attempt_until_ms    the attempt took too long
    delayed_promoter     delayed    not_before_ms       the pause is over
    unblock              blocked    recheck_ms          ask the gate again
    execution_deadline   any        deadline_ms         no time is left for anything
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, assert_never

import msgspec

from flowfabric.core.endings import (
    Ending,
    attempt_of,
    cancelled_on_return,
    ended_from_outside,
    is_unwanted,
)
from flowfabric.core.leases import give_back, lose
from flowfabric.core.lifecycle import retried
from flowfabric.core.model import Admission, Attempt, Execution, Loss, Malformed, Value, Writer
from flowfabric.core.policy import OnAttemptTimeout, chance, parse_policy, retry_pause_ms
from flowfabric.core.settle import GATE_REASON, facts_of, settle
from flowfabric.core.states import RUNNABLE, TERMINAL, AttemptLifecycle, Outcome, Reason, State
from flowfabric.core.transition import LogLine, Seen, Transition, clip, end_of

TIMEOUT_CATEGORY = "timeout"
POISON_PAUSE_MS = 1_000
POISON_PAUSE_MAX_MS = 300_000
POISON_LIMIT = 12


class Duty(StrEnum):
    """In order of precedence for equal instants: a deadline always ends."""

    EXECUTION_DEADLINE = "execution_deadline"
    ATTEMPT_TIMEOUT = "attempt_timeout"
    GRANT_EXPIRY = "grant_expiry"
    LEASE_EXPIRY = "lease_expiry"
    DELAYED_PROMOTER = "delayed_promoter"
    UNBLOCK = "unblock"


_RANK = {duty: rank for rank, duty in enumerate(Duty)}


class Due(NamedTuple):
    """A duty that was due, and the transition that does it; without a duty it only re-arms."""

    duty: Duty | None
    transition: Transition


def timers(row: Execution) -> list[tuple[int, Duty]]:
    """The named due times of a row, soonest first."""
    found: list[tuple[int | None, Duty]] = []
    if row.state not in TERMINAL:
        found.append((row.deadline_ms, Duty.EXECUTION_DEADLINE))
    if row.state is State.ACTIVE:
        granted = row.reason is Reason.GRANTED
        found.append((row.lease_until_ms, Duty.GRANT_EXPIRY if granted else Duty.LEASE_EXPIRY))
        found.append((None if granted else row.attempt_until_ms, Duty.ATTEMPT_TIMEOUT))
    elif row.state is State.DELAYED:
        found.append((row.not_before_ms, Duty.DELAYED_PROMOTER))
    elif row.state in RUNNABLE and row.admission is not Admission.NONE:
        found.append((row.recheck_ms, Duty.UNBLOCK))
    named = [(instant, duty) for instant, duty in found if instant is not None]
    return sorted(named, key=lambda timer: (timer[0], _RANK[timer[1]]))


def next_due(row: Execution) -> int | None:
    armed = timers(row)
    return armed[0][0] if armed else None


def is_unarmed(row: Execution) -> bool:
    """Whether its timer is later than what it is for, or is missing. One that was put off because
    it could not be handled, or parked, is as it should be."""
    soonest_ms = next_due(row)
    is_put_off = bool(row.parked) or (row.failures > 0 and row.due_ms is not None)
    if soonest_ms is None or is_put_off:
        return False
    return row.due_ms is None or row.due_ms > soonest_ms


def on_due(row: Execution, now_ms: int) -> Due:
    """What the timer of this row meant, decided again from the row as it is."""
    armed = timers(row)
    if not armed or armed[0][0] > now_ms:
        return Due(None, rearm(row))
    duty = armed[0][1]
    match duty:
        case Duty.EXECUTION_DEADLINE:
            return Due(duty, _expire(row, now_ms, duty))
        case Duty.ATTEMPT_TIMEOUT:
            return Due(duty, _attempt_timeout(row, now_ms))
        case Duty.LEASE_EXPIRY:
            patch, attempt, line = lose(row, now_ms, Loss.EXPIRED)
            return Due(duty, _transition(row, patch, line, attempt))
        case Duty.GRANT_EXPIRY:
            patch, attempt, line = give_back(row, now_ms, "grant_expired")
            return Due(duty, _transition(row, patch, line, attempt))
        case Duty.DELAYED_PROMOTER:
            facts = msgspec.structs.replace(facts_of(row), not_before_ms=None)
            patch = settle(facts, now_ms).patch(updated_ms=now_ms)
            return Due(duty, _transition(row, patch, LogLine("promoted")))
        case Duty.UNBLOCK:
            facts = msgspec.structs.replace(
                facts_of(row), admission=Admission.NONE, recheck_ms=None
            )
            patch = settle(facts, now_ms).patch(
                admission=Admission.NONE, recheck_ms=None, updated_ms=now_ms
            )
            return Due(
                duty,
                _transition(
                    row, patch, LogLine("unblocked", {"reason": GATE_REASON[row.admission]})
                ),
            )
        case _:
            assert_never(duty)


def _attempt_timeout(row: Execution, now_ms: int) -> Transition:
    policy = parse_policy(row.policy)
    pause = None
    if policy.timeout_policy.on_attempt_timeout is OnAttemptTimeout.RETRY:
        pause = retry_pause_ms(
            policy,
            category=TIMEOUT_CATEGORY,
            retries_done=row.retry_count,
            chance=chance(row.id, row.attempt),
        )
    if pause is None:
        return _expire(row, now_ms, Duty.ATTEMPT_TIMEOUT)
    patch = retried(row, now_ms, pause) | {
        "outcome_detail": Duty.ATTEMPT_TIMEOUT,
        "outcome_category": TIMEOUT_CATEGORY,
    }
    detail: dict[str, Value] = {
        "reason": Duty.ATTEMPT_TIMEOUT,
        "category": TIMEOUT_CATEGORY,
        "pause_ms": pause,
    }
    attempt = attempt_of(
        row,
        AttemptLifecycle.ENDED_FAILURE,
        now_ms,
        detail=Duty.ATTEMPT_TIMEOUT,
        category=TIMEOUT_CATEGORY,
    )
    line = LogLine("retry_scheduled", detail)
    if is_unwanted(row):
        patch, line = cancelled_on_return(row, now_ms)
    return _transition(row, patch | {"epoch": row.epoch + 1}, line, attempt)


def _expire(row: Execution, now_ms: int, duty: Duty) -> Transition:
    patch, attempt = ended_from_outside(row, Ending(Outcome.EXPIRED, duty, duty), now_ms)
    return _transition(row, patch, LogLine("expired", {"reason": duty}), attempt)


def rearm(row: Execution) -> Transition:
    """Set its timer to what it is for."""
    return _transition(row, {"due_ms": next_due(row)}, None)


def pause_after(failures: int) -> int:
    """How far something moves forward in time that has failed so often: the one back-off."""
    grown: int = POISON_PAUSE_MS * 2 ** min(failures - 1, 20)
    return min(grown, POISON_PAUSE_MAX_MS)


def poisoned(row: Execution | Malformed, now_ms: int, problem: str) -> Transition:
    """Move a row that cannot be handled out of the way, further each time, then park it."""
    failures = row.failures + 1
    is_parked = failures >= POISON_LIMIT
    pause = pause_after(failures)
    patch: dict[str, Value] = {
        "failures": failures,
        "due_ms": None if is_parked else now_ms + pause,
        "parked": clip(problem) if is_parked else "",
    }
    # The state of a row that cannot be read is unknown; this patch does not touch it.
    guard = Seen(row.rev, row.state if isinstance(row, Execution) else State.ACTIVE)
    line = LogLine("parked", {"problem": clip(problem)}) if is_parked else None
    return Transition(row.id, guard, Writer.TIMEKEEPER, patch, line)


def _transition(
    row: Execution,
    patch: dict[str, Value],
    log: LogLine | None,
    attempt: Attempt | None = None,
) -> Transition:
    if row.failures:
        patch = patch | {"failures": 0, "parked": ""}
    guard = Seen(row.rev, row.state)
    ended_ms = patch.get("ended_ms")
    end = end_of(row, patch, ended_ms) if isinstance(ended_ms, int) else None
    return Transition(
        row.id, guard, Writer.TIMEKEEPER, patch, log, attempt, line=end, route=row.route
    )
