"""Entries that cannot be read: each says so itself, and keeps nothing else back."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from flowfabric.core.entries import Append, Appended, Entry, Topic
from flowfabric.core.ids import partition_of
from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Lease, Want
from flowfabric.core.policy import DAY_MS
from flowfabric.core.retention import Departure, Purge
from flowfabric.core.transition import Held
from flowfabric.store import Store
from flowfabric.store.memory import MemoryStore
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.testing.build import order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import TOPIC, apply, head, put_and_take

# By column a cell that it cannot hold, and how that is written past the store.
SQLITE: dict[str, str] = {
    "body": "body = 'text'",
    "epoch": "epoch = 'melted'",
    "place": "place = x'ff'",
    "key": "key = x'62fffe'",
}
VALKEY: dict[str, bytes] = {
    "body": b"b\x001\x000",
    "epoch": b"b\0melted\x000\0body",
    "place": b"b\x001\0melted\0body",
    "key": b"b\xff\xfe\x001\x000\0body",
}


async def damage(store: Store, lease: Lease, column: str) -> bool:
    """Spoil the entry `b`; False where the schema of the store forbids it."""
    match store:
        case MemoryStore():
            store._entries.spoil(lease.id, TOPIC, "b", f"column {column}: is broken")
        case SqliteStore():
            with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as raw:
                mine = "key = 'b' AND n = (SELECT n FROM execution WHERE id = ?)"
                change = f"UPDATE entry SET {SQLITE[column]} WHERE {mine}"  # noqa: S608 - our own
                done = raw.execute(change, [lease.id])
                assert done.rowcount == 1
        case ValkeyStore():
            key = f"{store.keys.partition(partition_of(lease.id))}:entry:{uuid_of(lease.id)}"
            front = b"0000000000\0" + TOPIC.encode() + b"\0"
            whole = front + b"b\x001\x001\0b"
            assert await store.caller.one(command(key, "ZREM", key, whole)) == 1
            await store.caller.one(command(key, "ZADD", key, "0", front + VALKEY[column]))
        case _:
            return False
    return True


def append_of(lease: Lease, *keys: str) -> Append:
    entries = tuple(Entry(TOPIC, key, key.encode(), n) for n, key in enumerate(keys))
    return Append(lease.id, Held(lease.epoch, lease.token), entries)


@pytest.mark.parametrize("column", SQLITE)
async def test_an_entry_that_cannot_be_read_is_told_of_and_keeps_no_other_back(
    store: Store, clock: VirtualClock, column: str
) -> None:
    bad, good = [await put_and_take(store, clock, order(number)) for number in range(2)]
    await store.append([append_of(each, "a", "b", "c") for each in (bad, good)], clock.now_ms())
    if not await damage(store, bad, column):
        return
    asks = [Topic(bad.id, TOPIC), Topic(good.id, TOPIC)]
    of_bad, of_good = await store.entries(asks)
    assert all(not each.problem for each in of_good)
    problems = [each.problem for each in of_bad if each.problem]
    assert len(problems) == 1
    assert "column" in problems[0]
    assert [each.key for each in of_bad if not each.problem] == ["a", "c"]

    answers = await store.append(
        [append_of(bad, "a", "b", "d"), append_of(good, "d")], clock.now_ms()
    )
    assert answers[1] == Appended(good.id)
    assert isinstance(answers[0], Appended)
    assert answers[0].there[0].body == b"a"

    await apply(store, clock, complete(bad, clock.now_ms(), b""))
    clock.advance(DAY_MS)
    row = await head(store, bad.id)
    seen = [Departure(row.id, row.rev)]
    assert (await store.purge(Purge(now_ms=clock.now_ms(), executions=seen))).gone == [bad.id]
    assert await store.load(Want(ids=[bad.id])) == [None]
    assert await store.entries([Topic(bad.id, TOPIC)]) == [[]]
