"""Reading beside writers: every answer is of one moment, and waits for nobody."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from flowfabric.core.ids import public_id
from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Feed, Malformed, Query, Want
from flowfabric.core.operator import replay
from flowfabric.core.states import LaneState, State
from flowfabric.core.timers import poisoned
from flowfabric.core.transition import Applied
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.errors import Corrupt, FlowFabricError
from flowfabric.store.clock import FollowingClock
from flowfabric.store.sqlite import SqliteStore, file
from flowfabric.store.sqlite import store as store_module
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import ask, execution_id, order
from flowfabric.testing.conformance.steps import apply, head, loaded, put, put_and_take


@pytest.fixture
async def mine(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "store.db"), synchronous="NORMAL", clock=clock)
    await store.migrate()
    yield store
    await store.close()


def run_raw(store: SqliteStore, statement: str, *arguments: object) -> None:
    with sqlite3.connect(store.path) as raw:
        raw.execute(statement, arguments)
    raw.close()


async def test_what_is_written_between_two_statements_of_a_look_is_not_seen(
    mine: SqliteStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await put_and_take(mine, clock, order(0))
    await apply(mine, clock, complete(lease, clock.now_ms(), b"first"))
    again = replay(await head(mine, lease.id), clock.now_ms())
    meddled: list[str] = []

    def meddle(statement: str) -> None:
        """Another process runs the execution once more, just before its attempts are read."""
        if "JOIN attempt" in statement and not meddled:
            meddled.append(statement)
            asyncio.run(run_again())

    async def run_again() -> None:
        await apply(mine, clock, again)
        second = (await mine.claim(ask(clock.now_ms(), token="token-2")))[0]
        await apply(mine, clock, complete(second, clock.now_ms(), b"second"))

    reader = SqliteStore(mine.path, clock=clock)
    await reader.migrate()
    monkeypatch.setattr(store_module, "connect", traced(file.connect, meddle))
    found = await loaded(reader, lease.id)
    await reader.close()

    assert len(meddled) == 1
    assert found.head.attempt == 0
    assert [attempt.result for attempt in found.attempts] == [b"first"]
    assert [a.result for a in (await loaded(mine, lease.id)).attempts] == [b"first", b"second"]


def traced(
    plain: Callable[[str, str], sqlite3.Connection], see: Callable[[str], None]
) -> Callable[[str, str], sqlite3.Connection]:
    def connect(path: str, synchronous: str) -> sqlite3.Connection:
        connection = plain(path, synchronous)
        connection.set_trace_callback(see)
        return connection

    return connect


async def test_reading_does_not_wait_for_a_writer(mine: SqliteStore, clock: VirtualClock) -> None:
    await put(mine, clock, order(0))
    other = file.connect(mine.path, "NORMAL")
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE execution SET priority = 9")
    assert [row.priority for row in await mine.find(Query())] == [0]
    other.execute("COMMIT")
    other.close()
    assert [row.priority for row in await mine.find(Query())] == [9]


UNREADABLE = {
    "an unknown kind of attempt": "UPDATE execution SET next_kind = 'odd' WHERE id = ?",
    "a fraction": "UPDATE execution SET epoch = 1.5 WHERE id = ?",
    "a text for a number": "UPDATE execution SET priority = 'high' WHERE id = ?",
    "bytes for a text": "UPDATE execution SET creator = x'00ff' WHERE id = ?",
    "a text that is none": "UPDATE execution SET creator = CAST(x'ff' AS TEXT) WHERE id = ?",
}


@pytest.mark.parametrize("statement", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_ready_row_that_cannot_be_read_keeps_no_other_from_being_claimed(
    mine: SqliteStore, clock: VirtualClock, statement: str
) -> None:
    """It is leased like the others, and found by its timer when the lease is over."""
    await put(mine, clock, *(order(n) for n in range(3)))
    run_raw(mine, statement, execution_id(1))
    leases = await mine.claim(ask(clock.now_ms(), limit=10))
    assert sorted(lease.id for lease in leases) == [execution_id(0), execution_id(2)]
    clock.set(leases[0].until_ms)
    due = await mine.due(clock.now_ms(), 10)
    assert [row.id for row in due.rows] == [execution_id(n) for n in range(3)]
    bad = due.rows[1]
    assert isinstance(bad, Malformed)
    assert bad.problem
    with pytest.raises(FlowFabricError):
        await mine.load(Want(ids=[execution_id(1)]))
    assert (await head(mine, execution_id(0))).state is State.ACTIVE
    assert bad.rev == (await head(mine, execution_id(0))).rev

    moved = poisoned(bad, clock.now_ms(), bad.problem)
    late = [complete(lease, clock.now_ms(), b"") for lease in leases]
    answers = await mine.apply([late[0], moved, late[1]], clock.now_ms())
    assert [isinstance(answer, Applied) for answer in answers] == [False, True, False]
    assert execution_id(1) not in {row.id for row in (await mine.due(clock.now_ms(), 10)).rows}


async def test_bodies_that_are_too_much_for_one_answer_come_in_several(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(path: str, synchronous: str) -> sqlite3.Connection:
        connection = file.connect(path, synchronous)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        return connection

    monkeypatch.setattr(store_module, "connect", limited)
    store = SqliteStore(str(tmp_path / "limited.db"), synchronous="NORMAL", clock=clock)
    await store.migrate()
    bodies = {execution_id(n): bytes([n]) * 9_000 for n in range(20)}
    for n, body in enumerate(bodies.values()):
        await put(store, clock, order(n, payload=body))
    ids = list(bodies)

    leases = await store.claim(ask(clock.now_ms(), limit=20))
    done = [complete(lease, clock.now_ms(), lease.payload) for lease in leases]
    for transition in done:
        await apply(store, clock, transition)
    found = await store.load(Want(ids=ids, payload=True, attempts=True))
    ends = await store.endings(ids)
    await store.close()

    assert {lease.id: lease.payload for lease in leases} == bodies
    assert [each.payload for each in found if each] == list(bodies.values())
    assert [each.attempts[0].result for each in found if each] == list(bodies.values())
    assert [each.result for each in ends if each] == list(bodies.values())


@pytest.mark.parametrize("statement", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_row_that_cannot_be_read_is_named_to_whoever_reads_it(
    mine: SqliteStore, clock: VirtualClock, statement: str
) -> None:
    await put(mine, clock, *(order(n) for n in range(5)))
    run_raw(mine, statement, execution_id(3))
    ids = [execution_id(n) for n in range(5)]
    for reading in (mine.load(Want(ids=ids)), mine.find(Query())):
        with pytest.raises(Corrupt) as refused:
            await reading
        assert refused.value.details == {"execution": public_id(execution_id(3))}
    assert len(await mine.load(Want(ids=ids[:3]))) == 3


async def test_an_end_that_cannot_be_read_is_named(mine: SqliteStore, clock: VirtualClock) -> None:
    await put(mine, clock, *(order(n) for n in range(3)))
    run_raw(mine, "UPDATE execution SET outcome_detail = x'00ff' WHERE id = ?", execution_id(1))
    with pytest.raises(Corrupt) as refused:
        await mine.endings([execution_id(n) for n in range(3)])
    assert refused.value.details == {"execution": public_id(execution_id(1))}


async def test_a_row_whose_count_of_writes_is_nonsense_stops_no_other_timer(
    mine: SqliteStore, clock: VirtualClock
) -> None:
    soon = clock.now_ms() + 1_000
    await put(mine, clock, *(order(n, delay_until_ms=soon) for n in range(3)))
    run_raw(mine, "UPDATE execution SET rev = 'abc' WHERE id = ?", execution_id(1))
    clock.set(soon)
    swept = await Timekeeper(mine, FollowingClock(clock)).run_once()
    assert (swept.processed, swept.errors, swept.again) == (2, 1, False)
    assert (await head(mine, execution_id(2))).state is State.WAITING


async def test_a_lane_that_cannot_be_read_is_shut_and_stops_no_other(
    mine: SqliteStore, clock: VirtualClock
) -> None:
    await put(mine, clock, order(0), order(1, lane="other"))
    run_raw(mine, "UPDATE lane SET state = 'bogus' WHERE name = ?", "other")
    states = {lane.name: lane.state for lane in await mine.lanes("", 10)}
    assert states == {"main": LaneState.ACTIVE, "other": LaneState.DISABLED}


async def test_an_attempt_that_cannot_be_read_is_named(
    mine: SqliteStore, clock: VirtualClock
) -> None:
    lease = await put_and_take(mine, clock, order(0))
    await apply(mine, clock, complete(lease, clock.now_ms(), b"1"))
    run_raw(mine, "UPDATE attempt SET kind = 'bogus'")
    with pytest.raises(Corrupt, match="attempt 0"):
        await mine.load(Want(ids=[lease.id], attempts=True))


async def test_a_log_line_that_cannot_be_read_keeps_nobody_from_the_next(
    mine: SqliteStore, clock: VirtualClock
) -> None:
    await put(mine, clock, order(0), order(1))
    run_raw(mine, "UPDATE log SET detail = 'no json' WHERE seq = 1")
    lines = await mine.tail(Feed())
    first, second = lines
    assert str(first.detail["unreadable"]).startswith("column detail: ")
    assert second.detail == {}
