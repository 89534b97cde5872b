"""A store that takes long: slow is not skewed. Whatever is asked of it is done in the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import Join, OnSatisfied
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.operator import ExpireReason
from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow_staging import SMALL
from flowfabric.engine.outcomes import Completed, Failed
from flowfabric.engine.round_by_hand import run
from flowfabric.engine.rounds import AGE_LIMIT_MS
from flowfabric.engine.telemetry import ROUNDS
from flowfabric.store import Store
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.testing.build import KIND, LANE, TTL_MS, order
from flowfabric.testing.clock import START_MS, VirtualClock
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.flow.desk import BROKEN, FlowDesk

SLOW_MS = SKEW_LIMIT_MS + 200
RACE = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)


@pytest.fixture
def slow(desk: FlowDesk) -> Engine:
    """An engine whose every call is under way for longer than clocks may differ."""

    async def pass_time() -> None:
        desk.clock.advance(SLOW_MS)

    every = Fault(Verb.ANY, 1, Kind.DELAY, times=10**9, hook=pass_time)
    return Engine(FaultyStore(desk.store, [every]), clock=desk.clock)


class ByTheRow(FaultyStore):
    """A store whose looks take as long as there are flows and members to look at."""

    def __init__(self, inner: Store, clock: VirtualClock, row_ms: int) -> None:
        super().__init__(inner)
        self._clock = clock
        self._row_ms = row_ms

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        rows = sum(max(len(each.leaving) + len(each.entering), 1) for each in sights)
        self._clock.advance(rows * self._row_ms)
        return await super().graph(sights)


async def test_what_is_held_is_submitted_claimed_renewed_and_ended(
    desk: FlowDesk, slow: Engine
) -> None:
    answers = await slow.submit([order(number) for number in range(6)])
    assert all(answer.created for answer in answers)
    leases = await slow.claim([LANE], 3, tasks=[KIND], worker="w", token="t", ttl_ms=60_000)
    renewed = await slow.renew(leases, 60_000)
    first, second, third = [each.lease for each in renewed]
    finished = await slow.finish([Completed(first, b"1"), Failed(second, BROKEN)])
    assert [each.error for each in finished] == [None, None]
    await slow.release(third)
    assert [(await desk.head(id)).state for id in (first.id, second.id, third.id)] == [
        State.COMPLETED,
        State.FAILED,
        State.WAITING,
    ]


async def test_operators_have_their_way(desk: FlowDesk, slow: Engine) -> None:
    ids = [await desk.submit(order(number)) for number in range(4)]
    await slow.cancel(ids[0])
    await slow.expire(ids[1], ExpireReason.EXECUTION_DEADLINE)
    await slow.change_priority(ids[2], 7)
    await slow.set_tags(ids[3], {"a.b": "c"})
    assert (await desk.head(ids[0])).state is State.CANCELLED
    assert (await desk.head(ids[1])).state is State.EXPIRED
    assert (await desk.head(ids[2])).priority == 7


async def test_a_staged_flow_is_opened_dispatched_and_swept(desk: FlowDesk, slow: Engine) -> None:
    many = SMALL + 1
    made = await slow.flows.submit(plan(range(many)))
    assert made.created
    done = await run(slow)
    assert sum(each.errors for each in done) == 0
    assert await desk.state(0) is State.WAITING
    assert await desk.state(many - 1) is State.WAITING


async def test_timers_and_sweepers_do_their_work(desk: FlowDesk, slow: Engine) -> None:
    lease = await desk.running(order(1))
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.end("a")
    desk.clock.advance(TTL_MS + 1)
    done = await run(slow)
    assert sum(each.errors for each in done) == 0
    assert (await desk.head(lease.id)).state is State.ORPHANED
    assert await desk.state("b") is State.WAITING


@pytest.mark.parametrize("row_ms", [1, SLOW_MS, 3 * AGE_LIMIT_MS])
async def test_a_round_over_many_flows_ends_however_slow_the_store_is(
    desk: FlowDesk, row_ms: int
) -> None:
    """A round is cut into smaller ones until it fits; one line by itself always does."""
    flows = [flow_id(number) for number in range(2, 22)]
    for flow in flows:
        await desk.draw(plan("abc", "a>c b>c", flow=flow, policies={"c": RACE}))
        await desk.end("a", flow=flow)
    store = ByTheRow(desk.store, desk.clock, row_ms)
    engine = Engine(store, clock=desk.clock)
    await engine.dispatcher.drain()
    states = [await desk.states("abc", flow) for flow in flows]
    assert states == [{"a": "completed", "b": "cancelled", "c": "waiting"}] * len(flows)


@pytest.mark.parametrize("row_ms", [1, 100, SLOW_MS])
async def test_a_round_over_many_lines_of_one_flow_ends_however_slow_the_store_is(
    desk: FlowDesk, row_ms: int
) -> None:
    races = range(0, 90, 3)
    links = [Link(member(n + way), member(n + 2)) for n in races for way in (0, 1)]
    await desk.draw(plan(range(90), links, policies={n + 2: RACE for n in races}))
    await desk.end(*races)
    store = ByTheRow(desk.store, desk.clock, row_ms)
    engine = Engine(store, clock=desk.clock)
    await engine.dispatcher.drain()
    assert {await desk.state(n + 1) for n in races} == {State.CANCELLED}
    assert {await desk.state(n + 2) for n in races} == {State.WAITING}
    assert await desk.lines(FLOW) == []


async def test_rounds_are_as_big_as_before_once_there_is_time_again(desk: FlowDesk) -> None:
    flows = [flow_id(number) for number in range(2, 34)]
    for flow in flows:
        await desk.draw(plan("abc", "a>c b>c", flow=flow, policies={"c": RACE}))
    store = ByTheRow(desk.store, desk.clock, 200)
    engine = Engine(store, clock=desk.clock)
    for flow in flows[:16]:
        await desk.end("a", flow=flow)
    await engine.dispatcher.drain()
    slow_rounds = engine.dispatcher.counts.value(ROUNDS)
    assert engine.dispatcher._size.lines < 16
    store._row_ms = 0
    for flow in flows[16:]:
        await desk.end("a", flow=flow)
    await engine.dispatcher.drain()
    assert engine.dispatcher._size.lines > 16
    assert engine.dispatcher.counts.value(ROUNDS) > slow_rounds
    assert desk.clock.now_ms() > START_MS
