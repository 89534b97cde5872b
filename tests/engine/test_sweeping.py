"""The frame of the sweepers: turns among engines, a cursor that goes round, filters, reports."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.model import Execution, Malformed, Shift
from flowfabric.engine.intervals import SECONDS
from flowfabric.engine.janitor import CHORES, Janitor, Shed
from flowfabric.engine.loop import AGAIN
from flowfabric.engine.sweeping import (
    SHIFT_MS,
    Chore,
    Report,
    Scope,
    Sweeper,
    Swept,
    report_of,
    within,
)
from flowfabric.engine.telemetry import Telemetry
from flowfabric.errors import InvalidInput, StoreUnavailable
from flowfabric.store import Store
from flowfabric.store.clock import FollowingClock
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.build import order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import Corrupter
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from tests.engine.desk import Desk

INTERVAL_SECONDS = 15.0


@pytest.fixture
async def desk(clock: VirtualClock) -> Desk:
    """What does not depend on the store is tested on one."""
    desk = Desk(MemoryStore(clock), clock)
    await desk.engine.open()
    return desk


@pytest.fixture
async def shared(store: Store, clock: VirtualClock) -> Desk:
    desk = Desk(store, clock)
    await desk.engine.open()
    return desk


class Pages:
    """A chore over five things, two at a time."""

    name = "flow_projector"

    def __init__(self, *, again: bool = False) -> None:
        self.filter: Scope | None = None
        self.cursor = ""
        self.seen: list[str] = []
        self._again = again

    async def run_once(self) -> Swept:
        page = [name for name in "abcde" if name > self.cursor][:2]
        self.seen += page
        self.cursor = page[-1] if len(page) == 2 else ""
        return Swept(len(page), 1, again=self._again)


def sweeper(desk: Desk, chore: Chore, owner: str = "one") -> Sweeper:
    return Sweeper(
        chore, desk.store, desk.engine.clock, owner=owner, interval_seconds=INTERVAL_SECONDS
    )


async def shift(desk: Desk) -> Shift:
    (found,) = await desk.store.shifts([], desk.clock.now_ms())
    return found


async def test_one_engine_sweeps_and_the_others_wait_for_the_interval(shared: Desk) -> None:
    mine, theirs = Pages(), Pages()
    first, second = sweeper(shared, mine), sweeper(shared, theirs, "two")
    assert await first._round() == INTERVAL_SECONDS
    assert await second._round() == INTERVAL_SECONDS
    assert (mine.seen, theirs.seen) == (["a", "b"], [])
    shared.clock.advance(int(INTERVAL_SECONDS * 1000))
    assert await second._round() == INTERVAL_SECONDS
    # It goes on where the other one stopped.
    assert theirs.seen == ["c", "d"]


async def test_of_many_engines_that_begin_at_once_one_sweeps(desk: Desk) -> None:
    chores = [Pages() for _ in range(5)]
    await asyncio.gather(
        *(sweeper(desk, chore, f"engine-{n}")._round() for n, chore in enumerate(chores))
    )
    assert sorted(len(chore.seen) for chore in chores) == [0, 0, 0, 0, 2]


async def test_an_engine_that_dies_in_a_cycle_is_followed_after_a_few_seconds(desk: Desk) -> None:
    class Dies(Pages):
        async def run_once(self) -> Swept:
            raise StoreUnavailable("gone")

    with pytest.raises(StoreUnavailable):
        await sweeper(desk, Dies())._round()
    chore = Pages()
    other = sweeper(desk, chore, "two")
    assert await other._round() == SHIFT_MS / 1000
    desk.clock.advance(SHIFT_MS)
    await other._round()
    assert chore.seen == ["a", "b"]


async def test_a_cursor_goes_round(desk: Desk) -> None:
    chore = Pages()
    frame = sweeper(desk, chore)
    for _ in range(4):
        await frame._round()
        desk.clock.advance(int(INTERVAL_SECONDS * 1000))
    assert "".join(chore.seen) == "abcdeab"
    assert frame.cycles == 4


async def test_a_cycle_that_was_full_is_followed_by_another_at_once(desk: Desk) -> None:
    frame = sweeper(desk, Pages(again=True))
    assert await frame._round() == AGAIN
    assert (await shift(desk)).until_ms == desk.clock.now_ms()


async def test_a_cycle_leaves_a_report(desk: Desk) -> None:
    await sweeper(desk, Pages())._round()
    found = report_of(await shift(desk))
    assert (found.cursor, found.last_ms) == ("b", desk.clock.now_ms())
    assert (found.processed, found.errors, found.interval_ms) == (2, 1, 15_000)


@pytest.mark.parametrize("text", ["", "{}", "rubbish", '{"cursor":5}'])
def test_a_report_that_cannot_be_read_is_none(text: str) -> None:
    found = report_of(Shift("flow_projector", "one", 5, text))
    assert found == Report(
        cursor="", last_ms=0, duration_ms=0, interval_ms=0, processed=0, errors=0
    )


async def test_a_reply_about_the_turn_that_was_lost_is_asked_for_again(desk: Desk) -> None:
    faulty = FaultyStore(desk.store, [Fault(Verb.SHIFTS, 1, Kind.AFTER)])
    chore = Pages()
    frame = Sweeper(
        chore, faulty, desk.engine.clock, owner="one", interval_seconds=INTERVAL_SECONDS
    )
    await frame._round()
    assert (chore.seen, len(faulty.hit)) == (["a", "b"], 1)


SERVED = {
    Scope(): [0, 1, 2],
    Scope(namespace="default"): [0, 1, 2],
    Scope(namespace="elsewhere"): [],
    Scope(tag=("demo.tenant", "acme")): [0],
    Scope(tag=("demo.tenant", "ACME")): [],
    Scope(tag=("demo.other", "acme")): [],
    Scope(namespace="default", tag=("demo.tenant", "other")): [1],
    Scope(namespace="elsewhere", tag=("demo.tenant", "other")): [],
}


class TestScope:
    """What is served: what fits both, and nothing that cannot be read."""

    async def rows(self, desk: Desk) -> list[Execution | Malformed]:
        await desk.submit(order(0, tags={"demo.tenant": "acme"}))
        await desk.submit(order(1, tags={"demo.tenant": "other"}))
        await desk.submit(order(2))
        return [await desk.head(order(number).id) for number in range(3)]

    async def test_both_must_fit(self, shared: Desk) -> None:
        rows = await self.rows(shared)
        for scope, served in SERVED.items():
            found = await within(scope, rows, shared.store)
            assert [row.id for row in found] == [order(number).id for number in served], scope

    async def test_what_cannot_be_read_is_not_served(
        self, shared: Desk, corrupter: Corrupter
    ) -> None:
        rows = await self.rows(shared)
        bad = Malformed(order(9).id, 1, 0, "unknown state")
        await corrupter(order(1).id)
        scope = Scope(tag=("demo.tenant", "acme"))
        found = await within(scope, [bad, *rows], shared.store)
        assert [row.id for row in found] == [order(0).id]
        assert await within(None, [bad], shared.store) == [bad]

    async def test_without_a_filter_nothing_is_read(self, desk: Desk) -> None:
        rows = await self.rows(desk)
        faulty = FaultyStore(desk.store)
        assert await within(Scope(), rows, faulty) == rows
        assert await within(Scope(namespace="default"), rows, faulty) == rows
        assert not faulty.calls


def shed() -> Shed:
    clock = VirtualClock()
    return Shed(MemoryStore(clock), FollowingClock(clock), Telemetry())


class TestJanitor:
    def test_every_sweeper_has_its_name_and_its_interval(self) -> None:
        janitor = Janitor(shed())
        assert {each.name: each.interval_seconds for each in janitor.sweepers} == {
            name: SECONDS[name] for name in CHORES
        }

    def test_an_interval_of_zero_switches_one_off(self) -> None:
        janitor = Janitor(shed(), {"edge_cancel_reconciler": 0})
        off = {loop.name for loop in janitor.loops if not loop.is_on}
        assert off == {"edge_cancel_reconciler"}

    @pytest.mark.parametrize("name", ["edge_cancel_reconcile", "lease_expiry"])
    def test_a_name_that_has_no_interval_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidInput, match=name):
            Janitor(shed(), {name: "5s"})

    async def test_with_nothing_wrong_nothing_is_done(self, desk: Desk) -> None:
        await desk.submit()
        before = await desk.head(order().id)
        janitor = Janitor(Shed(desk.store, desk.engine.clock, Telemetry()))
        done = await janitor.run_once()
        assert {
            name: (each.processed, each.errors) for name, each in done.items()
        } == dict.fromkeys(CHORES, (0, 0))
        assert await desk.head(order().id) == before


@pytest.mark.case("BC-024")
def test_every_sweeper_has_the_interval_that_it_had_and_the_rest_has_nets(desk: Desk) -> None:
    assert SECONDS == {
        "index_reconciler": 45,
        "retention_trimmer": 60,
        "dependency_reconciler": 15,
        "flow_projector": 15,
        "cancel_reconciler": 15,
        "edge_cancel_reconciler": 10,
    }
    assert {sweeper.name: sweeper.interval_seconds for sweeper in Janitor(shed()).sweepers} == (
        SECONDS
    )
    timers, dispatch = desk.timekeeper.loop, desk.engine.dispatcher.loop
    assert (timers.every_seconds, dispatch.every_seconds) == (15, 5)
