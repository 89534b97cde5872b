"""A worker runs as many handlers at a time as it has slots, and never one more."""

from __future__ import annotations

import asyncio
import threading

from flowfabric.core.states import State
from flowfabric.testing.faults import FaultyStore, Verb
from flowfabric.worker.worker import Worker
from tests.worker.floor import Floor, eventually


class Crowd:
    """Counts who is inside, and lets nobody out before it is opened."""

    def __init__(self, expected: int) -> None:
        self.inside = 0
        self.most = 0
        self.full = asyncio.Event()
        self.opened = asyncio.Event()
        self._expected = expected

    async def visit(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.inside == self._expected:
            self.full.set()
        await self.opened.wait()
        self.inside -= 1


async def test_slots_are_never_exceeded(floor: Floor) -> None:
    crowd = Crowd(expected=3)

    @floor.task
    async def work() -> None:
        await crowd.visit()

    await floor.submit_many("work", 12)
    async with floor.working(floor.worker(slots=3)):
        await crowd.full.wait()
        assert await floor.count(State.ACTIVE) == 3
        assert await floor.count(State.WAITING) == 9
        crowd.opened.set()
        await floor.until(State.COMPLETED, 12)
    assert crowd.most == 3


async def test_plain_functions_share_the_same_slots(floor: Floor) -> None:
    lock, inside, most = threading.Lock(), [0], [0]
    both = threading.Barrier(2, timeout=10)

    @floor.task
    def work() -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        both.wait()
        with lock:
            inside[0] -= 1

    await floor.submit_many("work", 8)
    async with floor.working(floor.worker(slots=2)):
        await floor.until(State.COMPLETED, 8)
    assert most == [2]


async def test_a_lost_handler_keeps_its_slot_until_it_ends(floor: Floor) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    told, order = asyncio.Event(), list[str]()

    @floor.task
    async def stubborn() -> None:
        started.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                told.set()
        order.append("stubborn ended")

    @floor.task
    async def behind() -> None:
        order.append("behind began")

    first = await floor.submit("stubborn")
    async with floor.working(floor.worker(slots=1)):
        await started.wait()
        second = await floor.submit("behind")
        await floor.engine.cancel(first)
        await told.wait()
        assert (await floor.status(second)).public_state == "waiting"
        go_on.set()
        await floor.until(State.COMPLETED, 1)
    assert order == ["stubborn ended", "behind began"]


async def test_a_later_lease_of_the_same_execution_is_told_apart(floor: Floor) -> None:
    """The old attempt still cleans up while the new one runs on the same worker."""
    began, cancelled = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]
    clean, numbers = asyncio.Event(), iter(range(2))

    @floor.task
    async def work() -> None:
        number = next(numbers)
        began[number].set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled[number].set()
            if number == 0:
                await clean.wait()

    id = await floor.submit("work")
    async with floor.working(floor.worker(slots=2)) as worker:
        await began[0].wait()
        await floor.engine.revoke(id)
        await cancelled[0].wait()
        await began[1].wait()
        clean.set()
        await eventually(lambda: _has_ended(worker))
        # The end of the old attempt has not made the worker forget the new one.
        assert not cancelled[1].is_set()
        await floor.engine.cancel(id)
        await cancelled[1].wait()
    assert worker._running == {}


async def _has_ended(worker: Worker) -> bool:
    return len(worker._running) == 1


async def test_work_is_claimed_in_batches(floor: Floor, faulty: FaultyStore) -> None:
    @floor.task
    async def work() -> None: ...

    await floor.submit_many("work", 200)
    claims = faulty.calls[Verb.CLAIM]
    async with floor.working(floor.worker(slots=100)):
        await floor.until(State.COMPLETED, 200)
    # Two full batches, and the looks that found nothing more.
    assert faulty.calls[Verb.CLAIM] - claims < 20
