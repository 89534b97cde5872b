"""Failing again and again: pauses, caps, jitter, categories, and when it is over."""

from __future__ import annotations

from flowfabric.core.lifecycle import Failure, fail
from flowfabric.core.model import Execution
from flowfabric.core.policy import Exponential, Fixed
from flowfabric.core.states import AttemptState, State
from tests.core.build import (
    ATTEMPT_LIMIT,
    DEADLINE,
    NOW,
    PAUSE,
    applied,
    ask,
    changed,
    lease_of,
    limited,
    retrying,
    running,
    taken,
)


def failures(policy: str, count: int, failure: Failure) -> list[Execution]:
    """Fail again and again, each time claimed when its pause is over."""
    row, now, seen = running(policy=policy), NOW, []
    for _ in range(count):
        row = applied(row, fail(lease_of(row), now, failure), now)
        seen.append(row)
        if row.state is not State.DELAYED:
            break
        assert row.not_before_ms is not None
        now = row.not_before_ms
        ready = changed(row, state=State.WAITING, not_before_ms=None)
        row = taken(ready, ask(now))
    return seen


def pauses(rows: list[Execution]) -> list[int]:
    return [row.not_before_ms - row.updated_ms for row in rows if row.not_before_ms is not None]


def test_pauses_grow_until_the_retries_are_spent() -> None:
    policy = retrying(3, backoff=Exponential(100, 250, 2.0))
    seen = failures(policy, 10, Failure("broke"))
    assert [row.state for row in seen] == ["delayed", "delayed", "delayed", "failed"]
    assert [row.retry_count for row in seen] == [1, 2, 3, 3]
    assert pauses(seen[:3]) == [100, 200, 250]
    assert [(row.next_attempt, row.next_kind) for row in seen[:3]] == [
        (1, "retry"),
        (2, "retry"),
        (3, "retry"),
    ]


def test_equal_attempts_wait_equally_long_between_half_and_all_of_the_pause() -> None:
    policy = retrying(5, backoff=Exponential(1_000, 60_000, 2.0, jitter=True))
    waits = pauses(failures(policy, 5, Failure("broke")))
    assert waits == pauses(failures(policy, 5, Failure("broke")))
    full = [1_000, 2_000, 4_000, 8_000, 16_000]
    assert all(whole // 2 <= wait <= whole for wait, whole in zip(waits, full, strict=True))
    assert waits != full


def test_the_last_failure_is_kept_while_the_next_try_is_awaited() -> None:
    row = failures(retrying(3), 1, Failure("no route", "provider_error"))[0]
    assert (row.outcome_detail, row.outcome_category) == ("no route", "provider_error")


def test_a_fatal_failure_is_never_retried() -> None:
    [row] = failures(retrying(9), 10, Failure("broke", fatal=True))
    assert (row.state, row.retry_count) == (State.FAILED, 0)


def test_a_category_that_is_not_named_is_not_retried() -> None:
    policy = retrying(9, categories=("provider_error",))
    assert len(failures(policy, 4, Failure("broke", "provider_error"))) == 4
    [row] = failures(policy, 4, Failure("broke", "handler_error"))
    assert row.state is State.FAILED


def test_without_a_policy_the_first_failure_is_the_last() -> None:
    [row] = failures("", 4, Failure("broke"))
    assert row.state is State.FAILED


def test_a_retry_without_a_pause_is_ready_at_once() -> None:
    row = running(policy=retrying(1, backoff=Fixed(0)), deadline_ms=DEADLINE)
    after = applied(row, fail(lease_of(row), NOW, Failure("broke")))
    assert (after.state, after.due_ms) == (State.WAITING, DEADLINE)
    assert after.attempt_state is AttemptState.PENDING_RETRY


def test_a_retry_has_the_whole_time_of_an_attempt_again() -> None:
    row = running(policy=retrying(1, timeout=limited(attempt_ms=ATTEMPT_LIMIT)))
    row = changed(row, attempt_left_ms=1)
    after = applied(row, fail(lease_of(row), NOW + 9_000, Failure("broke")))
    assert (after.attempt_left_ms, after.attempt_until_ms) == (ATTEMPT_LIMIT, None)


def test_the_deadline_stays_armed_during_a_pause() -> None:
    row = running(policy=retrying(1), deadline_ms=NOW + PAUSE - 1)
    after = applied(row, fail(lease_of(row), NOW, Failure("broke")))
    assert (after.state, after.due_ms) == (State.DELAYED, NOW + PAUSE - 1)
