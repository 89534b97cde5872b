"""The heartbeat: a worker is listed while it runs; what goes wrong with that hurts no work."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.registry import WorkerRecord
from flowfabric.testing.build import LANE
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.version import VERSION
from flowfabric.worker.heartbeat import Heartbeat
from tests.app.stage import eventually
from tests.worker.floor import Floor


async def listed(floor: Floor) -> list[WorkerRecord]:
    return await floor.engine.registry.live(floor.engine.namespace)


async def until_listed(floor: Floor, count: int) -> list[WorkerRecord]:
    async def are_all() -> bool:
        return len(await listed(floor)) == count

    await eventually(are_all)
    return await listed(floor)


async def test_a_worker_is_listed_from_its_start_to_its_stop(floor: Floor) -> None:
    @floor.task
    async def greet() -> None: ...

    async with floor.working():
        (worker,) = await until_listed(floor, 1)
        assert (worker.name, worker.lanes, worker.tasks) == ("worker-1", (LANE,), ("greet",))
        assert (worker.slots, worker.version) == (10, VERSION)
        assert worker.started_ms == worker.seen_ms == floor.clock.now_ms()
    assert await listed(floor) == []


async def test_several_workers_of_one_process_are_listed_apart(floor: Floor) -> None:
    async with floor.working(), floor.working():
        found = await until_listed(floor, 2)
        assert {worker.name for worker in found} == {"worker-1", "worker-2"}
    assert await listed(floor) == []


def heartbeat(floor: Floor, busy: list[int]) -> Heartbeat:
    return Heartbeat(
        floor.engine, "one", lanes=[LANE], tasks=["greet"], slots=5, busy=lambda: busy[0]
    )


async def test_a_heartbeat_says_when_and_how_busy(floor: Floor) -> None:
    busy = [0]
    beating = heartbeat(floor, busy)
    await beating.beat()
    busy[0] = 3
    floor.clock.advance(10_000)
    await beating.beat()
    (worker,) = await listed(floor)
    assert (worker.busy, worker.seen_ms) == (3, floor.clock.now_ms())
    assert worker.started_ms == floor.clock.now_ms() - 10_000
    await beating.stop()
    assert await listed(floor) == []


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_a_heartbeat_whose_answer_is_lost_is_made_up_for_by_the_next(
    floor: Floor, faulty: FaultyStore, kind: Kind
) -> None:
    beating = heartbeat(floor, [0])
    for call in (1, 3):
        faulty.plan.append(Fault(Verb.PUT, call, kind))
    for _ in range(3):
        await beating.beat()
        floor.clock.advance(10_000)
    (worker,) = await listed(floor)
    assert worker.seen_ms >= floor.clock.now_ms() - 20_000
    assert len(faulty.hit) == 2


async def test_work_goes_on_while_no_heartbeat_succeeds(floor: Floor, faulty: FaultyStore) -> None:
    faulty.plan.append(Fault(Verb.PUT, 1, Kind.BEFORE, times=1_000))
    done = asyncio.Event()

    @floor.task
    async def greet() -> None:
        done.set()

    await floor.submit("greet")
    async with floor.working():
        await done.wait()
    assert await listed(floor) == []
