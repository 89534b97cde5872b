"""Leases are renewed by a thread of its own, all in one call, and given up before they end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import cast

import pytest

from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.core.model import Lease
from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.engine.hints import Hint
from flowfabric.engine.renewals import Renewed
from flowfabric.errors import FlowFabricError, LeaseExpired, StaleLease
from flowfabric.store.clock import SystemClock
from flowfabric.testing.build import TTL_MS
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.worker.keeper import Keeper
from tests.worker.floor import PATIENCE_SECONDS, Floor

Lost = list[tuple[ExecutionId, FlowFabricError]]


def keeper_of(floor: Floor) -> tuple[Keeper, Lost]:
    lost: Lost = []
    keeper = Keeper(floor.engine, TTL_MS, lambda lease, error: lost.append((lease.id, error)))
    return keeper, lost


async def held(floor: Floor, count: int) -> list[Lease]:
    @floor.task
    async def work() -> None: ...

    await floor.submit_many("work", count)
    return await floor.claim(count)


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(floor: Floor) -> None:
    renewed: list[bool] = []
    async with floor.working() as worker:

        @floor.task
        async def blocks() -> str:
            renewing = threading.Thread(target=renew_from_another_thread)
            renewing.start()
            # Not awaited: meanwhile this event loop does nothing at all.
            renewing.join(PATIENCE_SECONDS)
            assert renewed == [True, True, True]
            return "still mine"

        def renew_from_another_thread() -> None:
            for _ in range(3):
                floor.clock.advance(TTL_MS - 1_000)
                renewed.append(asyncio.run(worker._keeper.renew_all()))

        id = await floor.submit("blocks")
        await floor.until(State.COMPLETED, 1)
    assert await floor.kinds(id) == ["submitted", "claimed", "completed"]


class Recorder:
    """An engine that only renews, says who asked, and may fail at first."""

    def __init__(self, failures: int = 0) -> None:
        self.clock = SystemClock()
        self.threads: list[str] = []
        self.renewed = threading.Event()
        self._failures = failures

    async def renew(self, leases: Sequence[Lease], ttl_ms: int) -> list[Renewed]:
        self.threads.append(threading.current_thread().name)
        if len(self.threads) <= self._failures:
            raise RuntimeError("nobody expected this")
        self.renewed.set()
        return [Renewed(lease) for lease in leases]


@pytest.mark.parametrize("failures", [0, 3])
async def test_the_thread_renews_by_itself_and_outlives_every_error(
    floor: Floor, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.worker.keeper.RETRY_SECONDS", 0.001)
    floor.clock.set(SystemClock().now_ms())
    leases = await held(floor, 2)
    recorder = Recorder(failures)
    keeper = Keeper(cast(Engine, recorder), 30, lambda lease, error: None)
    keeper.hold(leases)
    keeper.start()
    # The event loop is blocked here: it cannot be what renews.
    assert recorder.renewed.wait(10)
    keeper.stop()
    assert set(recorder.threads) == {"flowfabric-keeper"}


async def test_all_leases_are_renewed_in_one_call(floor: Floor, faulty: FaultyStore) -> None:
    keeper, lost = keeper_of(floor)
    leases = await held(floor, 200)
    keeper.hold(leases)
    floor.clock.advance(20_000)
    before = faulty.calls[Verb.ANY]
    assert await keeper.renew_all()
    assert faulty.calls[Verb.ANY] - before == 1
    assert lost == []
    for lease in (leases[0], leases[-1]):
        assert (await floor.engine.adopt(lease.id)).until_ms == floor.clock.now_ms() + TTL_MS


async def test_nothing_held_is_nothing_asked(floor: Floor, faulty: FaultyStore) -> None:
    keeper, _ = keeper_of(floor)
    before = faulty.calls[Verb.ANY]
    assert await keeper.renew_all()
    assert faulty.calls[Verb.ANY] == before


async def test_a_lost_lease_is_told_once_and_the_others_go_on(floor: Floor) -> None:
    keeper, lost = keeper_of(floor)
    leases = await held(floor, 3)
    keeper.hold(leases)
    await floor.engine.revoke(leases[1].id)
    assert await keeper.renew_all()
    assert await keeper.renew_all()
    assert [(id, error.code) for id, error in lost] == [(leases[1].id, "lease_revoked")]


async def test_a_dropped_lease_is_not_renewed(floor: Floor) -> None:
    keeper, lost = keeper_of(floor)
    leases = await held(floor, 2)
    keeper.hold(leases)
    keeper.drop([leases[0]])
    floor.clock.advance(20_000)
    await keeper.renew_all()
    ends = [(await floor.engine.adopt(lease.id)).until_ms for lease in leases]
    assert ends[0] == leases[0].until_ms
    assert ends[1] > leases[1].until_ms
    assert lost == []


async def test_dropping_an_old_lease_leaves_a_newer_one(floor: Floor) -> None:
    keeper, _ = keeper_of(floor)
    (old,) = await held(floor, 1)
    await floor.engine.revoke(old.id)
    (new,) = await floor.claim()
    keeper.hold([new])
    keeper.drop([old])
    assert list(keeper._held) == [new.id]


async def test_leases_are_kept_while_the_store_is_away(floor: Floor, faulty: FaultyStore) -> None:
    keeper, lost = keeper_of(floor)
    keeper.hold(await held(floor, 2))
    faulty.plan.append(Fault(Verb.APPLY, faulty.calls[Verb.APPLY] + 1, Kind.BEFORE, times=3))
    assert not await keeper.renew_all()
    assert lost == []
    assert await keeper.renew_all()


async def test_leases_are_given_up_before_the_store_ends_them(
    floor: Floor, faulty: FaultyStore
) -> None:
    keeper, lost = keeper_of(floor)
    leases = await held(floor, 2)
    # However long the answer took: the lease ends when the store said it does.
    floor.clock.advance(TTL_MS - 300)
    keeper.hold(leases)
    faulty.plan.append(Fault(Verb.APPLY, faulty.calls[Verb.APPLY] + 1, Kind.BEFORE, times=3))
    assert not await keeper.renew_all()
    assert {id for id, _ in lost} == {lease.id for lease in leases}
    assert all(isinstance(error, LeaseExpired) for _, error in lost)


async def test_a_renewal_that_hangs_is_not_waited_for(floor: Floor, faulty: FaultyStore) -> None:
    keeper, lost = keeper_of(floor)
    leases = await held(floor, 1)
    floor.clock.advance(TTL_MS - 300)
    keeper.hold(leases)

    async def never() -> None:
        await asyncio.Event().wait()

    faulty.plan.append(Fault(Verb.APPLY, faulty.calls[Verb.APPLY] + 1, Kind.DELAY, hook=never))
    assert not await keeper.renew_all()
    assert [id for id, _ in lost] == [leases[0].id]


async def test_a_lease_that_another_holds_is_stale(floor: Floor) -> None:
    keeper, lost = keeper_of(floor)
    (mine,) = await held(floor, 1)
    keeper.hold([mine])
    await floor.engine.revoke(mine.id)
    await floor.claim()
    await keeper.renew_all()
    assert [type(error) for _, error in lost] == [StaleLease]


async def test_a_lost_lease_stops_the_coroutine(
    floor: Floor, caplog: pytest.LogCaptureFixture
) -> None:
    started, stopped, attempts = asyncio.Event(), asyncio.Event(), list[int]()

    @floor.task
    async def work() -> int:
        attempts.append(len(attempts))
        if len(attempts) > 1:
            return len(attempts)
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return 0

    id = await floor.submit("work")
    with caplog.at_level(logging.INFO, "flowfabric.worker"):
        async with floor.working() as worker:
            await started.wait()
            floor.clock.advance(TTL_MS)
            await worker._keeper.renew_all()
            await stopped.wait()
            await floor.timekeeper.run_once()
            await floor.until(State.COMPLETED, 1)
    assert f"stopping {public_id(id)}" in caplog.text
    assert await floor.engine.read.result(id) == b"2"
    assert (await floor.status(id)).reclaim_count == 1


async def test_a_loss_that_is_told_twice_does_not_disturb_the_cleaning_up(floor: Floor) -> None:
    started, stopped, told = asyncio.Event(), asyncio.Event(), asyncio.Event()
    clean: list[bool] = []

    @floor.task
    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            stopped.set()
            await told.wait()
            clean.append(True)

    id = await floor.submit("work")
    async with floor.working() as worker:
        await started.wait()
        await floor.engine.cancel(id)
        await stopped.wait()
        # The keeper finds out by itself as well.
        assert await worker._keeper.renew_all()
        assert worker._keeper._held == {}
        for _ in range(10):
            await asyncio.sleep(0)
        told.set()
    assert clean == [True]


async def test_a_false_alarm_stops_nothing(floor: Floor) -> None:
    """Hints may be wrong: before the user's code is stopped, the store is asked."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @floor.task
    async def work() -> str:
        started.set()
        await go_on.wait()
        return "undisturbed"

    id = await floor.submit("work")
    async with floor.working() as worker:
        await started.wait()
        floor.engine.hints.publish(Hint(fenced=(id,)))
        await asyncio.wait(set(worker._checks))
        go_on.set()
        await floor.until(State.COMPLETED, 1)
    assert await floor.kinds(id) == ["submitted", "claimed", "completed"]
