"""The log on a server where many write at once: a late commit is delivered, strangers do not count.

Numbers of lines are given out before transactions end. The tests hold a transaction open that has
a low number, as a slow process does, and look what a follower sees meanwhile and afterwards.
"""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Event, Feed
from flowfabric.core.operator import set_tags
from flowfabric.core.transition import Changeset
from flowfabric.errors import CursorExpired
from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order, submissions
from flowfabric.testing.conformance.steps import ALL, in_threads, put
from tests.store.postgres.desk import Desk, Raw, waited_for

LATE_LINE = """INSERT INTO log (n, id, at_ms, kind, state, attempt, epoch, detail)
    SELECT n, id, 1, 'late', state, attempt, epoch, '{}' FROM execution WHERE id = $1"""


async def write_late(raw: Raw, id: ExecutionId) -> None:
    await raw.execute("BEGIN")
    await raw.execute(LATE_LINE, id)


def told(events: list[Event]) -> list[tuple[ExecutionId, str]]:
    return [(event.execution, event.kind) for event in events]


async def test_a_late_commit_with_a_low_number_is_delivered(
    desk: Desk, store: PostgresStore
) -> None:
    rows = await put(store, desk.clock, order(0))
    raw = await desk.raw()
    await write_late(raw, rows[0].id)
    await put(store, desk.clock, order(1))

    before = await store.tail(Feed())
    assert told(before) == [(rows[0].id, "submitted")]
    assert await store.tail(Feed(newest=True)) == before
    await raw.execute("COMMIT")

    after = await store.tail(Feed(after=before[-1].cursor))
    assert told(after) == [(rows[0].id, "late"), (execution_id(1), "submitted")]


async def test_a_late_writer_that_gives_up_holds_nothing_back(
    desk: Desk, store: PostgresStore
) -> None:
    rows = await put(store, desk.clock, order(0))
    raw = await desk.raw()
    await write_late(raw, rows[0].id)
    await put(store, desk.clock, order(1))
    await raw.execute("ROLLBACK")
    assert [line.kind for line in await store.tail(Feed())] == ["submitted", "submitted"]


async def test_a_long_transaction_that_writes_elsewhere_holds_nothing_back(
    desk: Desk, store: PostgresStore
) -> None:
    """In the same database: its number is low, but it appends no line of ours."""
    raw = await desk.raw()
    await raw.execute("CREATE TABLE theirs (a bigint)")
    await raw.execute("BEGIN")
    await raw.execute("INSERT INTO theirs VALUES (1)")
    await put(store, desk.clock, order(0))
    assert told(await store.tail(Feed())) == [(execution_id(0), "submitted")]
    await raw.execute("COMMIT")


async def test_a_reader_in_a_transaction_holds_nothing_back(
    desk: Desk, store: PostgresStore
) -> None:
    raw = await desk.raw()
    await raw.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await raw.fetch("SELECT * FROM log")
    await put(store, desk.clock, order(0))
    assert told(await store.tail(Feed())) == [(execution_id(0), "submitted")]
    await raw.execute("COMMIT")


@pytest.mark.parametrize("options", ["", "&pooler=transaction"])
async def test_a_changeset_in_progress_is_waited_for_from_its_beginning(
    desk: Desk, clock: VirtualClock, options: str
) -> None:
    """Its first statement locks a row and gets a number, long before its line is written."""
    store = await desk.opened(options)
    rows = await put(store, clock, order(0), order(1))
    lines = await store.tail(Feed())
    raw = await desk.raw()
    await raw.execute("BEGIN")
    await raw.execute("SELECT FROM execution WHERE id = $1 FOR UPDATE", rows[1].id)
    both = Changeset([set_tags(row, clock.now_ms(), {"a.b": "c"}) for row in rows])
    writing = asyncio.create_task(store.commit(both, clock.now_ms()))
    await waited_for(raw)
    await put(store, clock, order(2))
    assert await store.tail(Feed()) == lines
    await raw.execute("COMMIT")
    assert await writing
    assert len(await store.tail(Feed(after=lines[-1].cursor))) == 3


async def test_the_history_of_one_execution_waits_for_nobody(
    desk: Desk, store: PostgresStore
) -> None:
    rows = await put(store, desk.clock, order(0))
    raw = await desk.raw()
    await write_late(raw, rows[0].id)
    await put(store, desk.clock, order(1))
    mine = await store.tail(Feed(execution=execution_id(1)))
    assert told(mine) == [(execution_id(1), "submitted")]
    await raw.execute("COMMIT")
    history = await store.tail(Feed(execution=rows[0].id))
    assert [line.kind for line in history] == ["submitted", "late"]


async def test_a_follower_misses_nothing_while_many_write(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    """Writers on connections of their own, a follower that reads as fast as it can."""
    writers = [await desk.opened() for _ in range(4)]
    now_ms = clock.now_ms()
    finished = asyncio.Event()

    async def write(number: int) -> None:
        for n in range(40):
            batch = submissions([order(number * 100 + n)], now_ms)
            await writers[number].insert(batch, now_ms)

    async def write_all() -> None:
        await asyncio.to_thread(in_threads, 4, write)
        finished.set()

    writing = asyncio.create_task(write_all())
    seen: list[str] = []
    cursor, last_look = "", False
    while not last_look:
        last_look = finished.is_set()
        while page := await store.tail(Feed(after=cursor, limit=3)):
            seen += [event.execution for event in page]
            cursor = page[-1].cursor
    await writing
    assert sorted(seen) == sorted(execution_id(w * 100 + n) for w in range(4) for n in range(40))


async def test_a_cursor_of_another_life_has_expired(desk: Desk, store: PostgresStore) -> None:
    """Restored elsewhere, or promoted: the server or its timeline is another."""
    await put(store, desk.clock, order(0))
    cursor = (await store.tail(Feed()))[-1].cursor
    life, _, place = cursor.rpartition(":")
    server, timeline, store_life = life.split(".")
    others = (
        f"{int(server) + 1}.{timeline}.{store_life}",
        f"{server}.{int(timeline, 16) + 1:08X}.{store_life}",
        f"{server}.{timeline}.{'0' * len(store_life)}",
    )
    for other in others:
        with pytest.raises(CursorExpired):
            await store.tail(Feed(after=f"{other}:{place}"))
    with pytest.raises(CursorExpired):
        await store.tail(Feed(after=f"{life}:{2**63}-1"))


async def test_a_store_begun_anew_does_not_go_on_from_an_old_cursor(
    desk: Desk, store: PostgresStore
) -> None:
    await put(store, desk.clock, order(0))
    cursor = (await store.tail(Feed()))[-1].cursor
    await store.drop()
    await store.migrate()
    with pytest.raises(CursorExpired):
        await store.tail(Feed(after=cursor, limit=ALL))


async def test_lines_of_a_dump_restored_on_another_server_are_seen_at_once(
    desk: Desk, store: PostgresStore
) -> None:
    await put(store, desk.clock, order(0))
    (before,) = await store.tail(Feed())
    raw = await desk.raw()
    await raw.execute("UPDATE log SET xid = '999999999999'")
    await raw.execute("UPDATE meta SET value = 'elsewhere' WHERE name = 'system'")
    assert await store.tail(Feed()) == []

    await store.close()
    await store.migrate()
    await put(store, desk.clock, order(1))
    after = await store.tail(Feed())
    assert told(after) == [(execution_id(0), "submitted"), (execution_id(1), "submitted")]
    assert after[0].cursor != before.cursor
