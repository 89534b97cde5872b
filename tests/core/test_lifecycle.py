"""What a caller submits and what a worker says about its own lease."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.lifecycle import (
    OLD_COPY_MS,
    Failure,
    Order,
    complete,
    delay,
    fail,
    held,
    progress,
    release,
    renew,
    start,
    submit,
)
from flowfabric.core.model import Attempt, Execution, Loss
from flowfabric.core.policy import Policy, TimeoutPolicy, encode_policy
from flowfabric.core.refusal import refusal_of_lease
from flowfabric.core.states import AttemptKind, AttemptLifecycle, AttemptState, Reason, State
from flowfabric.core.transition import Held, guard_holds
from flowfabric.errors import Invalid, InvalidInput
from tests.core.build import (
    ATTEMPT_LIMIT,
    DEADLINE,
    ID,
    NOW,
    TOKEN,
    TTL,
    WORKER,
    applied,
    ask,
    changed,
    granted,
    lease_of,
    limited,
    orphaned,
    resuming,
    retrying,
    running,
    sample,
    submitted,
    taken,
)
from tests.core.walk import ON_GRANT, ON_LEASE

LATER = NOW + 7


def order(**changes: object) -> Order:
    base = Order(id=ID, namespace="default", lane="main", kind="greet", payload=b"{}")
    return msgspec.structs.replace(base, **changes)


# Submitting


def test_a_submission_carries_what_was_asked_for() -> None:
    asked = order(creator="me", priority=7, policy="", tags={"demo.a": "1"}, key="k", digest="d")
    submission = submit(asked, NOW)
    row = submission.execution
    assert (row.id, row.namespace, row.lane, row.kind) == (ID, "default", "main", "greet")
    assert (row.creator, row.priority, row.created_ms, row.updated_ms) == ("me", 7, NOW, NOW)
    assert (submission.payload, submission.tags) == (b"{}", {"demo.a": "1"})
    assert (submission.key, submission.digest) == ("k", "d")


def test_a_new_execution_has_no_attempt_no_lease_and_no_counts() -> None:
    row = submitted()
    assert (row.attempt, row.next_attempt, row.next_kind) == (-1, 0, "initial")
    assert (row.epoch, row.lease_token, row.lease_until_ms, row.worker) == (0, "", None, "")
    assert (row.retry_count, row.reclaim_count, row.replay_count, row.rev) == (0, 0, 0, 1)


@pytest.mark.parametrize("until", [NOW - 1, NOW, None])
def test_a_delay_that_is_over_does_not_delay(until: int | None) -> None:
    row = submitted(delay_until_ms=until)
    assert (row.state, row.due_ms) == (State.WAITING, None)


def test_a_delay_to_come_arms_the_timer() -> None:
    row = submitted(delay_until_ms=NOW + 1)
    assert (row.state, row.due_ms) == (State.DELAYED, NOW + 1)


@pytest.mark.parametrize("deadline", [NOW, NOW - 1, 0])
def test_a_deadline_that_is_past_is_refused_by_name(deadline: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        submit(order(deadline_ms=deadline), NOW)
    assert caught.value.field == "deadline"
    assert caught.value.hint


def test_a_deadline_arms_the_timer_of_a_waiting_execution() -> None:
    row = submitted(deadline_ms=DEADLINE)
    assert (row.deadline_ms, row.due_ms) == (DEADLINE, DEADLINE)


def test_the_deadline_of_the_policy_counts_from_the_submission() -> None:
    text = encode_policy(Policy(timeout_policy=TimeoutPolicy(execution_deadline_ms=9)))
    assert submitted(policy=text).deadline_ms == NOW + 9


def test_a_deadline_that_was_asked_for_wins_over_the_policy() -> None:
    text = encode_policy(Policy(timeout_policy=TimeoutPolicy(execution_deadline_ms=9)))
    assert submitted(policy=text, deadline_ms=DEADLINE).deadline_ms == DEADLINE


def test_a_key_lives_as_long_as_its_window_and_no_key_has_none() -> None:
    text = encode_policy(Policy(dedup_window_ms=5))
    assert submit(order(key="k", policy=text), NOW).key_until_ms == NOW + 5
    assert submit(order(key="k"), NOW).key_until_ms == NOW + 86_400_000
    assert submit(order(), NOW).key_until_ms == 0


def test_a_policy_that_cannot_be_read_is_refused_before_anything_is_written() -> None:
    with pytest.raises(InvalidInput, match="surprise"):
        submit(order(policy='{"surprise":1}'), NOW)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", ""),
        ("lane", "x" * 65),
        ("kind", ""),
        ("key", "k" * 5_000),
        ("tags", {"no dot": "1"}),
        ("payload", b"x" * (2**20 + 1)),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(Invalid) as caught:
        submit(order(**{field: value}), NOW)
    assert caught.value.field
    assert caught.value.hint


@pytest.mark.parametrize(("asked", "given"), [(-5, 0), (0, 0), (9_000, 9_000), (9_001, 9_000)])
def test_a_priority_is_brought_into_its_range(asked: int, given: int) -> None:
    assert submitted(priority=asked).priority == given


# Who may say it

REFUSED = {
    **dict.fromkeys(State, "execution_not_active"),
    State.ORPHANED: "lease_expired",
    State.REVOKED: "lease_revoked",
}


@pytest.mark.parametrize("verb", ON_LEASE)
@pytest.mark.parametrize("state", sorted(set(State) - {State.ACTIVE}))
def test_a_lease_says_nothing_about_an_execution_that_is_not_active(
    state: State, verb: str
) -> None:
    lease = lease_of(running())
    row = sample(state)
    said = ON_LEASE[verb](lease.head, NOW)
    assert not guard_holds(said.guard, row, NOW)
    refusal = refusal_of_lease(row, lease, NOW)
    assert refusal is not None
    assert refusal.code == REFUSED[state]


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("renew", State.ACTIVE),
        ("progress", State.ACTIVE),
        ("complete", State.COMPLETED),
        ("fail", State.FAILED),
        ("fail for good", State.FAILED),
        ("delay", State.DELAYED),
        ("release", State.WAITING),
    ],
)
def test_a_lease_moves_an_active_execution(verb: str, expected: State) -> None:
    assert applied(running(), ON_LEASE[verb](running(), NOW)).state is expected


@pytest.mark.parametrize(
    ("verb", "expected"),
    [("start", State.ACTIVE), ("renew", State.ACTIVE), ("release", State.WAITING)],
)
def test_a_grant_can_be_started_renewed_and_given_back(verb: str, expected: State) -> None:
    assert applied(granted(), ON_GRANT[verb](granted(), NOW)).state is expected


@pytest.mark.parametrize("verb", sorted(ON_LEASE.keys() - ON_GRANT.keys()))
def test_a_grant_says_nothing_else_before_it_is_started(verb: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ON_LEASE[verb](granted(), NOW)
    assert caught.value.field == "lease"
    assert caught.value.hint


def test_the_guard_of_a_worker_is_its_epoch_and_token() -> None:
    assert held(lease_of(running())) == Held(1, TOKEN, started=True)
    assert held(lease_of(granted())) == Held(1, TOKEN, started=False)


# Starting, renewing, progress


def test_a_grant_begins_the_attempt_that_the_row_foresaw() -> None:
    grant = granted(submitted(policy=retrying(timeout=limited(attempt_ms=ATTEMPT_LIMIT))))
    row = applied(grant, start(lease_of(grant), LATER))
    assert (row.reason, row.attempt_state) == (Reason.NONE, AttemptState.RUNNING)
    assert (row.attempt, row.attempt_kind) == (0, AttemptKind.INITIAL)
    assert (row.attempt_started_ms, row.started_ms) == (LATER, LATER)
    assert row.attempt_until_ms == row.due_ms == LATER + ATTEMPT_LIMIT


def test_a_started_grant_of_a_lost_execution_forgets_the_loss() -> None:
    grant = granted(orphaned())
    assert grant.lost is Loss.EXPIRED
    row = applied(grant, start(lease_of(grant), NOW))
    assert (row.lost, row.attempt, row.started_ms) == (Loss.NONE, 1, NOW)


def test_a_renewal_moves_the_end_of_the_lease_and_nothing_else() -> None:
    said = renew(lease_of(running()), LATER, TTL)
    assert said.patch == {"lease_until_ms": LATER + TTL, "renewed_ms": LATER}
    assert said.log is None
    assert said.attempt is None


@pytest.mark.case("LC-020")
def test_what_progress_does_not_say_stays_as_it_was() -> None:
    row = running()
    seen = []
    for pct, message in [(10, "starting"), (75, None), (None, "winding down")]:
        row = applied(row, progress(lease_of(row), NOW, pct, message))
        seen.append((row.progress_pct, row.progress_message))
    assert seen == [(10, "starting"), (75, "starting"), (75, "winding down")]


@pytest.mark.parametrize("pct", [0, 100])
def test_progress_goes_from_nothing_to_all(pct: int) -> None:
    assert progress(lease_of(running()), NOW, pct, None).patch["progress_pct"] == pct


@pytest.mark.parametrize("pct", [-1, 101])
def test_a_progress_that_is_no_percentage_is_refused(pct: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        progress(lease_of(running()), NOW, pct, None)
    assert caught.value.field == "pct"


# Completing and failing


def record(row: Execution, lifecycle: AttemptLifecycle, **more: object) -> Attempt:
    base = Attempt(
        execution=ID,
        attempt=row.attempt,
        kind=row.attempt_kind,
        lifecycle=lifecycle,
        worker=WORKER,
        epoch=row.epoch,
        started_ms=NOW,
        ended_ms=LATER,
    )
    return msgspec.structs.replace(base, **more)


def test_a_result_is_kept_byte_for_byte_with_its_attempt() -> None:
    body = bytes(range(256))
    said = complete(lease_of(running()), LATER, body)
    assert said.attempt == record(running(), AttemptLifecycle.ENDED_SUCCESS, result=body)


def test_a_failure_is_kept_with_its_reason_and_category() -> None:
    said = fail(lease_of(running()), LATER, Failure("no route", "provider_error"))
    row = applied(running(), said)
    assert (row.state, row.outcome_detail) == (State.FAILED, "no route")
    assert row.outcome_category == "provider_error"
    expected = record(
        running(), AttemptLifecycle.ENDED_FAILURE, detail="no route", category="provider_error"
    )
    assert said.attempt == expected


def test_a_long_reason_is_cut() -> None:
    said = fail(lease_of(running()), NOW, Failure("x" * 5_000))
    assert said.attempt is not None
    assert said.attempt.detail == said.patch["outcome_detail"]
    assert len(said.attempt.detail.encode()) == 400
    assert said.attempt.detail.endswith("x…")


# Giving back


def test_a_delayed_attempt_goes_on_with_the_time_it_has_left() -> None:
    row = running(policy=retrying(timeout=limited(attempt_ms=ATTEMPT_LIMIT)))
    after = applied(row, delay(lease_of(row), NOW + 4_000, NOW + 60_000))
    assert (after.next_attempt, after.next_kind) == (0, AttemptKind.RESUME)
    assert (after.attempt_left_ms, after.not_before_ms) == (ATTEMPT_LIMIT - 4_000, NOW + 60_000)
    again = taken(changed(after, state=State.WAITING), ask(NOW + 60_000))
    assert again.attempt == 0
    assert again.attempt_until_ms == NOW + 60_000 + ATTEMPT_LIMIT - 4_000


def test_an_attempt_that_is_given_back_too_late_has_hardly_any_time_left() -> None:
    row = running(policy=retrying(timeout=limited(attempt_ms=ATTEMPT_LIMIT)))
    after = applied(row, delay(lease_of(row), NOW + ATTEMPT_LIMIT + 5, None))
    assert after.attempt_left_ms == 1


@pytest.mark.parametrize(
    ("until", "state", "line"),
    [(NOW + 9, "delayed", "delayed"), (NOW, "waiting", "delayed"), (None, "waiting", "released")],
)
def test_a_lease_is_given_back_until_later_or_at_once(
    until: int | None, state: str, line: str
) -> None:
    said = delay(lease_of(running()), NOW, until)
    after = applied(running(), said)
    assert (after.state, after.lease_until_ms, after.worker) == (state, None, "")
    assert said.log is not None
    assert said.log.kind == line
    open_record = record(running(), AttemptLifecycle.SUSPENDED, ended_ms=None)
    assert said.attempt == open_record


def test_an_unstarted_grant_is_given_back_without_a_trace() -> None:
    for before in (submitted(), resuming(), orphaned(), sample(State.REVOKED)):
        grant = granted(before)
        said = release(lease_of(grant), NOW)
        after = applied(grant, said)
        assert said.attempt is None
        traces = {"rev", "epoch", "lease_token", "updated_ms"}
        assert traces >= {
            name
            for name in Execution.__struct_fields__
            if getattr(after, name) != getattr(before, name)
        }


def test_a_log_line_stays_within_a_kilobyte_in_any_script() -> None:
    said = fail(lease_of(running()), NOW, Failure("漢" * 5_000, "類" * 5_000))
    assert len(msgspec.json.encode(said.log)) < 1024
    assert said.attempt is not None
    assert said.attempt.detail.startswith("漢漢")


def test_a_renewal_never_shortens_the_lease_and_so_the_timer_is_never_late() -> None:
    row = running()
    renewed = applied(row, renew(lease_of(row), NOW + 1, 5_000))
    assert renewed.lease_until_ms == row.lease_until_ms
    assert renewed.due_ms is not None
    assert renewed.lease_until_ms is not None
    assert renewed.due_ms <= renewed.lease_until_ms


@pytest.mark.parametrize("late_ms", [-OLD_COPY_MS, 0, 1])
def test_an_old_copy_that_is_renewed_for_less_takes_the_timer_along(late_ms: int) -> None:
    copy = running()
    assert copy.lease_until_ms is not None
    now_ms = copy.lease_until_ms + late_ms
    far = now_ms + 60_000
    rearmed = msgspec.structs.replace(copy, lease_until_ms=far, due_ms=far)
    renewed = applied(rearmed, renew(lease_of(copy), now_ms, 5_000))
    assert (renewed.lease_until_ms, renewed.due_ms) == (now_ms + 5_000, now_ms + 5_000)


def test_an_old_copy_that_is_renewed_forgets_no_earlier_limit() -> None:
    copy = msgspec.structs.replace(running(), deadline_ms=NOW + 40_000)
    assert copy.lease_until_ms is not None
    said = renew(lease_of(copy), copy.lease_until_ms, 3_600_000)
    assert said.patch["due_ms"] == NOW + 40_000


def test_a_lease_that_has_started_cannot_be_started_again() -> None:
    row = running()
    assert not guard_holds(start(lease_of(row), NOW + 9).guard, row, NOW)


def test_a_delay_that_is_over_is_not_seen_again_by_a_slower_clock() -> None:
    row = submitted(NOW + 300, delay_until_ms=NOW + 200)
    assert (row.state, row.not_before_ms) == (State.WAITING, None)
