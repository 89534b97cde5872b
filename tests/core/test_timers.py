"""Every clock of an execution: which are armed, which wins, what happens around each instant."""

from __future__ import annotations

import pytest

from flowfabric.core.lifecycle import renew
from flowfabric.core.model import Execution, Malformed, Writer
from flowfabric.core.operator import Source, cancel
from flowfabric.core.policy import Fixed, OnAttemptTimeout
from flowfabric.core.states import TERMINAL, AttemptLifecycle, AttemptState, Reason, State
from flowfabric.core.timers import (
    POISON_LIMIT,
    POISON_PAUSE_MAX_MS,
    Duty,
    next_due,
    on_due,
    poisoned,
    timers,
)
from flowfabric.core.transition import Seen
from tests.core.build import (
    DEADLINE,
    ID,
    NOW,
    PAUSE,
    TTL,
    applied,
    blocked,
    changed,
    granted,
    lease_of,
    limited,
    retrying,
    running,
    sample,
    submitted,
)
from tests.core.walk import reach

LEASE, ATTEMPT, PAUSE_END, RECHECK, LAST = (NOW + n for n in (10, 20, 30, 40, 50))


def with_every_clock(state: State, reason: Reason | None = None) -> Execution:
    """All instants set, so that only the state decides which of them count."""
    row = sample(state)
    return changed(
        row,
        reason=reason or row.reason,
        lease_until_ms=LEASE,
        attempt_until_ms=ATTEMPT,
        not_before_ms=PAUSE_END,
        recheck_ms=RECHECK,
        deadline_ms=LAST,
    )


ARMED: dict[str, list[Duty]] = {
    "waiting": [],
    "delayed": [Duty.DELAYED_PROMOTER],
    "blocked_dependencies": [],
    "blocked_budget": [Duty.UNBLOCK],
    "blocked_quota": [Duty.UNBLOCK],
    "blocked_route": [Duty.UNBLOCK],
    "blocked_lane": [Duty.UNBLOCK],
    "blocked_operator": [],
    "active": [Duty.LEASE_EXPIRY, Duty.ATTEMPT_TIMEOUT],
    "orphaned": [],
    "revoked": [],
    "suspended": [],
}


@pytest.mark.parametrize("state", State)
def test_each_state_arms_its_own_clocks_and_the_deadline(state: State) -> None:
    found = [duty for _, duty in timers(with_every_clock(state))]
    expected = [] if state in TERMINAL else [*ARMED[state], Duty.EXECUTION_DEADLINE]
    assert found == expected


def test_a_grant_has_no_attempt_that_could_take_too_long() -> None:
    found = timers(with_every_clock(State.ACTIVE, Reason.GRANTED))
    assert found == [(LEASE, Duty.GRANT_EXPIRY), (LAST, Duty.EXECUTION_DEADLINE)]


def test_a_gate_under_a_pause_by_an_operator_is_still_asked_again() -> None:
    row = blocked(Reason.PAUSED_BY_OPERATOR, blocked(Reason.WAITING_FOR_BUDGET))
    assert row.recheck_ms is not None
    assert timers(row) == [(row.recheck_ms, Duty.UNBLOCK)]
    after = applied(row, on_due(row, row.recheck_ms).transition)
    assert (after.state, after.due_ms) == (State.BLOCKED_OPERATOR, None)


@pytest.mark.parametrize("state", State)
def test_the_timer_is_the_earliest_of_the_clocks_and_none_without_them(state: State) -> None:
    row = with_every_clock(state)
    armed = timers(row)
    assert next_due(row) == (min(instant for instant, _ in armed) if armed else None)
    quiet = changed(row, deadline_ms=None, lease_until_ms=None, attempt_until_ms=None)
    assert next_due(changed(quiet, not_before_ms=None, recheck_ms=None)) is None


def test_no_timer_is_ever_later_than_the_truth() -> None:
    """A renewal may leave it early; then it is armed again when it fires."""
    for move in reach().moves:
        row, due = move.after.row, next_due(move.after.row)
        assert (row.due_ms is None) == (due is None)
        assert row.due_ms is None or due is None or row.due_ms <= due


# Around each instant

AROUND: dict[Duty, tuple[Execution, str]] = {
    Duty.LEASE_EXPIRY: (running(), "orphaned"),
    Duty.GRANT_EXPIRY: (granted(), "waiting"),
    Duty.ATTEMPT_TIMEOUT: (running(policy=retrying(timeout=limited(attempt_ms=9))), "expired"),
    Duty.DELAYED_PROMOTER: (submitted(delay_until_ms=NOW + 9), "waiting"),
    Duty.UNBLOCK: (blocked(Reason.WAITING_FOR_QUOTA), "waiting"),
    Duty.EXECUTION_DEADLINE: (submitted(deadline_ms=DEADLINE), "expired"),
}


@pytest.mark.parametrize("duty", Duty)
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a_duty_is_done_at_its_instant_and_not_before(duty: Duty, offset: int) -> None:
    row, expected = AROUND[duty]
    assert row.due_ms is not None
    found = on_due(row, row.due_ms + offset)
    after = applied(row, found.transition)
    assert found.duty == (None if offset < 0 else duty)
    assert after.state == (row.state if offset < 0 else expected)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_every_clock_of_every_state_is_kept_to_the_millisecond(state: State, offset: int) -> None:
    for instant, duty in timers(with_every_clock(state)):
        alone = only(with_every_clock(state), instant)
        found = on_due(alone, instant + offset)
        assert found.duty == (None if offset < 0 else duty)
        assert found.transition.writer is Writer.TIMEKEEPER
        assert found.transition.guard == Seen(alone.rev, state)


def only(row: Execution, instant: int) -> Execution:
    """The same row with one clock; a lease that is not this one lasts for ever."""
    names = ("attempt_until_ms", "not_before_ms", "recheck_ms", "deadline_ms", "lease_until_ms")
    return changed(row, **{name: None for name in names if getattr(row, name) != instant})


def test_a_timer_that_fired_too_early_is_armed_again_and_nothing_else_happens() -> None:
    row = running()
    row = applied(row, renew(lease_of(row), NOW + 5, TTL))
    assert row.due_ms == NOW + TTL
    found = on_due(row, NOW + TTL)
    assert found.duty is None
    assert found.transition.patch == {"due_ms": NOW + 5 + TTL}
    assert (found.transition.log, found.transition.attempt) == (None, None)


def test_what_was_cancelled_behind_a_gate_is_not_released_by_it() -> None:
    row = blocked(Reason.WAITING_FOR_QUOTA)
    over = applied(row, cancel(row, NOW, "no", source=Source.OPERATOR))
    assert timers(over) == []
    assert on_due(over, NOW + 60_000).duty is None


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_timer_of_something_that_is_over_is_disarmed(state: State) -> None:
    row = changed(with_every_clock(state), due_ms=NOW)
    found = on_due(row, LAST)
    assert found.duty is None
    assert found.transition.patch == {"due_ms": None}


# Which one wins


def test_the_earliest_clock_wins_whatever_its_rank() -> None:
    row = with_every_clock(State.ACTIVE)
    assert on_due(row, LAST).duty is Duty.LEASE_EXPIRY
    assert on_due(changed(row, attempt_until_ms=LEASE - 1), LAST).duty is Duty.ATTEMPT_TIMEOUT
    assert on_due(changed(row, deadline_ms=LEASE - 1), LAST).duty is Duty.EXECUTION_DEADLINE


@pytest.mark.parametrize(
    ("clocks", "winner"),
    [
        (("lease_until_ms", "attempt_until_ms", "deadline_ms"), Duty.EXECUTION_DEADLINE),
        (("lease_until_ms", "attempt_until_ms"), Duty.ATTEMPT_TIMEOUT),
        (("attempt_until_ms", "deadline_ms"), Duty.EXECUTION_DEADLINE),
        (("lease_until_ms", "deadline_ms"), Duty.EXECUTION_DEADLINE),
    ],
)
def test_of_equal_instants_the_one_that_ends_wins(clocks: tuple[str, ...], winner: Duty) -> None:
    row = changed(with_every_clock(State.ACTIVE), **dict.fromkeys(clocks, LEASE - 1))
    assert on_due(row, LEASE - 1).duty is winner


@pytest.mark.parametrize(
    ("state", "clock"), [(State.DELAYED, "not_before_ms"), (State.BLOCKED_QUOTA, "recheck_ms")]
)
def test_a_deadline_wins_over_waking_up_at_the_same_instant(state: State, clock: str) -> None:
    row = changed(with_every_clock(state), **{clock: LAST})
    assert on_due(row, LAST).duty is Duty.EXECUTION_DEADLINE


def test_a_deadline_ends_what_an_earlier_clock_only_interrupted() -> None:
    row = changed(running(deadline_ms=NOW + TTL + 1), lease_until_ms=NOW + TTL)
    lost = applied(row, on_due(row, NOW + TTL + 5).transition)
    assert (lost.state, lost.due_ms) == (State.ORPHANED, NOW + TTL + 1)
    assert on_due(lost, NOW + TTL + 5).duty is Duty.EXECUTION_DEADLINE


# An attempt that takes too long


def too_long(pause_ms: int = PAUSE) -> Execution:
    timeout = limited(attempt_ms=9, on_timeout=OnAttemptTimeout.RETRY)
    return running(policy=retrying(1, backoff=Fixed(pause_ms), timeout=timeout))


def test_an_attempt_that_took_too_long_is_retried_when_the_policy_says_so() -> None:
    row = too_long()
    found = on_due(row, NOW + 9)
    after = applied(row, found.transition)
    assert (after.state, after.attempt_state) == (State.DELAYED, AttemptState.PENDING_RETRY)
    assert (after.retry_count, after.not_before_ms) == (1, NOW + 9 + PAUSE)
    assert (after.epoch, after.worker, after.lease_until_ms) == (2, "", None)
    assert (after.outcome_detail, after.outcome_category) == ("attempt_timeout", "timeout")
    record = found.transition.attempt
    assert record is not None
    assert (record.lifecycle, record.category) == (AttemptLifecycle.ENDED_FAILURE, "timeout")
    assert record.detail == "attempt_timeout"
    assert found.transition.log is not None
    assert found.transition.log.detail == {
        "reason": "attempt_timeout",
        "category": "timeout",
        "pause_ms": PAUSE,
    }


def test_an_attempt_that_took_too_long_ends_it_when_the_retries_are_spent() -> None:
    row = changed(too_long(), retry_count=1)
    assert applied(row, on_due(row, NOW + 9).transition).state is State.EXPIRED


def test_a_timeout_is_a_category_of_its_own() -> None:
    timeout = limited(attempt_ms=9, on_timeout=OnAttemptTimeout.RETRY)
    for category, expected in (("timeout", State.DELAYED), ("handler_error", State.EXPIRED)):
        row = running(policy=retrying(3, categories=(category,), timeout=timeout))
        assert applied(row, on_due(row, NOW + 9).transition).state is expected


def test_a_timeout_without_a_pause_is_ready_at_once() -> None:
    row = too_long(0)
    assert applied(row, on_due(row, NOW + 9).transition).state is State.WAITING


# Rows that cannot be handled


def poison(row: Execution, times: int) -> Execution:
    for _ in range(times):
        row = applied(row, poisoned(row, NOW, "unreadable"))
    return row


def test_a_row_that_cannot_be_handled_moves_further_away_each_time() -> None:
    row, waits = sample(State.DELAYED), []
    for _ in range(POISON_LIMIT - 1):
        row = poison(row, 1)
        assert row.due_ms is not None
        waits.append(row.due_ms - NOW)
    expected = [min(1_000 * 2**n, POISON_PAUSE_MAX_MS) for n in range(POISON_LIMIT - 1)]
    assert waits == expected
    assert waits[-1] == POISON_PAUSE_MAX_MS
    assert row.parked == ""


def test_a_row_that_cannot_be_handled_is_parked_with_its_problem() -> None:
    row = sample(State.DELAYED)
    said = poisoned(poison(row, POISON_LIMIT - 1), NOW, "x" * 9_999)
    assert said.patch["due_ms"] is None
    assert len(str(said.patch["parked"]).encode()) == 400
    assert said.log is not None
    assert said.log.kind == "parked"


def test_poison_changes_nothing_that_the_execution_is() -> None:
    row = sample(State.DELAYED)
    kept = poison(row, POISON_LIMIT + 3)
    assert changed(kept, rev=1, failures=0, parked="", due_ms=row.due_ms) == row
    assert (kept.failures, kept.due_ms) == (POISON_LIMIT + 3, None)


def test_a_row_that_cannot_even_be_read_moves_away_too() -> None:
    bad = Malformed(ID, rev=7, failures=2, problem="not text")
    said = poisoned(bad, NOW, bad.problem)
    assert said.guard.compared == (7,)
    assert said.patch == {"failures": 3, "due_ms": NOW + 4_000, "parked": ""}


@pytest.mark.parametrize("times", [1, POISON_LIMIT])
@pytest.mark.parametrize("duty", Duty)
def test_the_next_duty_that_goes_well_forgets_the_trouble(duty: Duty, times: int) -> None:
    row, expected = AROUND[duty]
    assert row.due_ms is not None
    sick = poison(row, times)
    after = applied(sick, on_due(sick, row.due_ms).transition)
    assert (after.state, after.failures, after.parked) == (expected, 0, "")


def test_a_timer_that_only_re_arms_forgets_the_trouble_too() -> None:
    row = poison(running(), 3)
    assert on_due(row, NOW).transition.patch == {
        "due_ms": NOW + TTL,
        "failures": 0,
        "parked": "",
    }
