"""Query plans: what runs for every task finds its rows by an index, however many are finished.

The statements are those that the store really runs, caught on their way to SQLite.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from flowfabric.core.lifecycle import Failure, complete, fail, renew
from flowfabric.core.model import Feed, Lease, Query, Want
from flowfabric.core.operator import Source, cancel
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.store.sqlite import SqliteStore, file
from flowfabric.store.sqlite import store as store_module
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import TTL_MS, ask, execution_id, order, submissions
from flowfabric.testing.conformance.steps import put, take

TABLES = ("execution", "payload", "attempt", "tag", "idempotency", "lane", "log", "meta")
ALIASES = {"e": "execution", "x": "execution", "l": "log", "p": "payload", "a": "attempt"}


class Desk:
    """A store with some of everything in it, and the statements that a call makes it run."""

    def __init__(self, store: SqliteStore, clock: VirtualClock, statements: list[str]) -> None:
        self.store = store
        self.clock = clock
        self.leases: list[Lease] = []
        self._statements = statements

    async def furnish(self) -> None:
        now_ms = self.clock.now_ms()
        await put(self.store, self.clock, *(order(n, tags={"a.b": str(n)}) for n in range(40)))
        await put(
            self.store, self.clock, *(order(n, delay_until_ms=now_ms + n) for n in range(50, 60))
        )
        self.leases = await take(self.store, self.clock, 20)
        done = [complete(lease, now_ms, b"") for lease in self.leases[:10]]
        await self.store.apply(done, now_ms)

    async def statements(self, call: Awaitable[object]) -> list[str]:
        """What the call runs."""
        self._statements.clear()
        await call
        return list(self._statements)

    async def plans(self, call: Awaitable[object]) -> list[list[str]]:
        """The plan of each statement that the call runs."""
        ran = [each for each in await self.statements(call) if each.startswith(("--", "WITH"))]
        with sqlite3.connect(self.store.path) as raw:
            plans = [raw.execute(f"EXPLAIN QUERY PLAN {each}").fetchall() for each in ran]
        raw.close()
        assert plans
        return [[told(step[3]) for step in plan] for plan in plans]


def told(step: str) -> str:
    """A step in the words of newer versions: older ones name a table and its alias."""
    return re.sub(r"TABLE (\w+ AS )?(?=\w)", "", step) if " TABLE " in step[:12] else step


@pytest.fixture
async def desk(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Desk]:
    statements: list[str] = []

    def traced(path: str, synchronous: str) -> sqlite3.Connection:
        connection = file.connect(path, synchronous)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(store_module, "connect", traced)
    store = SqliteStore(str(tmp_path / "store.db"), synchronous="NORMAL", clock=clock)
    await store.migrate()
    desk = Desk(store, clock, statements)
    await desk.furnish()
    yield desk
    await store.close()


def scanned(plan: list[str]) -> set[str]:
    """The tables that a plan walks from end to end; what it made up itself does not count."""
    made = {step.split()[1] for step in plan if step.startswith(("MATERIALIZE", "CO-ROUTINE"))}
    walked = {step.split()[1] for step in plan if step.startswith("SCAN ")} - made
    return {ALIASES.get(name, name) for name in walked} & set(TABLES)


Call = Callable[[Desk], Awaitable[object]]


def insert(desk: Desk) -> Awaitable[object]:
    orders = [order(n, key=f"k{n}", tags={"a.b": "c"}, lane="new") for n in range(100, 130)]
    return desk.store.insert(submissions(orders, desk.clock.now_ms()), desk.clock.now_ms())


def claim(desk: Desk) -> Awaitable[object]:
    return desk.store.claim(ask(desk.clock.now_ms(), limit=5, lanes=("main", "b"), token="t"))


def claim_one(desk: Desk) -> Awaitable[object]:
    return desk.store.claim(ask(desk.clock.now_ms(), only=execution_id(30), token="t"))


def claim_again(desk: Desk) -> Awaitable[object]:
    return desk.store.claim(ask(desk.clock.now_ms(), limit=20, repeated=True))


def grant(desk: Desk) -> Awaitable[object]:
    return desk.store.claim(ask(desk.clock.now_ms(), limit=5, token="t", start=False))


def complete_many(desk: Desk) -> Awaitable[object]:
    now_ms = desk.clock.now_ms()
    done = [complete(lease, now_ms, b"r") for lease in desk.leases[10:]]
    return desk.store.apply(done, now_ms)


def finish_in_many_ways(desk: Desk) -> Awaitable[object]:
    now_ms = desk.clock.now_ms()
    leases = desk.leases[10:]
    return desk.store.apply(
        [
            renew(leases[0], now_ms, TTL_MS),
            fail(leases[1], now_ms, Failure("one")),
            fail(leases[2], now_ms, Failure("two")),
            cancel(leases[3].head, now_ms, "", source=Source.OPERATOR),
            complete(desk.leases[0], now_ms, b"refused"),
        ],
        now_ms,
    )


def commit(desk: Desk) -> Awaitable[object]:
    now_ms = desk.clock.now_ms()
    ended = cancel(desk.leases[10].head, now_ms, "", source=Source.OPERATOR)
    return desk.store.commit(Changeset([ended]), now_ms)


def load(desk: Desk) -> Awaitable[object]:
    ids = [execution_id(n) for n in range(20)]
    return desk.store.load(Want(ids=ids, payload=True, tags=True, attempts=True))


def endings(desk: Desk) -> Awaitable[object]:
    return desk.store.endings([execution_id(n) for n in range(20)])


def due(desk: Desk) -> Awaitable[object]:
    return desk.store.due(desk.clock.now_ms() + 55, 5)


def find(desk: Desk) -> Awaitable[object]:
    return desk.store.find(Query(partition=7, after=execution_id(3), states=(State.ACTIVE,)))


def tail(desk: Desk) -> Awaitable[object]:
    return desk.store.tail(Feed(limit=5))


def tail_ends(desk: Desk) -> Awaitable[object]:
    return desk.store.tail(Feed(limit=5, states=(State.COMPLETED,)))


def tail_one(desk: Desk) -> Awaitable[object]:
    return desk.store.tail(Feed(execution=execution_id(3)))


def tail_newest(desk: Desk) -> Awaitable[object]:
    return desk.store.tail(Feed(newest=True))


def lanes(desk: Desk) -> Awaitable[object]:
    return desk.store.lanes("a", 5)


CALLS: list[Call] = [
    insert,
    claim,
    claim_one,
    claim_again,
    grant,
    complete_many,
    finish_in_many_ways,
    commit,
    load,
    endings,
    due,
    find,
    tail,
    tail_ends,
    tail_one,
    tail_newest,
    lanes,
]


@pytest.mark.parametrize("call", CALLS)
async def test_no_table_is_walked_from_end_to_end(desk: Desk, call: Call) -> None:
    for plan in await desk.plans(call(desk)):
        assert scanned(plan) == set(), plan


@pytest.mark.parametrize("call", [claim, grant, due, tail, tail_ends, tail_newest, find])
async def test_what_is_wanted_in_order_is_not_sorted(desk: Desk, call: Call) -> None:
    for plan in await desk.plans(call(desk)):
        assert not any("TEMP B-TREE" in step for step in plan), plan


BY_ID = "USING INDEX sqlite_autoindex_execution_1 (id=?)"
BY_ROW = "USING INTEGER PRIMARY KEY (rowid=?)"
STEPS: list[tuple[Call, str, str]] = [
    (claim, "execution", "USING INDEX execution_ready (namespace=? AND route=?)"),
    (claim, "execution", BY_ROW),
    (claim, "p", BY_ROW),
    (claim_one, "execution", BY_ID),
    (claim_again, "execution", "INDEX execution_due (due_ms>?)"),
    (complete_many, "e", BY_ID),
    (finish_in_many_ways, "e", BY_ID),
    (commit, "e", BY_ID),
    (load, "e", BY_ID),
    (load, "p", BY_ROW),
    (load, "a", "USING PRIMARY KEY (n=?)"),
    (load, "t", "USING PRIMARY KEY (n=?)"),
    (endings, "a", "USING PRIMARY KEY (n=? AND attempt=?)"),
    (due, "execution", "USING INDEX execution_due (due_ms<?)"),
    (due, "execution", "USING COVERING INDEX execution_due (due_ms>?)"),
    (find, "x", "USING INDEX sqlite_autoindex_execution_1 (id>? AND id<?)"),
    (tail, "l", "USING INTEGER PRIMARY KEY (rowid>?)"),
    (tail_newest, "l", "USING INTEGER PRIMARY KEY (rowid>?)"),
    (tail_one, "l", "USING INDEX log_execution (n=? AND seq>?)"),
    (insert, "idempotency", "USING PRIMARY KEY (namespace=? AND key=?)"),
]


@pytest.mark.parametrize(("call", "table", "way"), STEPS)
async def test_rows_are_found_by_their_index(desk: Desk, call: Call, table: str, way: str) -> None:
    steps = [step for plan in await desk.plans(call(desk)) for step in plan]
    assert any(step.startswith(f"SEARCH {table} ") and way in step for step in steps), steps


async def test_a_batch_whose_guards_all_hold_is_written_without_a_look(desk: Desk) -> None:
    """Looking first would cost every finished task a second statement per batch."""
    ran = await desk.statements(complete_many(desk))
    assert not [each for each in ran if "ROLLBACK" in each or "-- Heads by id." in each]
    ran = await desk.statements(finish_in_many_ways(desk))
    assert [each for each in ran if "-- Heads by id." in each]


async def test_a_plan_that_walks_a_table_is_noticed(desk: Desk) -> None:
    """The check above finds what it is there for."""
    with sqlite3.connect(desk.store.path) as raw:
        bad = "EXPLAIN QUERY PLAN SELECT * FROM execution AS e WHERE e.worker = 'w'"
        plan = [told(step[3]) for step in raw.execute(bad).fetchall()]
    raw.close()
    assert scanned(plan) == {"execution"}
