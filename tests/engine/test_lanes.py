"""Lanes: what pausing, draining and disabling do to submits, claims and explanations."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from flowfabric.core.model import ANY_ROUTE
from flowfabric.core.states import LaneState, State
from flowfabric.core.transition import Changeset, LaneChange
from flowfabric.engine.conflict import CONFLICT_PAUSES_SECONDS
from flowfabric.engine.engine import Engine
from flowfabric.engine.lanes import REMEMBER_MS
from flowfabric.errors import Conflict, InvalidInput, LaneClosed, StoreUnavailable
from flowfabric.store.hints import Hint
from flowfabric.testing.build import LANE, order
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from tests.engine.desk import Desk

# What a lane in this state does: takes work, hands it out.
DOES = {
    LaneState.ACTIVE: (True, True),
    LaneState.PAUSED: (True, False),
    LaneState.DRAINING: (False, True),
    LaneState.DISABLED: (False, False),
}


@pytest.mark.parametrize("state", LaneState)
async def test_a_lane_takes_and_hands_out_as_its_state_says(desk: Desk, state: LaneState) -> None:
    takes, hands_out = DOES[state]
    waiting = await desk.submit(order(1))
    await desk.engine.set_lane(LANE, state)
    made = (await desk.engine.submit([order(2)]))[0]
    assert made.created == takes
    if not takes:
        assert isinstance(made.error, LaneClosed)
        assert (made.error.field, made.error.retryable) == ("lane", True)
        assert state in made.error.message
    leases = await desk.claim()
    assert [lease.id for lease in leases] == ([waiting] if hands_out else [])


@pytest.mark.parametrize("state", LaneState)
async def test_a_lane_does_not_touch_what_is_running(desk: Desk, state: LaneState) -> None:
    lease = await desk.running()
    await desk.engine.set_lane(LANE, state)
    finished = await desk.engine.complete(lease, b"1")
    assert finished.state is State.COMPLETED


@pytest.mark.parametrize("state", LaneState)
async def test_explain_names_the_lane_that_keeps_work_back(desk: Desk, state: LaneState) -> None:
    id = await desk.submit()
    await desk.engine.set_lane(LANE, state)
    told = await desk.engine.read.explain(id)
    is_kept = state in (LaneState.PAUSED, LaneState.DISABLED)
    assert told.wakes == ("lane" if is_kept else "worker")
    assert (f"lane 'main' is {state}" in told.sentence) == is_kept


async def test_a_resumed_lane_goes_on_where_it_was(desk: Desk) -> None:
    ids = [await desk.submit(order(number)) for number in range(3)]
    await desk.engine.set_lane(LANE, LaneState.PAUSED)
    assert await desk.claim(limit=9) == []
    await desk.engine.set_lane(LANE, LaneState.ACTIVE)
    assert [lease.id for lease in await desk.claim(limit=9)] == ids


async def test_only_the_open_lanes_of_a_claim_are_served(desk: Desk) -> None:
    await desk.engine.submit([order(1), order(2, lane="side")])
    await desk.engine.set_lane(LANE, LaneState.PAUSED)
    leases = await desk.claim(limit=9, lanes=(LANE, "side"))
    assert [lease.head.lane for lease in leases] == ["side"]


async def test_other_processes_follow_within_a_second(desk: Desk) -> None:
    other = desk.another()
    id = await desk.submit()
    assert (await other.engine.read.explain(id)).wakes == "worker"
    await desk.engine.set_lane(LANE, LaneState.PAUSED)
    desk.clock.advance(REMEMBER_MS - 1)
    assert (await other.engine.read.explain(id)).wakes == "worker"
    desk.clock.advance(1)
    assert (await other.engine.read.explain(id)).wakes == "lane"
    assert await other.claim() == []


@pytest.mark.parametrize("kind", [Kind.DELAY, Kind.BEFORE])
async def test_who_asks_at_the_same_time_is_answered_by_one_look(desk: Desk, kind: Kind) -> None:
    store = FaultyStore(desk.store, [Fault(Verb.LANES, 1, kind, hook=partial(asyncio.sleep, 0))])
    engine = Engine(store, clock=desk.clock)
    asked = [asyncio.create_task(engine.submit([order(number)])) for number in range(4)]
    await asyncio.sleep(0)
    asked.pop().cancel()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert store.calls[Verb.LANES] == 1
    is_down = kind is Kind.BEFORE
    assert [isinstance(answer, StoreUnavailable) for answer in answers] == [is_down] * 3
    assert (await engine.submit([order(5)]))[0].created


async def test_opening_a_lane_wakes_those_who_wait_for_work(desk: Desk) -> None:
    heard: list[Hint] = []
    desk.store.hints.subscribe(heard.append)
    await desk.engine.set_lane(LANE, LaneState.ACTIVE)
    assert [hint.ready for hint in heard if not hint.foreign] == [(ANY_ROUTE,)]


async def test_two_who_set_one_lane_at_once_both_succeed(desk: Desk) -> None:
    other = desk.another()
    await asyncio.gather(
        desk.engine.set_lane(LANE, LaneState.PAUSED), other.engine.set_lane(LANE, LaneState.PAUSED)
    )
    (lane,) = (await desk.engine.read.list_lanes()).items
    assert (lane.name, lane.state) == (LANE, LaneState.PAUSED)


async def test_a_lane_that_keeps_changing_is_a_conflict(desk: Desk) -> None:
    rivals: list[int] = []

    async def rival() -> None:
        """Somebody else is always a little faster."""
        rivals.append(len(rivals))
        known = {lane.name: lane.rev for lane in await desk.store.lanes("", 9)}
        change = LaneChange(LANE, known.get(LANE, 0), LaneState.ACTIVE)
        assert await desk.store.commit(Changeset(lanes=[change]), desk.clock.now_ms())

    plan = [Fault(Verb.COMMIT, 1, Kind.DELAY, times=99, hook=rival)]
    engine = Engine(FaultyStore(desk.store, plan), clock=desk.clock)
    with pytest.raises(Conflict, match=LANE):
        await engine.set_lane(LANE, LaneState.PAUSED)
    assert len(rivals) == len(CONFLICT_PAUSES_SECONDS) + 1
    assert [lane.state for lane in await desk.store.lanes("", 9)] == [LaneState.ACTIVE]


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb", "ümlaut"])
async def test_a_name_that_no_lane_can_have_is_refused(desk: Desk, name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await desk.engine.set_lane(name, LaneState.PAUSED)
    assert refused.value.field == "lane"
    assert (await desk.engine.read.list_lanes()).items == []


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_a_lane_is_set_although_the_store_was_in_trouble(desk: Desk, kind: Kind) -> None:
    engine = Engine(FaultyStore(desk.store, [Fault(Verb.COMMIT, 1, kind)]), clock=desk.clock)
    await engine.set_lane(LANE, LaneState.PAUSED)
    assert [lane.state for lane in await desk.store.lanes("", 9)] == [LaneState.PAUSED]
