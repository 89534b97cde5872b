"""A worker that is told to stop finishes what runs, within a bound, and hands the rest back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flowfabric.core.states import AttemptKind, State
from tests.worker.floor import PATIENCE_SECONDS, Floor, eventually


class Room:
    """Handlers that wait inside until they are let out one by one."""

    def __init__(self, floor: Floor) -> None:
        self.inside = 0
        self.cancelled = 0
        self.doors = asyncio.Semaphore(0)

        @floor.task
        async def work() -> str:
            self.inside += 1
            try:
                await self.doors.acquire()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return "finished"

    async def holds(self, count: int) -> bool:
        return self.inside >= count


@pytest.mark.case("SH-001")
async def test_what_runs_is_finished_and_stored(floor: Floor) -> None:
    room = Room(floor)
    ids = await floor.submit_many("work", 16)
    worker = floor.worker(slots=16)
    async with floor.working(worker):
        await eventually(lambda: room.holds(16))
        worker.stop()
        late = await floor.submit("work")
        for _ in range(16):
            room.doors.release()
            await asyncio.sleep(0)
    for id in ids:
        assert await floor.kinds(id) == ["submitted", "claimed", "completed"]
        assert await floor.engine.read.result(id) == b'"finished"'
    # What came after the stop was left for others.
    assert await floor.kinds(late) == ["submitted"]
    assert room.cancelled == 0


async def test_late_work_is_released_and_claimable_at_once(floor: Floor) -> None:
    room = Room(floor)
    ids = await floor.submit_many("work", 3)
    async with floor.working(floor.worker(drain_seconds=0.0)):
        await eventually(lambda: room.holds(3))
    assert room.cancelled == 3
    for id in ids:
        assert await floor.kinds(id) == ["submitted", "claimed", "released"]
    # The same attempt goes on: handing it back cost neither a retry nor a reclaim.
    leases = await floor.claim()
    assert sorted(lease.id for lease in leases) == sorted(ids)
    assert {lease.head.attempt for lease in leases} == {0}
    assert {lease.head.attempt_kind for lease in leases} == {AttemptKind.RESUME}


async def test_what_one_worker_hands_back_another_finishes(floor: Floor) -> None:
    room = Room(floor)
    ids = await floor.submit_many("work", 4)
    async with floor.working(floor.worker(drain_seconds=0.0)):
        await eventually(lambda: room.holds(4))
    async with floor.working(floor.worker()):
        await eventually(lambda: room.holds(8))
        for _ in ids:
            room.doors.release()
    for id in ids:
        status = await floor.status(id)
        assert (status.public_state, status.total_attempt_count) == ("completed", 1)


async def test_work_that_does_not_listen_is_handed_back_anyway(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.worker.worker.CANCEL_SECONDS", 0.05)
    started, go_on = asyncio.Event(), asyncio.Event()

    @floor.task
    async def deaf() -> str:
        started.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    id = await floor.submit("deaf")
    worker = floor.worker(drain_seconds=0.0)
    async with floor.working(worker):
        await started.wait()
    assert await floor.kinds(id) == ["submitted", "claimed", "released"]
    (deaf_task,) = [task for _, task in worker._running.values()]
    go_on.set()
    await asyncio.wait([deaf_task])
    assert (await floor.status(id)).public_state == "waiting"


async def test_a_plain_function_that_is_late_keeps_its_lease_while_its_thread_runs(
    floor: Floor,
) -> None:
    started, go_on = threading.Event(), threading.Event()

    @floor.task
    def blocking() -> str:
        started.set()
        go_on.wait(PATIENCE_SECONDS)
        return "too late"

    id = await floor.submit("blocking")
    async with floor.working(floor.worker(drain_seconds=0.0)):
        await asyncio.to_thread(started.wait, PATIENCE_SECONDS)
    assert await floor.kinds(id) == ["submitted", "claimed"]
    assert (await floor.status(id)).public_state == "active"
    go_on.set()


async def test_a_cancelled_worker_hands_back_at_once(floor: Floor) -> None:
    room = Room(floor)
    await floor.submit_many("work", 5)
    worker = floor.worker(drain_seconds=1_000.0)
    serving = asyncio.create_task(worker.run())
    await eventually(lambda: room.holds(5))
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert room.cancelled == 5
    assert await floor.count(State.WAITING) == 5


async def test_a_worker_that_is_cancelled_while_it_drains_hands_back_at_once(
    floor: Floor,
) -> None:
    room = Room(floor)
    await floor.submit_many("work", 5)
    worker = floor.worker(drain_seconds=1_000.0)
    serving = asyncio.create_task(worker.run())
    await eventually(lambda: room.holds(5))
    worker.stop()
    room.doors.release()
    await floor.until(State.COMPLETED, 1)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert room.cancelled == 4
    assert await floor.count(State.WAITING) == 4


def tasks() -> set[str]:
    """What runs here, beside what a store needs to listen to others."""
    names = {task.get_name() for task in asyncio.all_tasks()}
    return {name for name in names if name != "flowfabric-listener"}


async def test_a_worker_that_stops_leaves_nothing_behind(floor: Floor) -> None:
    @floor.task
    async def work() -> None: ...

    await floor.submit("work")
    before = tasks()
    worker = floor.worker()
    async with floor.working(worker):
        await floor.until(State.COMPLETED, 1)
    assert tasks() == before
    assert not worker._running
    assert not worker._keeper._held
    assert not worker._keeper._thread.is_alive()
