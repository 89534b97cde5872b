"""Clocks that are off: the store's time decides, and the engine follows it."""

from __future__ import annotations

import pytest

from flowfabric.core.states import LaneState, State
from flowfabric.engine.engine import Engine
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.errors import ClockSkew
from flowfabric.store import Store
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.testing.build import KIND, LANE, TTL_MS, order
from flowfabric.testing.clock import START_MS, VirtualClock
from flowfabric.testing.faults import FaultyStore, Verb
from tests.engine.desk import Desk

OFF_MS = 5_000


@pytest.fixture(params=[-OFF_MS, OFF_MS], ids=["slow", "fast"])
def off(request: pytest.FixtureRequest, store: Store) -> Engine:
    """An engine whose clock is off, and which has not asked the store for its time."""
    return elsewhere(store, START_MS + int(request.param))


def elsewhere(store: Store, now_ms: int) -> Engine:
    """An engine in a process of its own, with this clock."""
    return Engine(FaultyStore(store), clock=VirtualClock(now_ms))


async def test_a_submit_is_dated_by_the_store(desk: Desk, off: Engine) -> None:
    await off.submit([order()])
    assert (await desk.head(order().id)).created_ms == desk.clock.now_ms()
    assert off.clock.now_ms() == desk.clock.now_ms()


async def test_a_claim_lasts_by_the_stores_clock(desk: Desk, off: Engine) -> None:
    await desk.submit()
    (lease,) = await off.claim([LANE], 1, tasks=[KIND], worker="w", token="t", ttl_ms=TTL_MS)
    assert lease.until_ms == desk.clock.now_ms() + TTL_MS


async def test_a_worker_is_decided_again_with_the_right_time(desk: Desk, off: Engine) -> None:
    lease = await desk.running()
    renewed = (await off.renew([lease], TTL_MS))[0]
    assert renewed.lease.until_ms == desk.clock.now_ms() + TTL_MS
    await off.complete(renewed.lease, b"1")
    assert (await desk.snapshot(lease.id)).ended_ms == desk.clock.now_ms()


async def test_an_operator_is_decided_again_with_the_right_time(desk: Desk, off: Engine) -> None:
    id = await desk.submit()
    await off.cancel(id)
    assert (await desk.snapshot(id)).ended_ms == desk.clock.now_ms()


async def test_a_lane_is_set_by_an_engine_whose_clock_is_off(desk: Desk, off: Engine) -> None:
    await off.set_lane(LANE, LaneState.PAUSED)
    assert [lane.state for lane in await desk.store.lanes("", 9)] == [LaneState.PAUSED]


async def test_a_fast_timekeeper_takes_nobodys_lease(desk: Desk, store: Store) -> None:
    lease = await desk.running()
    fast = elsewhere(store, lease.until_ms + 1)
    swept = await Timekeeper(fast.store, fast.clock).run_once()
    assert (swept.processed, swept.errors) == (0, 0)
    assert (await desk.head(lease.id)).state is State.ACTIVE
    assert fast.clock.now_ms() == desk.clock.now_ms()


async def test_a_small_difference_is_nobodys_business(desk: Desk, store: Store) -> None:
    near = elsewhere(store, START_MS + SKEW_LIMIT_MS)
    await near.submit([order()])
    assert (await desk.head(order().id)).created_ms == desk.clock.now_ms() + SKEW_LIMIT_MS


async def test_opening_asks_the_store_for_its_time(store: Store, clock: VirtualClock) -> None:
    faulty = FaultyStore(store)
    engine = Engine(faulty, clock=VirtualClock(START_MS + 3_600_000))
    await engine.open()
    assert engine.clock.now_ms() == clock.now_ms()
    await engine.submit([order()])
    assert faulty.calls[Verb.INSERT] == 1


async def test_a_clock_that_was_set_back_keeps_no_old_lanes(desk: Desk, store: Store) -> None:
    fast = elsewhere(store, START_MS + 3_600_000)
    assert await fast.lanes.state(LANE) is LaneState.ACTIVE
    store.caller_clock = desk.engine.clock
    await desk.engine.set_lane(LANE, LaneState.PAUSED)
    await fast.open()
    assert await fast.lanes.state(LANE) is LaneState.PAUSED


async def test_a_clock_that_keeps_running_away_is_told(store: Store) -> None:
    class Runaway(VirtualClock):
        """Off by another second each time it is asked."""

        def now_ms(self) -> int:
            return self.advance(1_000)

    engine = Engine(store, clock=Runaway())
    with pytest.raises(ClockSkew) as refused:
        await engine.submit([order()])
    assert refused.value.retryable
    assert "synchronise" in refused.value.hint
