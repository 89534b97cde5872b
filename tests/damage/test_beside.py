"""Damage beside the heads that is worth a look of its own: inputs, keys, lanes, turns of duties."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.graph import Link
from flowfabric.core.ids import public_id
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Shift, Value, Writer
from flowfabric.core.promise import broken_promise
from flowfabric.core.states import AttemptLifecycle, PublicState, State
from flowfabric.core.transition import Seen, Transition
from flowfabric.engine.index_reconciler import IndexReconciler
from flowfabric.engine.janitor import Janitor, Shed
from flowfabric.engine.sweeping import report_of
from flowfabric.errors import Corrupt
from flowfabric.store import Store
from flowfabric.testing.build import order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import member, plan
from tests.damage.cases import BIG, CELLS, Damage
from tests.damage.spots import COLUMNS, Key, Payload, raw_client
from tests.flow.desk import FlowDesk


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


async def lose_payload(desk: FlowDesk, number: int) -> bool:
    """False where the input is in the same row as the head, and cannot be gone alone."""
    async with raw_client(desk.store) as raw:
        return await raw.remove(Payload(order(number).id))


@pytest.mark.parametrize("start", [True, False])
async def test_a_claim_without_an_input_is_told_of_and_over(desk: FlowDesk, start: bool) -> None:
    await desk.submit(order(0, payload=BIG))
    if not await lose_payload(desk, 0):
        return
    with pytest.raises(Corrupt, match=f"execution {public_id(order(0).id)}.* payload is missing"):
        await desk.claim(5, start=start)
    head = await desk.head(order(0).id)
    assert (head.state, head.outcome_category) == (State.FAILED, "corruption")
    assert head.lease_until_ms is None
    with pytest.raises(Corrupt, match="payload is missing"):
        await desk.engine.read.load(order(0).id, payload=True)
    assert await desk.claim(5) == []


async def test_a_claim_of_many_loses_only_what_has_no_input(desk: FlowDesk) -> None:
    for number in range(3):
        await desk.submit(order(number, payload=BIG))
    if not await lose_payload(desk, 1):
        return
    assert [lease.id for lease in await desk.claim(5)] == [order(0).id, order(2).id]
    assert (await desk.head(order(1).id)).state is State.FAILED


async def test_a_member_whose_upstreams_result_is_gone_is_handed_nothing(desk: FlowDesk) -> None:
    links = [Link(member("a"), member(name), argument="x") for name in "bc"]
    await desk.draw(plan("abc", links))
    await desk.ended("a")
    leases = [await desk.start(name) for name in "bc"]
    (attempt,) = await desk.attempts(member("a"))
    async with raw_client(desk.store) as raw:
        assert await raw.remove(attempt)
    given = await desk.engine.flows.inputs(leases)
    assert {type(each) for each in given.values()} == {Corrupt}
    assert public_id(member("a")) in str(given[member("b")])


async def test_a_key_that_cannot_be_read_is_told_of_by_its_own_submit_alone(desk: FlowDesk) -> None:
    await desk.submit(order(0, key="k", digest="d"))
    async with raw_client(desk.store) as raw:
        done = await raw.write(Key(order(0).namespace, "k", order(0).id), "id", "melted")
    if not done:
        return
    wanted = [order(1, key="k", digest="d"), order(2)]
    first, second = await desk.engine.submit(wanted)
    assert isinstance(first.error, Corrupt)
    assert "'k'" in str(first.error)
    assert second.created


async def test_the_turn_of_a_duty_that_cannot_be_read_is_taken_anew(desk: FlowDesk) -> None:
    janitor = Janitor(Shed(desk.store, desk.engine.clock, desk.dispatcher.counts))
    sweeper = janitor.sweepers[0]
    for column in COLUMNS[Shift]:
        for damage in (Damage.NULL, Damage.TYPE, Damage.WORD):
            desk.clock.advance(60_000)
            await sweeper._round()
            shifts = await desk.store.shifts([], desk.clock.now_ms())
            mine = next(shift for shift in shifts if shift.name == sweeper.name)
            async with raw_client(desk.store) as raw:
                await raw.write(mine, column, CELLS[damage])
            desk.clock.advance(60_000)
            await sweeper._round()
            (again,) = [
                each
                for each in await desk.store.shifts([], desk.clock.now_ms())
                if each.name == sweeper.name
            ]
            assert report_of(again).last_ms == desk.clock.now_ms()


async def test_a_lane_that_cannot_be_read_stops_no_other(desk: FlowDesk) -> None:
    await desk.submit(order(0, lane="bad"))
    await desk.submit(order(1))
    (bad, _) = (await desk.engine.read.list_lanes()).items
    async with raw_client(desk.store) as raw:
        if not await raw.write(bad, "state", "melted"):
            return
    desk.clock.advance(2_000)
    with pytest.raises(Corrupt, match="lane bad cannot be read: column state"):
        await desk.engine.read.list_lanes()
    leases = await desk.claim(5, lanes=("bad", "main"))
    assert [lease.id for lease in leases] == [order(1).id]


async def write(desk: FlowDesk, patch: dict[str, Value]) -> None:
    """Past all decisions, as a bug could."""
    head = await desk.head(order().id)
    change = Transition(head.id, Seen(head.rev, head.state), Writer.CLAIM, patch)
    await desk.store.apply([change], desk.clock.now_ms())


HALVES: dict[str, dict[str, Value]] = {
    "lease_token": {"lease_token": ""},
    "worker": {"worker": ""},
    "lease_until_ms": {"lease_until_ms": None},
    "attempt_started_ms": {"attempt_started_ms": None},
}


@pytest.mark.parametrize("column", HALVES)
async def test_half_a_lease_is_a_problem(desk: FlowDesk, column: str) -> None:
    await desk.running()
    assert broken_promise(await desk.head(order().id), desk.clock.now_ms()) == ""
    await write(desk, HALVES[column])
    told = broken_promise(await desk.head(order().id), desk.clock.now_ms())
    assert told == f"active without {column}: its lease is incomplete"


@pytest.mark.parametrize("column", ["lease_token", "lease_until_ms"])
async def test_a_lease_that_nobody_can_use_is_taken_back(desk: FlowDesk, column: str) -> None:
    await desk.running()
    await write(desk, HALVES[column])
    swept = await IndexReconciler(desk.store, desk.engine.clock).run_once()
    assert swept.processed == 1
    await desk.sweep()
    assert (await desk.head(order().id)).state is State.ORPHANED


async def test_the_last_attempt_that_is_lost_was_interrupted(desk: FlowDesk) -> None:
    lease = await desk.running(order(policy=policy(reclaims=0)))
    await desk.silent(lease)
    assert (await desk.snapshot(lease.id)).public_state is PublicState.FAILED
    (attempt,) = await desk.attempts(lease.id)
    assert attempt.lifecycle is AttemptLifecycle.INTERRUPTED_RECLAIMED
    assert attempt.category == "lease_expired"


async def test_while_an_attempt_runs_the_failure_before_it_is_not_its_own(desk: FlowDesk) -> None:
    lease = await desk.running(order(policy=policy(retries=1, pause_ms=0)))
    await desk.engine.fail(lease, Failure("broke"))
    assert (await desk.snapshot(lease.id)).outcome_detail == "broke"
    await desk.take(lease.id)
    shown = await desk.snapshot(lease.id)
    assert (shown.outcome_detail, shown.outcome_category) == ("", "")
