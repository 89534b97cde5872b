"""Deadlines of executions and limits of attempts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from flowfabric.app import App
from flowfabric.core.model import Lease
from flowfabric.core.operator import ExpireReason
from flowfabric.core.policy import OnAttemptTimeout
from flowfabric.core.states import AttemptKind, AttemptLifecycle, PublicState, State
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.errors import ExecutionExpired, ExecutionNotActive, InvalidInput
from flowfabric.store.hints import Hint
from flowfabric.testing.build import execution_id, order, policy
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from tests.engine.desk import Desk

HOUR_MS = 3_600_000
LIMITED = policy(attempt_timeout_ms=10_000)


async def overdue(desk: Desk, text: str) -> Lease:
    """A running attempt whose time is over while its lease is not."""
    lease = await desk.running(order(policy=text))
    desk.clock.advance(10_000)
    assert lease.until_ms > desk.clock.now_ms()
    return lease


@pytest.mark.case("TO-001")
async def test_a_running_execution_can_be_expired(desk: Desk) -> None:
    lease = await desk.running()
    assert await desk.engine.expire(lease.id, ExpireReason.ATTEMPT_TIMEOUT)
    assert await desk.vector(lease.id) == (
        "terminal/unowned/not_applicable/none/expired/attempt_terminal/expired"
    )
    snapshot = await desk.snapshot(lease.id)
    assert (snapshot.lease, snapshot.outcome_detail) == (None, "attempt_timeout")
    (attempt,) = await desk.attempts(lease.id)
    assert attempt.lifecycle is AttemptLifecycle.ENDED_FAILURE
    with pytest.raises(ExecutionNotActive):
        await desk.engine.complete(lease, b"late")


@pytest.mark.case("TO-002")
async def test_a_deadline_is_a_timer_at_exactly_its_instant(desk: Desk) -> None:
    deadline_ms = desk.clock.now_ms() + HOUR_MS + 123
    id = await desk.submit(order(deadline_ms=deadline_ms))
    assert (await desk.head(id)).due_ms == deadline_ms
    assert not await desk.is_timed(id, deadline_ms - 1)
    assert await desk.is_timed(id, deadline_ms)


@pytest.mark.case("TO-003")
async def test_a_deadline_ends_what_never_ran(desk: Desk) -> None:
    id = await desk.submit(order(deadline_ms=desk.clock.now_ms() + 1_000))
    desk.clock.advance(1_000)
    assert (await desk.sweep()).duties == {"execution_deadline": 1}
    assert await desk.vector(id) == (
        "terminal/unowned/not_applicable/none/expired/pending_first_attempt/expired"
    )
    assert (await desk.snapshot(id)).outcome_detail == "execution_deadline"
    assert await desk.claim() == []


@pytest.mark.case("TO-005")
async def test_a_lost_lease_is_reclaimed_and_costs_no_retry(desk: Desk) -> None:
    lease = await desk.running(order(policy=policy(retries=3)))
    desk.clock.set(lease.until_ms + HOUR_MS)
    swept = await desk.sweep()
    assert (swept.processed, swept.errors, swept.duties) == (1, 0, {"lease_expiry": 1})
    head = await desk.head(lease.id)
    assert (head.state, head.retry_count, head.next_attempt) == (State.ORPHANED, 0, 1)
    (attempt,) = await desk.attempts(lease.id)
    assert attempt.lifecycle is AttemptLifecycle.INTERRUPTED_RECLAIMED
    assert (await desk.take(lease.id)).head.attempt_kind is AttemptKind.RECLAIM


@pytest.mark.case("TO-010")
async def test_an_end_by_deadline_is_announced(desk: Desk) -> None:
    heard: list[Hint] = []
    id = await desk.submit(order(deadline_ms=desk.clock.now_ms() + 1_000))
    desk.store.hints.subscribe(heard.append)
    desk.clock.advance(1_000)
    await desk.sweep()
    assert [hint.ended for hint in heard if not hint.foreign] == [(id,)]
    event = (await desk.events(id))[-1]
    assert (event.execution, event.state, event.kind) == (id, State.EXPIRED, "expired")


@pytest.mark.case("TO-013")
async def test_expiring_what_is_over_is_no_error_and_changes_nothing(desk: Desk) -> None:
    id = await desk.completed()
    before = await desk.head(id)
    assert not await desk.engine.expire(id, ExpireReason.EXECUTION_DEADLINE)
    assert await desk.head(id) == before


@pytest.mark.case("TO-015")
async def test_attempts_out_of_time_expire_in_order_and_in_bounded_batches(desk: Desk) -> None:
    for number in range(3):
        await desk.running(order(number, policy=LIMITED))
        desk.clock.advance(100)
    keeper = Timekeeper(desk.store, desk.engine.clock, batch=2)
    assert (await keeper.run_once()).processed == 0
    desk.clock.advance(10_000)
    first = await keeper.run_once()
    assert (first.duties, first.again) == ({"attempt_timeout": 2}, True)
    states = [(await desk.head(execution_id(number))).state for number in range(3)]
    assert states == [State.EXPIRED, State.EXPIRED, State.ACTIVE]
    second = await keeper.run_once()
    assert (second.duties, second.again) == ({"attempt_timeout": 1}, False)
    snapshots = [await desk.snapshot(execution_id(number)) for number in range(3)]
    assert [each.outcome_detail for each in snapshots] == ["attempt_timeout"] * 3
    assert [each.public_state for each in snapshots] == [PublicState.EXPIRED] * 3


@pytest.mark.case("TO-016")
@pytest.mark.parametrize("verb", [Verb.DUE, Verb.APPLY])
async def test_a_store_in_trouble_is_one_error_and_changes_nothing(desk: Desk, verb: Verb) -> None:
    lease = await overdue(desk, LIMITED)
    faulty = FaultyStore(desk.store, [Fault(verb, 1, Kind.BEFORE, times=99)])
    swept = await Timekeeper(faulty, desk.engine.clock).run_once()
    assert (swept.processed, swept.errors, swept.duties) == (0, 1, {})
    assert (await desk.head(lease.id)).state is State.ACTIVE
    assert (await desk.sweep()).processed == 1


@pytest.mark.case("TO-020")
async def test_a_deadline_given_to_a_task_holds(desk: Desk) -> None:
    app = App(store=desk.store)

    @app.task
    async def work() -> None: ...

    deadline_ms = desk.clock.now_ms() + 5_000
    handle = await work.options(deadline=datetime.fromtimestamp(deadline_ms / 1_000, UTC)).start()
    assert (await handle.status()).deadline_ms == deadline_ms
    desk.clock.advance(5_000)
    await desk.sweep()
    with pytest.raises(ExecutionExpired, match="execution_deadline"):
        await handle.result(30)
    await app.close()


async def test_an_attempt_out_of_time_ends_the_execution_by_default(desk: Desk) -> None:
    lease = await overdue(desk, LIMITED)
    assert (await desk.sweep()).duties == {"attempt_timeout": 1}
    assert (await desk.head(lease.id)).state is State.EXPIRED
    (attempt,) = await desk.attempts(lease.id)
    assert (attempt.lifecycle, attempt.detail) == ("ended_failure", "attempt_timeout")


async def test_an_attempt_out_of_time_is_tried_again_if_asked_for(desk: Desk) -> None:
    text = policy(
        retries=1, attempt_timeout_ms=10_000, on_attempt_timeout=OnAttemptTimeout.RETRY, pause_ms=0
    )
    lease = await overdue(desk, text)
    await desk.sweep()
    head = await desk.head(lease.id)
    assert (head.state, head.retry_count, head.epoch) == (State.WAITING, 1, lease.epoch + 1)
    with pytest.raises(ExecutionNotActive):
        await desk.engine.complete(lease, b"late")
    again = await desk.take(lease.id)
    assert (again.head.attempt, again.head.attempt_kind) == (1, AttemptKind.RETRY)
    desk.clock.advance(10_000)
    await desk.sweep()
    assert (await desk.head(lease.id)).state is State.EXPIRED


async def test_a_deadline_ends_what_is_running(desk: Desk) -> None:
    lease = await desk.running(order(deadline_ms=desk.clock.now_ms() + 1_000))
    desk.clock.advance(1_000)
    await desk.sweep()
    assert (await desk.head(lease.id)).state is State.EXPIRED
    (attempt,) = await desk.attempts(lease.id)
    assert attempt.lifecycle is AttemptLifecycle.ENDED_FAILURE


async def test_a_deadline_in_the_past_is_refused_and_spoils_no_other(desk: Desk) -> None:
    late = order(1, deadline_ms=desk.clock.now_ms())
    refused, made = await desk.engine.submit([late, order(2)])
    assert isinstance(refused.error, InvalidInput)
    assert refused.error.field == "deadline"
    assert (made.created, made.error) == (True, None)
    assert await desk.engine.read.describe(late.id) is None


async def test_a_replay_forgets_a_deadline_that_is_past(desk: Desk) -> None:
    id = await desk.submit(order(deadline_ms=desk.clock.now_ms() + 1_000))
    desk.clock.advance(1_000)
    await desk.sweep()
    await desk.engine.replay(id)
    assert (await desk.snapshot(id)).deadline_ms is None
    assert (await desk.sweep()).processed == 0
    assert (await desk.take(id)).head.attempt == 0
