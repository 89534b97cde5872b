"""Failing: when it is tried again, after how long, and what is remembered of each attempt."""

from __future__ import annotations

import pytest

from flowfabric.core.lifecycle import Failure
from flowfabric.core.policy import Exponential, Policy, RetryPolicy, encode_policy
from flowfabric.core.states import AttemptKind, AttemptLifecycle, PublicState, State
from flowfabric.testing.build import execution_id, order, policy
from tests.engine.desk import BROKEN, Desk

BACKING_OFF = (
    "runnable/unowned/not_eligible_until_time/waiting_for_retry_backoff/none"
    "/pending_retry_attempt/delayed"
)
FAILED = "terminal/unowned/not_applicable/none/failed/attempt_terminal/failed"
PROVIDER = Failure("no answer", "provider_error")


@pytest.mark.case("RT-001")
async def test_a_failure_is_tried_again_after_a_pause(desk: Desk) -> None:
    lease = await desk.running(order(policy=policy(retries=3, pause_ms=10)))
    finished = await desk.engine.fail(lease, PROVIDER)
    until_ms = desk.clock.now_ms() + 10
    assert (finished.state, finished.until_ms) == (State.DELAYED, until_ms)
    assert await desk.vector(lease.id) == BACKING_OFF
    snapshot = await desk.snapshot(lease.id)
    assert (snapshot.lease, snapshot.retry_count) == (None, 1)
    (attempt,) = await desk.attempts(lease.id)
    assert attempt.lifecycle is AttemptLifecycle.ENDED_FAILURE
    assert (attempt.detail, attempt.category) == ("no answer", "provider_error")
    assert not await desk.is_timed(lease.id, until_ms - 1)
    assert await desk.is_timed(lease.id, until_ms)
    assert await desk.claim() == []


@pytest.mark.case("RT-002", "RT-009", "PA-015")
async def test_after_the_pause_it_runs_as_a_new_attempt(desk: Desk) -> None:
    lease = await desk.running(order(policy=policy(retries=3, pause_ms=10)))
    assert (lease.head.attempt, lease.epoch) == (0, 1)
    finished = await desk.engine.fail(lease, Failure("transient"))
    assert finished.next_attempt == 1
    desk.clock.advance(10)
    assert (await desk.sweep()).duties == {"delayed_promoter": 1}
    assert await desk.vector(lease.id) == (
        "runnable/unowned/eligible_now/waiting_for_worker/none/pending_retry_attempt/waiting"
    )
    (again,) = await desk.claim()
    assert (again.head.attempt, again.epoch) == (1, 2)
    assert (await desk.head(lease.id)).attempt == 1
    retry = (await desk.attempts(lease.id))[1]
    assert (retry.kind, retry.lifecycle) == (AttemptKind.RETRY, AttemptLifecycle.STARTED)


@pytest.mark.case("RT-003", "RT-007")
async def test_without_a_policy_a_failure_is_the_end(desk: Desk) -> None:
    lease = await desk.running(order(policy=""))
    finished = await desk.engine.fail(lease, BROKEN)
    assert (finished.state, finished.next_attempt) == (State.FAILED, None)
    assert await desk.vector(lease.id) == FAILED
    snapshot = await desk.snapshot(lease.id)
    assert (snapshot.lease, snapshot.outcome_detail) == (None, "broke")
    (attempt,) = await desk.attempts(lease.id)
    assert attempt.lifecycle is AttemptLifecycle.ENDED_FAILURE
    assert (await desk.history(lease.id)).count("failed") == 1


@pytest.mark.case("RT-006")
async def test_a_policy_is_read_as_it_was_written(desk: Desk) -> None:
    text = '{"retry_policy":{"max_retries":3,"backoff":{"type":"fixed","delay_ms":500}}}'
    lease = await desk.running(order(policy=text))
    finished = await desk.engine.fail(lease, BROKEN)
    assert finished.next_attempt == 1
    assert finished.until_ms == desk.clock.now_ms() + 500
    snapshot = await desk.snapshot(lease.id)
    assert snapshot.vector.phase == "runnable"
    assert (snapshot.public_state, snapshot.retry_count) == (PublicState.DELAYED, 1)


@pytest.mark.case("RT-008")
async def test_the_stored_policy_decides_and_a_fatal_failure_overrules_it(desk: Desk) -> None:
    retrying = policy(retries=3)
    plain = await desk.running(order(1))
    transient = await desk.running(order(2, policy=retrying))
    permanent = await desk.running(order(3, policy=retrying))
    states = [
        (await desk.engine.fail(plain, Failure("transient"))).state,
        (await desk.engine.fail(transient, Failure("transient"))).state,
        (await desk.engine.fail(permanent, Failure("permanent", fatal=True))).state,
    ]
    assert states == [State.FAILED, State.DELAYED, State.FAILED]
    assert (await desk.history(permanent.id)).count("failed") == 1


@pytest.mark.case("RT-013")
async def test_what_does_not_exist_has_no_attempts(desk: Desk) -> None:
    assert await desk.attempts(execution_id(999)) == []


async def test_retries_end_when_they_are_used_up(desk: Desk) -> None:
    id = await desk.submit(order(policy=policy(retries=2, pause_ms=0)))
    states = [(await desk.engine.fail(await desk.take(id), BROKEN)).state for _ in range(3)]
    assert states == [State.WAITING, State.WAITING, State.FAILED]
    assert [attempt.kind for attempt in await desk.attempts(id)] == ["initial", "retry", "retry"]
    assert (await desk.snapshot(id)).retry_count == 2


async def test_pauses_grow_up_to_their_limit(desk: Desk) -> None:
    growing = RetryPolicy(4, Exponential(1_000, 3_000, 2.0))
    id = await desk.submit(order(policy=encode_policy(Policy(retry_policy=growing))))
    pauses: list[int] = []
    for _ in range(4):
        finished = await desk.engine.fail(await desk.take(id), BROKEN)
        assert finished.until_ms is not None
        pauses.append(finished.until_ms - desk.clock.now_ms())
        desk.clock.set(finished.until_ms)
        await desk.sweep()
    assert pauses == [1_000, 2_000, 3_000, 3_000]


async def test_only_the_named_categories_are_tried_again(desk: Desk) -> None:
    named = RetryPolicy(3, retryable_categories=("provider_error",))
    text = encode_policy(Policy(retry_policy=named))
    good = await desk.running(order(1, policy=text))
    bad = await desk.running(order(2, policy=text))
    assert (await desk.engine.fail(good, PROVIDER)).state is State.DELAYED
    assert (await desk.engine.fail(bad, BROKEN)).state is State.FAILED


async def test_a_replay_has_all_its_retries_again(desk: Desk) -> None:
    id = await desk.submit(order(policy=policy(retries=1, pause_ms=0)))
    for _ in range(2):
        await desk.engine.fail(await desk.take(id), BROKEN)
    await desk.engine.replay(id)
    again = await desk.take(id)
    assert (again.head.attempt, again.head.retry_count) == (2, 0)
    assert (await desk.engine.fail(again, BROKEN)).state is State.WAITING
