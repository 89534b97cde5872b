"""Delays: asked for by a submit or by the worker itself."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from flowfabric.core.states import PublicState, State
from flowfabric.errors import InvalidInput
from flowfabric.store.hints import Hint
from flowfabric.testing.build import order
from tests.engine.desk import Desk

DELAYED = (
    "runnable/unowned/not_eligible_until_time/waiting_for_delay/none/attempt_interrupted/delayed"
)
MINUTE_MS = 60_000


@pytest.mark.case("DL-001")
async def test_a_worker_can_put_its_work_off(desk: Desk) -> None:
    lease = await desk.running()
    until_ms = desk.clock.now_ms() + MINUTE_MS
    finished = await desk.engine.delay(lease, until_ms)
    assert (finished.state, finished.until_ms) == (State.DELAYED, until_ms)
    assert await desk.vector(lease.id) == DELAYED
    assert (await desk.snapshot(lease.id)).lease is None
    assert not await desk.is_timed(lease.id, until_ms - 1)
    assert await desk.is_timed(lease.id, until_ms)
    assert await desk.claim() == []


@pytest.mark.case("DL-003")
async def test_a_delayed_submit_says_until_when(desk: Desk) -> None:
    until_ms = desk.clock.now_ms() + 5 * MINUTE_MS
    id = await desk.submit(order(delay_until_ms=until_ms))
    snapshot = await desk.snapshot(id)
    assert snapshot.public_state is PublicState.DELAYED
    assert snapshot.vector.blocking_reason == "waiting_for_delay"
    assert snapshot.blocking_detail.startswith("delayed until ")
    assert await desk.claim() == []


@pytest.mark.case("DL-004", "SH-009")
async def test_a_running_timekeeper_wakes_what_was_delayed_by_itself(desk: Desk) -> None:
    keeper, promoted = desk.timekeeper, asyncio.Event()

    def hear(hint: Hint) -> None:
        if hint.ready:
            promoted.set()

    desk.store.hints.subscribe(keeper.hear)
    running = asyncio.create_task(keeper.loop.run())
    id = await desk.submit(order(delay_until_ms=desk.clock.now_ms() + 50))
    desk.store.hints.subscribe(hear)
    desk.clock.advance(50)
    async with asyncio.timeout(30):
        await promoted.wait()
    keeper.loop.stop()
    await running
    lease = await desk.take(id)
    await desk.engine.complete(lease, b"1")
    assert await desk.engine.read.state(id) is PublicState.COMPLETED


@pytest.mark.case("DL-007")
async def test_a_delay_ends_the_lease_at_once(desk: Desk) -> None:
    lease = await desk.running()
    await desk.engine.delay(lease, desk.clock.now_ms() + 10_000)
    assert (await desk.head(lease.id)).lease_until_ms is None


async def test_a_delay_into_the_past_is_no_delay(desk: Desk) -> None:
    lease = await desk.running()
    finished = await desk.engine.delay(lease, desk.clock.now_ms() - 1)
    assert finished.state is State.WAITING
    assert (await desk.take(lease.id)).head.attempt == 0


async def test_a_delay_keeps_what_is_left_of_the_attempts_time(desk: Desk) -> None:
    text = '{"timeout_policy":{"attempt_timeout_ms":20000}}'
    lease = await desk.running(order(policy=text))
    desk.clock.advance(5_000)
    await desk.engine.delay(lease, desk.clock.now_ms() + MINUTE_MS)
    desk.clock.advance(MINUTE_MS)
    await desk.sweep()
    again = await desk.take(lease.id)
    assert again.head.attempt_until_ms == desk.clock.now_ms() + 15_000


async def test_a_deadline_ends_what_is_delayed(desk: Desk) -> None:
    now_ms = desk.clock.now_ms()
    lease = await desk.running(order(deadline_ms=now_ms + MINUTE_MS))
    await desk.engine.delay(lease, now_ms + 2 * MINUTE_MS)
    desk.clock.advance(MINUTE_MS)
    assert (await desk.sweep()).duties == {"execution_deadline": 1}
    assert await desk.engine.read.state(lease.id) is PublicState.EXPIRED


BY_POLICY = '{"timeout_policy":{"execution_deadline_ms":60000}}'


@pytest.mark.parametrize(("policy", "deadline_ms"), [("", MINUTE_MS), (BY_POLICY, None)])
async def test_what_could_never_start_is_refused(
    desk: Desk, policy: str, deadline_ms: int | None
) -> None:
    """Its deadline would end it before its delay is over, whoever says the deadline."""
    now_ms = desk.clock.now_ms()
    until_ms = None if deadline_ms is None else now_ms + deadline_ms
    wanted = order(policy=policy, deadline_ms=until_ms, delay_until_ms=now_ms + MINUTE_MS)
    (refused,) = await desk.engine.submit([wanted])
    assert isinstance(refused.error, InvalidInput)
    assert (refused.error.field, refused.created) == ("deadline", False)
    assert "never run" in refused.error.message
    sooner = msgspec.structs.replace(wanted, delay_until_ms=now_ms + MINUTE_MS - 1)
    (made,) = await desk.engine.submit([sooner])
    assert (made.error, made.created) == (None, True)


async def test_a_repeated_order_is_answered_when_its_delay_would_now_be_too_long(
    desk: Desk,
) -> None:
    now_ms = desk.clock.now_ms()
    wanted = order(key="k", deadline_ms=now_ms + MINUTE_MS, delay_until_ms=now_ms + 1)
    (first,) = await desk.engine.submit([wanted])
    later = msgspec.structs.replace(wanted, delay_until_ms=now_ms + MINUTE_MS)
    (again,) = await desk.engine.submit([later])
    assert (again.error, again.id, again.created) == (None, first.id, False)
