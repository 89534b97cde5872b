"""The timekeeper: each duty, rows that cannot be handled, and several of them on one store."""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never

import pytest

from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.core.model import Execution
from flowfabric.core.operator import RECHECK_MS
from flowfabric.core.states import PublicState, Reason, State
from flowfabric.core.timers import POISON_LIMIT, POISON_PAUSE_MAX_MS, Due, Duty, on_due
from flowfabric.engine.engine import Engine
from flowfabric.engine.telemetry import TIMERS_DONE
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.store.hints import Hint
from flowfabric.testing.build import ROUTE, execution_id, order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import Corrupter
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from tests.conftest import SIZE
from tests.corrupter import raw_client
from tests.engine.desk import Desk


async def due_for(desk: Desk, duty: Duty, *, in_ms: int = 0) -> ExecutionId:
    """An execution whose one timer is this duty, and which is due now or a little later."""
    soon_ms = desk.clock.now_ms() + 1_000
    match duty:
        case Duty.EXECUTION_DEADLINE:
            id = await desk.submit(order(deadline_ms=soon_ms))
        case Duty.DELAYED_PROMOTER:
            id = await desk.submit(order(delay_until_ms=soon_ms))
        case Duty.ATTEMPT_TIMEOUT:
            id = (await desk.running(order(policy=policy(attempt_timeout_ms=1_000)))).id
        case Duty.LEASE_EXPIRY:
            id = (await desk.running()).id
        case Duty.GRANT_EXPIRY:
            id = (await desk.take(await desk.submit(), start=False)).id
        case Duty.UNBLOCK:
            id = await desk.submit()
            await desk.engine.block(id, Reason.WAITING_FOR_QUOTA)
        case _:
            assert_never(duty)
    due_ms = (await desk.head(id)).due_ms
    assert due_ms is not None
    desk.clock.set(due_ms - in_ms)
    return id


BECOMES = {
    Duty.EXECUTION_DEADLINE: (State.EXPIRED, "expired"),
    Duty.ATTEMPT_TIMEOUT: (State.EXPIRED, "expired"),
    Duty.GRANT_EXPIRY: (State.WAITING, "grant_expired"),
    Duty.LEASE_EXPIRY: (State.ORPHANED, "lease_expired"),
    Duty.DELAYED_PROMOTER: (State.WAITING, "promoted"),
    Duty.UNBLOCK: (State.WAITING, "unblocked"),
}


@pytest.mark.parametrize("duty", Duty)
async def test_each_duty_is_done_once_when_it_is_due(desk: Desk, duty: Duty) -> None:
    id = await due_for(desk, duty)
    first, second = await desk.sweep(), await desk.sweep()
    assert (first.duties, first.processed, first.errors) == ({duty: 1}, 1, 0)
    assert second.processed == 0
    state, line = BECOMES[duty]
    assert (await desk.head(id)).state is state
    assert (await desk.history(id))[-1] == line


@pytest.mark.parametrize("duty", Duty)
async def test_no_duty_is_done_a_moment_too_soon(desk: Desk, duty: Duty) -> None:
    id = await due_for(desk, duty, in_ms=1)
    before = await desk.head(id)
    swept = await desk.sweep()
    assert (swept.processed, swept.errors, swept.next_ms) == (0, 0, desk.clock.now_ms() + 1)
    assert await desk.head(id) == before


async def test_a_clock_that_is_behind_is_corrected_before_it_looks(desk: Desk) -> None:
    await due_for(desk, Duty.DELAYED_PROMOTER)
    slow = Engine(desk.store, clock=VirtualClock(desk.clock.now_ms() - 60_000))
    swept = await Timekeeper(desk.store, slow.clock).run_once()
    assert swept.duties == {Duty.DELAYED_PROMOTER: 1}


async def test_a_gate_is_asked_again_and_again(desk: Desk) -> None:
    id = await desk.submit()
    for _ in range(3):
        await desk.engine.block(id, Reason.WAITING_FOR_BUDGET)
        desk.clock.advance(RECHECK_MS)
        assert (await desk.sweep()).duties == {"unblock": 1}
    assert await desk.engine.read.state(id) is PublicState.WAITING


async def test_a_sweep_says_when_the_next_timer_passes(desk: Desk) -> None:
    now_ms = desk.clock.now_ms()
    assert (await desk.sweep()).next_ms is None
    await desk.submit(order(1, delay_until_ms=now_ms + 9_000))
    await desk.submit(order(2, delay_until_ms=now_ms + 4_000))
    assert (await desk.sweep()).next_ms == now_ms + 4_000


async def test_a_full_batch_is_followed_by_another(desk: Desk) -> None:
    soon_ms = desk.clock.now_ms() + 1_000
    await desk.engine.submit([order(n, delay_until_ms=soon_ms + n) for n in range(5)])
    desk.clock.advance(2_000)
    keeper = Timekeeper(desk.store, desk.engine.clock, batch=2)
    sweeps = [await keeper.run_once() for _ in range(3)]
    assert [(sweep.processed, sweep.again) for sweep in sweeps] == [
        (2, True),
        (2, True),
        (1, False),
    ]


async def test_a_row_that_changed_meanwhile_is_left_alone_and_looked_at_again(desk: Desk) -> None:
    lease = await desk.running()
    desk.clock.set(lease.until_ms)

    async def rival() -> None:
        await desk.engine.cancel(lease.id)

    plan = [Fault(Verb.APPLY, 1, Kind.DELAY, hook=rival)]
    keeper = Timekeeper(FaultyStore(desk.store, plan), desk.engine.clock)
    swept = await keeper.run_once()
    assert (swept.processed, swept.errors, swept.again) == (0, 0, True)
    assert (await desk.head(lease.id)).state is State.CANCELLED


async def test_a_store_that_does_not_answer_is_asked_again_in_a_second(desk: Desk) -> None:
    silent = FaultyStore(desk.store, [Fault(Verb.DUE, n, Kind.BEFORE) for n in range(1, 20)])
    swept = await Timekeeper(silent, desk.engine.clock).run_once()
    assert (swept.errors, swept.again) == (1, False)
    assert swept.next_ms == desk.clock.now_ms() + 1_000


async def test_a_reply_that_was_lost_does_nothing_twice(desk: Desk) -> None:
    id = await due_for(desk, Duty.LEASE_EXPIRY)
    faulty = FaultyStore(desk.store, [Fault(Verb.APPLY, 1, Kind.AFTER)])
    swept = await Timekeeper(faulty, desk.engine.clock).run_once()
    assert (swept.errors, len(faulty.hit)) == (0, 1)
    head = await desk.head(id)
    assert (head.state, head.reclaim_count) == (State.ORPHANED, 1)


@pytest.mark.parametrize("keepers", [2, 5])
async def test_several_timekeepers_share_the_work(desk: Desk, keepers: int) -> None:
    soon_ms = desk.clock.now_ms() + 1_000
    await desk.engine.submit([order(n, delay_until_ms=soon_ms) for n in range(60)])
    desk.clock.advance(1_000)
    several = [Timekeeper(desk.store, desk.engine.clock) for _ in range(keepers)]
    sweeps = await asyncio.gather(*(keeper.run_once() for keeper in several))
    assert sum(sweep.processed for sweep in sweeps) == 60
    assert sum(sweep.errors for sweep in sweeps) == 0
    kinds = [(await desk.history(execution_id(n))).count("promoted") for n in range(60)]
    assert kinds == [1] * 60


# What one partition has due, in how many others one is due, and what a round takes.
CROWD, OTHERS, ROUND = (5_000, 255, 500) if SIZE == "long" else (50, 20, 10)


async def rounds_until_done(keeper: Timekeeper) -> int:
    rounds = 1
    while (await keeper.run_once()).again:
        rounds += 1
    return rounds


@pytest.mark.lab
async def test_a_crowd_in_one_partition_keeps_no_other_waiting(desk: Desk) -> None:
    due_ms = desk.clock.now_ms() + 1_000
    ids = [execution_id(number, partition=0) for number in range(CROWD)]
    ids += [execution_id(number, partition=number) for number in range(1, OTHERS + 1)]
    await desk.engine.submit([order(id=id, delay_until_ms=due_ms) for id in ids])
    desk.clock.set(due_ms)
    keeper = Timekeeper(desk.store, desk.engine.clock, batch=ROUND)
    assert await rounds_until_done(keeper) <= len(ids) // ROUND + 1
    assert keeper.counts.labels(TIMERS_DONE) == {"delayed_promoter": len(ids)}


@pytest.mark.lab
async def test_poison_at_the_head_keeps_nothing_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = desk.clock.now_ms()
    bad = {execution_id(number) for number in range(2 * ROUND)}
    good = [execution_id(number) for number in range(2 * ROUND, 3 * ROUND)]
    await desk.engine.submit([order(id=id, delay_until_ms=now_ms + 1_000) for id in sorted(bad)])
    await desk.engine.submit([order(id=id, delay_until_ms=now_ms + 2_000) for id in good])

    def spoilt(row: Execution, now_ms: int) -> Due:
        if row.id in bad:
            raise RuntimeError("cannot be decided")
        return on_due(row, now_ms)

    monkeypatch.setattr("flowfabric.engine.timekeeper.on_due", spoilt)
    desk.clock.advance(2_000)
    keeper = Timekeeper(desk.store, desk.engine.clock, batch=ROUND)
    sweeps = [await keeper.run_once() for _ in range(4)]
    assert [(sweep.processed, sweep.errors) for sweep in sweeps] == [
        (0, ROUND),
        (0, ROUND),
        (ROUND, 0),
        (0, 0),
    ]
    # A new engine finds them where this one put them.
    assert (await desk.another().timekeeper.run_once()).errors == 0
    assert {(await desk.head(id)).failures for id in bad} == {1}


class TestPoison:
    """A row that cannot be handled moves forward in time and is parked in the end."""

    async def test_a_row_that_cannot_be_read_keeps_nothing_back(
        self, desk: Desk, corrupter: Corrupter, caplog: pytest.LogCaptureFixture
    ) -> None:
        now_ms = desk.clock.now_ms()
        bad = [await desk.submit(order(n, delay_until_ms=now_ms + 1_000)) for n in range(3)]
        good = [await desk.submit(order(n, delay_until_ms=now_ms + 2_000)) for n in range(3, 6)]
        for id in bad:
            await corrupter(id)
        desk.clock.advance(2_000)
        keeper = Timekeeper(desk.store, desk.engine.clock, batch=3)
        with caplog.at_level(logging.ERROR, "flowfabric.timekeeper"):
            first = await keeper.run_once()
        second = await keeper.run_once()
        assert (first.processed, first.errors, first.again) == (0, 3, True)
        assert (second.processed, second.errors) == (3, 0)
        assert [record.__dict__["execution"] for record in caplog.records] == [
            public_id(id) for id in bad
        ]
        assert {(await desk.head(id)).state for id in good} == {State.WAITING}

    async def test_it_is_tried_less_and_less_often_and_then_parked(
        self, desk: Desk, corrupter: Corrupter
    ) -> None:
        id = await desk.submit(order(delay_until_ms=desk.clock.now_ms() + 1_000))
        await corrupter(id)
        pauses: list[int] = []
        desk.clock.advance(1_000)
        while (swept := await desk.sweep()).errors:
            following = (await desk.sweep()).next_ms
            if following is None:
                break
            pauses.append(following - desk.clock.now_ms())
            desk.clock.set(following)
        assert swept.errors == 1
        assert pauses == [min(1_000 * 2**n, POISON_PAUSE_MAX_MS) for n in range(POISON_LIMIT - 1)]
        desk.clock.advance(10 * POISON_PAUSE_MAX_MS)
        assert (await desk.sweep()).errors == 0

    async def test_a_policy_that_cannot_be_read_parks_the_execution_and_says_so(
        self, desk: Desk
    ) -> None:
        id = await self._with_bad_policy(desk)
        told = await desk.engine.read.explain(id)
        assert told.wakes == "operator"
        assert told.sentence.startswith(f"parked after {POISON_LIMIT} failures: ")
        assert (await desk.history(id))[-1] == "parked"
        assert (await desk.sweep()).next_ms is None

    async def test_what_was_parked_can_be_cancelled_and_is_explained_as_that(
        self, desk: Desk
    ) -> None:
        id = await self._with_bad_policy(desk)
        await desk.engine.cancel(id, "given up")
        told = await desk.engine.read.explain(id)
        assert told.wakes == "over"
        assert "given up" in told.sentence

    async def _with_bad_policy(self, desk: Desk) -> ExecutionId:
        """A lease that nobody renews, with a policy that a newer version wrote."""
        lease = await desk.running()
        await write_policy(desk, lease.id, '{"from":"the future"}')
        desk.clock.set(lease.until_ms)
        for _ in range(POISON_LIMIT):
            swept = await desk.sweep()
            assert (swept.processed, swept.errors) == (0, 1)
            desk.clock.advance(POISON_PAUSE_MAX_MS)
        return lease.id


async def write_policy(desk: Desk, id: ExecutionId, text: str) -> None:
    """Past the engine, as a later version of it might: the column is written once."""
    await raw_client(desk.store).write(await desk.head(id), "policy", text)


class TestWaking:
    """The loop sleeps until the next timer; a hint about a sooner one wakes it."""

    @pytest.mark.parametrize(
        ("hint", "wakes"),
        [
            (Hint(due_ms=4_999), True),
            (Hint(due_ms=5_000), False),
            (Hint(due_ms=5_001), False),
            (Hint(ready=(ROUTE,)), False),
            (Hint(foreign=True), True),
        ],
    )
    async def test_only_what_is_sooner_wakes_it(self, desk: Desk, hint: Hint, wakes: bool) -> None:
        keeper = desk.timekeeper
        keeper._next_ms = 5_000
        keeper.hear(hint)
        assert keeper.loop._woken.is_set() == wakes

    async def test_every_timer_wakes_one_that_waits_for_none(self, desk: Desk) -> None:
        desk.timekeeper.hear(Hint(due_ms=10**15))
        assert desk.timekeeper.loop._woken.is_set()


async def test_timers_that_take_long_to_read_are_served_with_the_time_of_now(desk: Desk) -> None:
    id = await due_for(desk, Duty.LEASE_EXPIRY)

    async def slow() -> None:
        desk.clock.advance(SKEW_LIMIT_MS + 200)

    faulty = FaultyStore(desk.store, [Fault(Verb.DUE, 1, Kind.DELAY, times=99, hook=slow)])
    swept = await Timekeeper(faulty, desk.engine.clock).run_once()
    assert (swept.processed, swept.errors, len(faulty.hit)) == (1, 0, 1)
    assert (await desk.head(id)).state is State.ORPHANED
