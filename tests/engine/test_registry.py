"""Workers register themselves, expire by themselves, and are asked about work that nobody takes."""

from __future__ import annotations

import logging

import pytest

from flowfabric.client.idle_waits import PATIENCE_MAX_MS, PATIENCE_MS, IdleWaits
from flowfabric.core.documents import DocumentQuery
from flowfabric.core.ids import public_id
from flowfabric.core.registry import ALIVE_MS, KIND
from flowfabric.core.states import LaneState, Reason
from flowfabric.engine.diagnosis import Kind
from flowfabric.engine.doctor import CLAIM_GRACE_MS, Doctor
from flowfabric.engine.engine import Engine
from flowfabric.engine.sweeping import Scope
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.testing.build import execution_id, order
from tests.engine.desk import Desk

EVERYTHING = DocumentQuery(kind=KIND, namespace="default")


async def names(desk: Desk) -> list[str]:
    return [worker.name for worker in await desk.engine.registry.live("default")]


async def test_a_worker_is_listed_while_it_says_that_it_lives(desk: Desk) -> None:
    await desk.employ(name="one")
    await desk.employ(name="two")
    assert await names(desk) == ["one", "two"]
    desk.clock.advance(ALIVE_MS - 1)
    assert await names(desk) == ["one", "two"]
    desk.clock.advance(1)
    assert await names(desk) == []


async def test_a_silent_worker_is_removed_when_it_is_due(desk: Desk) -> None:
    await desk.employ(name="one")
    swept = await desk.sweep()
    assert swept.next_ms == desk.clock.now_ms() + ALIVE_MS
    assert len(await desk.store.documents(EVERYTHING)) == 1
    desk.clock.advance(ALIVE_MS)
    await desk.sweep()
    assert await desk.store.documents(EVERYTHING) == []


async def test_a_timekeeper_removes_workers_of_its_own_namespace_only(desk: Desk) -> None:
    await desk.employ(name="one")
    desk.clock.advance(ALIVE_MS)
    for scope in (Scope(namespace="other"), Scope(tag=("a.b", "c"))):
        await Timekeeper(desk.store, desk.engine.clock, scope=scope).run_once()
        assert len(await desk.store.documents(EVERYTHING)) == 1
    mine = Scope(namespace="default")
    await Timekeeper(desk.store, desk.engine.clock, scope=mine).run_once()
    assert await desk.store.documents(EVERYTHING) == []


async def test_a_worker_that_was_taken_for_dead_registers_again(desk: Desk) -> None:
    registration = await desk.employ(name="one")
    (worker,) = await desk.engine.registry.live("default")
    desk.clock.advance(ALIVE_MS)
    await desk.sweep()
    await registration.beat(worker.seen(desk.clock.now_ms(), 1))
    (again,) = await desk.engine.registry.live("default")
    assert (again.busy, again.seen_ms) == (1, desk.clock.now_ms())
    await registration.end()
    assert await desk.store.documents(EVERYTHING) == []


async def test_a_heartbeat_is_one_trip_and_no_line_of_the_log(desk: Desk) -> None:
    registration = await desk.employ(name="one")
    (worker,) = await desk.engine.registry.live("default")
    before = desk.store.trips.count
    desk.clock.advance(10_000)
    await registration.beat(worker.seen(desk.clock.now_ms(), 0))
    assert desk.store.trips.count.since(before).round_trips == 1
    assert await desk.events(execution_id(0)) == []


async def test_explain_names_the_lane_and_the_task_that_nobody_serves(desk: Desk) -> None:
    lost = await desk.submit(order(0, lane="mial"))
    unknown = await desk.submit(order(1, lane="mail", kind="gret"))
    for number in range(3):
        await desk.employ(name=f"w{number}", lanes=("mail",))

    async def sentence(id: str) -> str:
        return (await desk.engine.read.explain(execution_id(0) if id == lost else unknown)).sentence

    alive = "3 workers are alive; did you mean"
    assert await sentence(lost) == f"no live worker serves lane `mial`; {alive} `mail`?"
    assert (
        await sentence(unknown)
        == f"no live worker of lane `mail` knows task `gret`; {alive} `greet`?"
    )
    desk.clock.advance(ALIVE_MS)
    assert await sentence(lost) == "no live worker serves lane `mial`; no worker is alive"


async def test_workers_of_another_namespace_serve_nothing_here(desk: Desk) -> None:
    id = await desk.submit(order(0))
    other = desk.another()
    other.engine = Engine(desk.store, clock=desk.clock, namespace="other")
    await other.employ(lanes=("main",))
    assert (await desk.engine.read.explain(id)).sentence.endswith("no worker is alive")


async def test_the_doctor_lists_work_that_no_live_worker_serves(desk: Desk) -> None:
    for number in range(2):
        await desk.submit(order(number, lane="mial"))
    await desk.submit(order(2))
    await desk.submit(order(3, delay_until_ms=desk.clock.now_ms() + 10**9, lane="later"))
    await desk.submit(order(4, lane="shut"))
    await desk.engine.set_lane("shut", LaneState.PAUSED)
    desk.clock.advance(CLAIM_GRACE_MS + 1)
    await desk.employ(lanes=("mail", "main"))
    await desk.take(execution_id(2))
    found = await Doctor(desk.store, desk.engine.clock).examine()
    assert not found.is_well
    assert [(each.kind, each.subject, each.sentence) for each in found.findings] == [
        (
            Kind.STALLED,
            "lane mial",
            (
                "2 ready of task 'greet', the oldest for 1m; no live worker serves lane `mial`; "
                "1 worker is alive; did you mean `mail`?"
            ),
        )
    ]


async def test_whoever_waits_for_work_that_nobody_takes_is_warned_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [await desk.submit(order(number, lane="mial")) for number in range(2)]
    ids.append(await desk.submit(order(2)))
    ids.append(await desk.submit(order(3, lane="shut")))
    await desk.engine.set_lane("shut", LaneState.PAUSED)
    waits = IdleWaits(desk.engine)
    caplog.set_level(logging.WARNING, "flowfabric.client")
    for _ in range(3):
        desk.clock.advance(PATIENCE_MS)
        await desk.employ(lanes=("mail", "main"))
        await waits.look(ids)
    # What was told of is asked about no more.
    before = desk.store.trips.count
    desk.clock.advance(PATIENCE_MAX_MS)
    await waits.look(ids[:2])
    assert desk.store.trips.count.since(before).round_trips == 0
    (told,) = [record.message for record in caplog.records if record.name == "flowfabric.client"]
    assert told == (
        f"waiting for {public_id(ids[0])} and 1 more: no live worker serves lane `mial`; "
        "1 worker is alive; did you mean `mail`?"
    )


async def test_what_is_unserved_later_is_warned_of_then_and_looked_at_less_and_less(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """A member of a flow waits for others at first; a worker may go."""
    id = await desk.submit(order(0))
    await desk.engine.block(id, Reason.PAUSED_BY_OPERATOR)
    waits = IdleWaits(desk.engine)
    caplog.set_level(logging.WARNING, "flowfabric.client")
    looks = []
    for number in range(40):
        before = desk.store.trips.count
        await waits.look([id])
        if desk.store.trips.count.since(before).round_trips:
            looks.append(number * PATIENCE_MS)
        desk.clock.advance(PATIENCE_MS)
    assert looks == [5_000, 15_000, 35_000, 75_000, 135_000, 195_000]
    assert caplog.messages == []
    await desk.engine.unblock(id, Reason.PAUSED_BY_OPERATOR)
    for _ in range(2):
        desk.clock.advance(PATIENCE_MAX_MS)
        await waits.look([id])
    assert caplog.messages == [
        f"waiting for {public_id(id)}: no live worker serves lane `main`; no worker is alive"
    ]


async def test_nobody_is_warned_before_a_while_has_passed(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    id = await desk.submit(order(0, lane="mial"))
    waits = IdleWaits(desk.engine)
    await waits.look([id])
    desk.clock.advance(PATIENCE_MS - 1)
    await waits.look([id])
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
