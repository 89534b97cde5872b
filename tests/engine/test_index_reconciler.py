"""The index reconciler: times that are missing or too late are set right, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution
from flowfabric.core.policy import DAY_MS
from flowfabric.core.states import State
from flowfabric.core.timers import POISON_LIMIT
from flowfabric.engine import index_reconciler
from flowfabric.engine.index_reconciler import IndexReconciler
from flowfabric.engine.intervals import SECONDS
from flowfabric.engine.janitor import CHORES
from flowfabric.engine.sweeping import Scope, Swept
from flowfabric.store import Store
from flowfabric.store.memory import MemoryStore
from flowfabric.store.upkeep import Verifiable, Verified
from flowfabric.testing.build import TTL_MS, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import FLOW, flow_id, plan
from tests.corrupter import Raw, raw_client
from tests.flow.desk import FlowDesk


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


@pytest.fixture
def raw(store: Store) -> Raw:
    return raw_client(store)


def net(desk: FlowDesk, scope: Scope | None = None) -> IndexReconciler:
    return IndexReconciler(desk.store, desk.engine.clock, scope=scope)


LATE = "9999999999999"


async def state(desk: FlowDesk, id: ExecutionId) -> State:
    return (await desk.head(id)).state


async def spoil(desk: FlowDesk, raw: Raw, row: Execution, due: str = LATE) -> None:
    await raw.write(row, "due_ms", due)
    assert (await desk.head(row.id)).due_ms != row.due_ms


def test_it_is_one_of_the_sweepers() -> None:
    assert (IndexReconciler.name, IndexReconciler.interval_seconds) == ("index_reconciler", 45)
    assert SECONDS["index_reconciler"] == 45
    assert "index_reconciler" in CHORES


async def test_an_orphaned_lease_is_found_and_its_work_claimed_again(
    desk: FlowDesk, raw: Raw
) -> None:
    lease = await desk.running()
    await spoil(desk, raw, await desk.head(lease.id))
    await desk.silent(lease)
    assert await state(desk, lease.id) is State.ACTIVE
    assert await net(desk).run_once() == Swept(1, 0)
    await desk.sweep()
    assert await state(desk, lease.id) is State.ORPHANED
    assert (await desk.take(lease.id)).head.attempt == 1
    assert await net(desk).run_once() == Swept()


async def test_a_pause_whose_timer_is_too_late_ends_in_time(desk: FlowDesk, raw: Raw) -> None:
    id = await desk.submit(order(delay_until_ms=desk.clock.now_ms() + 1_000))
    await spoil(desk, raw, await desk.head(id))
    desk.clock.advance(1_000)
    assert await net(desk).run_once() == Swept(1, 0)
    await desk.sweep()
    assert await state(desk, id) is State.WAITING


@pytest.mark.parametrize("column", ["lease_until_ms", "not_before_ms"])
async def test_what_does_not_say_until_when_is_over_now(
    desk: FlowDesk, raw: Raw, column: str
) -> None:
    if column == "lease_until_ms":
        id = (await desk.running()).id
    else:
        id = await desk.submit(order(delay_until_ms=desk.clock.now_ms() + 1_000))
    await raw.clear(await desk.head(id), column)
    await raw.clear(await desk.head(id), "due_ms")
    assert (await desk.sweep()).processed == 0
    assert await net(desk).run_once() == Swept(1, 0)
    await desk.sweep()
    assert await state(desk, id) in (State.ORPHANED, State.WAITING)
    assert await net(desk).run_once() == Swept()


async def test_what_has_ended_and_does_not_say_when_it_goes_is_told(
    desk: FlowDesk, raw: Raw
) -> None:
    id = await desk.completed()
    right = await desk.head(id)
    await raw.clear(right, "purge_ms")
    desk.clock.advance(DAY_MS)
    assert await net(desk).run_once() == Swept(1, 0)
    assert (await desk.head(id)).purge_ms == right.purge_ms
    assert await net(desk).run_once() == Swept()


async def test_a_flow_gets_its_deadline_back_and_the_time_when_it_goes(
    desk: FlowDesk, raw: Raw
) -> None:
    other = flow_id(2)
    await desk.draw(plan("a", deadline_ms=desk.clock.now_ms() + 1_000))
    await desk.draw(plan("a", flow=other))
    await desk.ended("a", flow=other)
    settled = await desk.flow(other)
    await raw.clear(await desk.flow(), "due_ms")
    await raw.clear(settled, "purge_ms")
    assert await net(desk).run_once() == Swept(2, 0)
    assert (await desk.flow(other)).purge_ms == settled.purge_ms
    desk.clock.advance(1_000)
    await desk.dispatch()
    assert await desk.state("a") is State.CANCELLED
    assert await net(desk).run_once() == Swept()


async def test_with_nothing_wrong_nothing_is_written(desk: FlowDesk) -> None:
    """Every phase; a timer may be earlier than what it is for, and is left so."""
    renewed = await desk.running(order(0))
    desk.clock.advance(1)
    await desk.engine.renew([renewed], 2 * TTL_MS)
    await desk.submit(order(1, delay_until_ms=desk.clock.now_ms() + 1_000))
    await desk.completed(order(2))
    await desk.draw(plan("ab", "a>b", deadline_ms=desk.clock.now_ms() + 1_000))
    await desk.ended("a")
    faulty = FaultyStore(desk.store)
    assert await IndexReconciler(faulty, desk.engine.clock).run_once() == Swept()
    assert set(faulty.calls) == {Verb.FIND, Verb.FIND_FLOWS, Verb.ANY}


async def test_what_was_put_off_or_parked_stays_so(desk: FlowDesk, raw: Raw) -> None:
    put_off, parked = await desk.running(order(0)), await desk.running(order(1))
    late = await desk.head(put_off.id)
    await raw.write(late, "failures", "1")
    await spoil(desk, raw, await desk.head(put_off.id))
    head = await desk.head(parked.id)
    await raw.write(head, "failures", str(POISON_LIMIT))
    await raw.write(await desk.head(parked.id), "parked", "it broke")
    await raw.clear(await desk.head(parked.id), "due_ms")
    assert await net(desk).run_once() == Swept()


SERVED = {
    Scope(namespace="elsewhere"): 0,
    Scope(tag=("demo.tenant", "other")): 0,
    Scope(namespace="default", tag=("demo.other", "acme")): 0,
    Scope(namespace="default", tag=("demo.tenant", "acme")): 1,
}


async def test_a_filter_fails_closed(desk: FlowDesk, raw: Raw) -> None:
    lease = await desk.running(order(tags={"demo.tenant": "acme"}))
    await spoil(desk, raw, await desk.head(lease.id))
    await desk.draw(plan("a", deadline_ms=desk.clock.now_ms() + 1_000))
    await raw.clear(await desk.flow(), "due_ms")
    for scope, repaired in SERVED.items():
        assert await net(desk, scope).run_once() == Swept(repaired, 0), scope
    # A flow has no tags of its own: where tags matter, none is served.
    assert (await desk.flow(FLOW)).due_ms is None
    assert await net(desk, Scope(namespace="default")).run_once() == Swept(1, 0)


async def test_what_cannot_be_read_is_an_error_and_keeps_no_other_back(
    desk: FlowDesk, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_reconciler, "PAGE", 2)
    leases = [await desk.running(order(number)) for number in range(5)]
    for lease in leases:
        await spoil(desk, raw, await desk.head(lease.id))
    await raw.write(await desk.head(leases[1].id), "reason", "melted")
    assert await net(desk).run_once() == Swept(4, 1)


async def test_a_cycle_is_bounded_and_the_next_goes_on_from_there(
    desk: FlowDesk, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_reconciler, "PAGE", 1)
    monkeypatch.setattr(index_reconciler, "OPEN_PAGES", 2)
    for number in range(3):
        await spoil(desk, raw, await desk.head((await desk.running(order(number))).id))
    first = net(desk)
    assert await first.run_once() == Swept(2, 0)
    second = net(desk)
    second.cursor = first.cursor
    assert await second.run_once() == Swept(1, 0)
    assert index_reconciler._Place.of(second.cursor).open == ""


async def test_a_cursor_that_cannot_be_read_is_the_beginning(desk: FlowDesk, raw: Raw) -> None:
    await spoil(desk, raw, await desk.head((await desk.running()).id))
    sweeper = net(desk)
    sweeper.cursor = "rubbish"
    assert await sweeper.run_once() == Swept(1, 0)


async def test_who_was_faster_knows_better(desk: FlowDesk, raw: Raw) -> None:
    lease = await desk.running()
    await spoil(desk, raw, await desk.head(lease.id))

    async def meanwhile() -> None:
        await desk.engine.complete(lease, b"1")

    faulty = FaultyStore(desk.store, [Fault(Verb.APPLY, 1, Kind.DELAY, hook=meanwhile)])
    assert await IndexReconciler(faulty, desk.engine.clock).run_once() == Swept()
    assert await state(desk, lease.id) is State.COMPLETED


async def test_a_store_that_does_not_answer_is_an_error_and_the_place_is_kept(
    desk: FlowDesk, raw: Raw
) -> None:
    await spoil(desk, raw, await desk.head((await desk.running()).id))
    faulty = FaultyStore(desk.store, [Fault(Verb.FIND, 1, Kind.BEFORE)])
    sweeper = IndexReconciler(faulty, desk.engine.clock)
    assert await sweeper.run_once() == Swept(0, 1)
    assert await sweeper.run_once() == Swept(1, 0)


class Copies(MemoryStore):
    """A store with copies of its own making: five of them are wrong."""

    wrong = 5

    async def verify(self, cursor: str, limit: int) -> Verified:
        repaired = min(self.wrong, 3)
        self.wrong -= repaired
        return Verified(repaired, "there" if not cursor else "")


class TestCopies:
    """What a store verifies by itself."""

    async def test_copies_are_verified_from_where_the_last_cycle_ended(
        self, clock: VirtualClock
    ) -> None:
        desk = FlowDesk(Copies(clock), clock)
        sweeper = net(desk)
        assert await sweeper.run_once() == Swept(3, 0)
        assert "there" in sweeper.cursor
        assert [await sweeper.run_once() for _ in range(2)] == [Swept(2, 0), Swept()]

    async def test_with_a_filter_they_are_somebody_elses(self, clock: VirtualClock) -> None:
        desk = FlowDesk(Copies(clock), clock)
        assert await net(desk, Scope(namespace="default")).run_once() == Swept()
        assert await net(desk, Scope()).run_once() == Swept(3, 0)

    async def test_a_store_without_copies_has_nothing_to_verify(self, clock: VirtualClock) -> None:
        assert isinstance(Copies(clock), Verifiable)
        assert not isinstance(MemoryStore(clock), Verifiable)


def test_the_place_of_a_cycle_is_one_text() -> None:
    place = index_reconciler._Place("a", "", "b c", '"')
    assert index_reconciler._Place.of(place.text) == place
    assert index_reconciler._Place.of("") == index_reconciler._Place()
    assert msgspec.json.decode(place.text) == ["a", "", "b c", '"']
