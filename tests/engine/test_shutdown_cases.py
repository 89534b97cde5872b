"""Stopping: what is under way ends first, what waits ends at once."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.app import App
from flowfabric.core.states import PublicState
from flowfabric.engine.engine import Engine
from flowfabric.engine.loop import Loop
from flowfabric.errors import Refused
from flowfabric.store import Store
from flowfabric.testing.build import order
from tests.engine.desk import Desk


@pytest.mark.case("SH-001")
async def test_a_drain_waits_for_everything_under_way(store: Store) -> None:
    app = App(store=store, drain="60s")
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    @app.task
    async def work(number: int) -> int:
        begun.release()
        await go_on.wait()
        return number

    async with app.running():
        handles = await app.start_many(work.bind(number) for number in range(16))
        for _ in range(16):
            await begun.acquire()
        asyncio.get_running_loop().call_soon(go_on.set)
    again = [app.handle(handle.id, work) for handle in handles]
    assert [await handle.result(30) for handle in again] == list(range(16))
    await app.close()


@pytest.mark.case("SH-004")
async def test_a_store_can_be_closed_twice(store: Store) -> None:
    await store.close()
    await store.close()


@pytest.mark.case("SH-006")
async def test_a_client_that_waits_for_ends_can_be_closed(store: Store) -> None:
    app = App(store=store)

    @app.task
    async def work() -> None: ...

    before = asyncio.all_tasks()
    handle = await work.start()
    waiting = asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    async with asyncio.timeout(2):
        await app.close()
    assert asyncio.all_tasks() <= before


@pytest.mark.case("SH-007")
async def test_an_app_runs_once_per_process(store: Store) -> None:
    app = App(store=store)
    async with app.running():
        with pytest.raises(Refused):
            async with app.running():
                pass
    async with app.running():
        assert await app.engine.read.describe(order().id) is None


@pytest.mark.case("SH-008")
async def test_a_loop_that_is_stopped_before_it_begins_does_nothing() -> None:
    rounds: list[int] = []

    async def run_once() -> float:
        rounds.append(1)
        return 3_600.0

    loop = Loop("hourly", run_once, every_seconds=3_600.0)
    running = asyncio.create_task(loop.run())
    loop.stop()
    async with asyncio.timeout(30):
        await running
    assert rounds == []


@pytest.mark.case("SH-010")
@pytest.mark.parametrize("every_seconds", [0.0, -1.0])
async def test_an_interval_of_zero_switches_a_loop_off(every_seconds: float) -> None:
    rounds: list[int] = []

    async def run_once() -> float:
        rounds.append(1)
        return 0.0

    async with asyncio.timeout(30):
        await Loop("never", run_once, every_seconds=every_seconds).run()
    assert rounds == []


@pytest.mark.case("SH-011")
async def test_several_timekeepers_do_not_disturb_each_other(desk: Desk) -> None:
    now_ms = desk.clock.now_ms()
    late = [order(number, delay_until_ms=now_ms + 1_000) for number in range(10)]
    ending = [order(number, deadline_ms=now_ms + 1_000) for number in range(10, 20)]
    await desk.engine.submit([*late, *ending, *(order(number) for number in range(20, 40))])
    lost = [await desk.take(order(number).id, ttl_ms=5_000) for number in range(20, 30)]
    done = [await desk.take(order(number).id, ttl_ms=9_000) for number in range(30, 40)]
    desk.clock.advance(5_000)
    keepers = [desk.timekeeper, *(desk.another().timekeeper for _ in range(3))]
    sweeps = await asyncio.gather(
        *(keeper.run_once() for keeper in keepers),
        *(desk.engine.complete(lease, b"1") for lease in done),
    )
    # Rows that two of them saw are refused to one of them, never done twice.
    assert sum(getattr(sweep, "processed", 0) for sweep in sweeps) == 30
    states = [
        {await desk.engine.read.state(order(number).id) for number in group}
        for group in (range(10), range(10, 20), range(20, 30), range(30, 40))
    ]
    assert states == [
        {PublicState.WAITING},
        {PublicState.EXPIRED},
        {PublicState.ACTIVE},
        {PublicState.COMPLETED},
    ]
    assert [(await desk.head(lease.id)).reclaim_count for lease in lost] == [1] * 10


async def test_what_is_closed_can_be_opened_again(store: Store) -> None:
    engine = Engine(store)
    for _ in range(2):
        await engine.open()
        assert await engine.read.describe(order().id) is None
        await engine.close()
