"""A worker goes on with what its own ends set free, unless somebody else may wait for its slot."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.handover import HANDED_OVER
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import State
from flowfabric.testing.build import KIND, order
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import member, plan
from flowfabric.worker.handler import Handler
from tests.worker.floor import Floor


@pytest.fixture
async def chained(floor: Floor) -> Floor:
    """A floor whose engine keeps the flows that it makes, and whose members do nothing."""
    floor.engine.known.begin()
    floor.handlers[KIND] = Handler(KIND, nothing)
    return floor


async def nothing() -> None: ...


async def draw(floor: Floor, names: str, links: str) -> list[ExecutionId]:
    made = await floor.engine.flows.submit(plan(names, links))
    assert made.created
    return [member(name) for name in names]


async def test_a_chain_needs_one_claim(chained: Floor) -> None:
    first, *others = await draw(chained, "abcde", "a>b b>c c>d d>e")
    async with chained.working():
        await chained.until(State.COMPLETED, 5)
    assert "claimed" in await chained.kinds(first)
    for id in others:
        kinds = await chained.kinds(id)
        assert HANDED_OVER in kinds
        assert "claimed" not in kinds


async def test_what_follows_goes_before_nobody_who_waits_for_the_slot(chained: Floor) -> None:
    ran: list[str] = []

    async def work(name: str = "member") -> None:
        ran.append(name)
        if ran == ["member"]:
            urgent = order(99, kind=KIND, payload=b'{"name":"urgent"}', priority=5)
            await chained.engine.submit([urgent])

    chained.handlers[KIND] = Handler(KIND, work)
    await draw(chained, "ab", "a>b")
    async with chained.working(chained.worker(slots=1)):
        await chained.until(State.COMPLETED, 3)
    assert ran == ["member", "urgent", "member"]


async def test_a_worker_that_stops_holds_nothing_that_follows(chained: Floor) -> None:
    worker = chained.worker()

    async def work() -> None:
        worker.stop()

    chained.handlers[KIND] = Handler(KIND, work)
    _, second = await draw(chained, "ab", "a>b")
    async with chained.working(worker):
        await chained.until(State.COMPLETED, 1)
    assert HANDED_OVER not in await chained.kinds(second)
    assert await chained.count(State.WAITING) == 1


async def test_one_that_begins_to_stop_meanwhile_hands_back_what_it_was_handed(
    chained: Floor, faulty: FaultyStore
) -> None:
    worker = chained.worker()

    async def stop() -> None:
        worker.stop()

    _, second = await draw(chained, "ab", "a>b")
    at = faulty.calls[Verb.COMMIT_EACH] + 1
    faulty.plan.append(Fault(Verb.COMMIT_EACH, at, Kind.DELAY, hook=stop))
    async with chained.working(worker):
        await chained.until(State.COMPLETED, 1)
    kinds = await chained.kinds(second)
    assert kinds[-2:] == [HANDED_OVER, "released"]
    assert await chained.count(State.ACTIVE) == 0


async def test_what_was_handed_over_without_an_answer_is_asked_for(
    chained: Floor, faulty: FaultyStore
) -> None:
    ids = await draw(chained, "abc", "a>b b>c")
    at = faulty.calls[Verb.COMMIT_EACH] + 1
    faulty.plan.append(Fault(Verb.COMMIT_EACH, at, Kind.AFTER))
    async with chained.working():
        await chained.until(State.COMPLETED, 2)
    # Its lease has not ended, because no time has passed: somebody has asked for it.
    assert (await chained.kinds(ids[1]))[-2:] == [HANDED_OVER, "completed"]
