"""What ends in this process is dispatched at once, without taking its flow in turn first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.views import Turn
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.engine.direct import look
from flowfabric.store import Store
from flowfabric.store.hints import Hint
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.flow.desk import FlowDesk
from tests.flow.watched import Meddler

FOUND = 30


class Running:
    """A desk whose dispatcher runs and hears, and what it asked of the store."""

    def __init__(self, faulty: FaultyStore, clock: VirtualClock) -> None:
        self.faulty = faulty
        self.desk = FlowDesk(faulty, clock)
        self._ready = asyncio.Event()

    def hear(self, hint: Hint) -> None:
        """Nobody else is here, whatever a connection that was just made says."""
        self.desk.dispatcher.hear(hint._replace(foreign=False))
        if hint.ready:
            self._ready.set()

    async def released(self, name: str) -> None:
        async with asyncio.timeout(FOUND):
            while await self.desk.state(name) is not State.WAITING:
                self._ready.clear()
                await self._ready.wait()


@asynccontextmanager
async def running(store: Store, clock: VirtualClock, *faults: Fault) -> AsyncIterator[Running]:
    here = Running(FaultyStore(store, faults), clock)
    await here.desk.engine.open()
    await here.desk.draw(plan("abc", "a>b b>c"))
    dispatcher = here.desk.dispatcher
    store.hints.subscribe(here.hear)
    task = asyncio.create_task(dispatcher.loop.run())
    try:
        yield here
    finally:
        store.hints.unsubscribe(here.hear)
        dispatcher.loop.stop()
        await task


async def test_what_ends_here_needs_no_turn(store: Store, clock: VirtualClock) -> None:
    async with running(store, clock) as here:
        await here.desk.end("a")
        await here.released("b")
        turns = here.faulty.calls[Verb.PENDING]
        await here.desk.end("b")
        await here.released("c")
        assert here.faulty.calls[Verb.PENDING] == turns
        assert await here.desk.counters() == {"completed": 2}


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_a_lost_answer_is_found_again(store: Store, clock: VirtualClock, kind: Kind) -> None:
    # The first commit is the submit.
    async with running(store, clock, Fault(Verb.COMMIT_EACH, 2, kind)) as here:
        await here.desk.end("a")
        await here.released("b")
        assert here.faulty.hit
        assert await here.desk.counters() == {"completed": 1}


async def test_who_is_faster_wins(store: Store, clock: VirtualClock) -> None:
    async def rival() -> None:
        flow = await here.desk.flow()
        change = FlowPatch(FLOW, flow.rev, {"failures": 0})
        assert await store.commit(Changeset(flows=[change]), clock.now_ms())

    async with running(store, clock, Fault(Verb.COMMIT_EACH, 2, Kind.DELAY, hook=rival)) as here:
        await here.desk.end("a")
        await here.released("b")
        assert here.faulty.hit
        assert await here.desk.counters() == {"completed": 1}


async def test_what_lost_a_race_without_a_lease_is_asked_for_again(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    dispatcher = FlowDesk(Meddler(desk.store, 1), desk.clock).dispatcher
    dispatcher.hear(Hint(flows=(FLOW,), lines=tuple(await desk.lines())))
    assert await dispatcher.run_once(everything=False) == 1
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES
    assert await dispatcher.run_once(everything=False) == 1
    assert await desk.state("b") is State.WAITING


async def test_a_flow_that_somebody_is_at_is_left_to_him(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    now_ms = desk.clock.now_ms()
    found = await look(desk.store, {FLOW: [member("a")]}, now_ms)
    assert [job.flow.id for job in found.jobs] == [FLOW]
    await desk.store.pending(Turn(limit=1, now_ms=now_ms, until_ms=now_ms + 10))
    found = await look(desk.store, {FLOW: [member("a")]}, now_ms)
    assert found == ([], [FLOW])


async def test_an_end_that_was_only_hinted_at_is_nothing(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    found = await look(desk.store, {FLOW: [member("a")]}, desk.clock.now_ms())
    assert found == ([], [])


async def test_graphs_that_are_submitted_together_share_a_call(
    store: Store, clock: VirtualClock
) -> None:
    desk = FlowDesk(FaultyStore(store), clock)
    await desk.engine.open()
    same = plan("ab", "a>b")
    others = [plan("ab", "a>b", flow=flow_id(number)) for number in range(2, 12)]
    circle = plan("ab", "a>b b>a", flow=flow_id(99))
    made = await asyncio.gather(
        *(desk.engine.flows.submit(each) for each in (same, *others, same, circle)),
        return_exceptions=True,
    )
    assert [getattr(each, "created", None) for each in made] == [True] * 11 + [False, None]
    assert [getattr(made[-1], "code", "")] == ["cycle_detected"]
    faulty = desk.engine.store
    assert isinstance(faulty, FaultyStore)
    # How many arrive while a call is under way is up to the store; never each on its own.
    assert faulty.calls[Verb.COMMIT_EACH] < len(others)
