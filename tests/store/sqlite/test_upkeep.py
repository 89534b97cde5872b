"""Upkeep of the file: copies while others write, drops that leave nothing, files of others."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from flowfabric.core.model import Feed, Query
from flowfabric.errors import (
    CursorExpired,
    FlowFabricError,
    InvalidInput,
    Refused,
    StoreMismatch,
    StoreUnavailable,
)
from flowfabric.store.queries import migration_names, migrations
from flowfabric.store.sqlite import SqliteStore, upkeep
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order
from flowfabric.testing.conformance.steps import put

ORDERS = 300


async def opened(path: Path, clock: VirtualClock) -> SqliteStore:
    store = SqliteStore(str(path), synchronous="NORMAL", clock=clock)
    await store.migrate()
    return store


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_asking_creates_nothing(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    assert await store.unmigrated() == migration_names("sqlite")
    assert await store.sizes() == []
    await store.drop()
    assert names_in(tmp_path) == []


def test_migrations_have_names_in_their_order() -> None:
    names = migration_names("sqlite")
    assert names == sorted(names)
    assert names[0] == "0001_initial"
    assert len(names) == len(migrations("sqlite"))


async def test_a_closed_store_is_looked_at_without_a_trace(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await opened(tmp_path / "store.db", clock)
    await put(store, clock, order(0))
    await store.close()
    assert await store.unmigrated() == []
    sizes = {part.name: part for part in await store.sizes()}
    assert sizes["execution"].rows == 1
    assert sizes[upkeep.LOG_NAME].bytes == 0
    whole = (tmp_path / "store.db").stat().st_size
    assert sum(part.bytes for part in sizes.values()) == whole
    assert names_in(tmp_path) == ["store.db"]


async def test_the_write_ahead_log_counts_while_it_is_there(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await opened(tmp_path / "store.db", clock)
    await put(store, clock, order(0))
    sizes = {part.name: part.bytes for part in await store.sizes()}
    assert sizes[upkeep.LOG_NAME] == (tmp_path / "store.db-wal").stat().st_size > 0
    await store.close()


async def test_a_library_that_cannot_tell_tables_apart_still_knows_the_whole(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path / "store.db", clock)
    await store.close()
    monkeypatch.setattr(upkeep, "_TABLE_BYTES", "SELECT name, 1 FROM no_such_table")
    sizes = {part.name: part.bytes for part in await store.sizes()}
    assert sizes["execution"] == 0
    assert sizes[upkeep.REST_NAME] == (tmp_path / "store.db").stat().st_size


@pytest.mark.parametrize("look", [SqliteStore.unmigrated, SqliteStore.sizes, SqliteStore.drop])
@pytest.mark.parametrize("content", ["table", "text"])
async def test_a_file_of_somebody_else_is_refused_and_stays(
    tmp_path: Path, look: Callable[[SqliteStore], object], content: str
) -> None:
    path = tmp_path / "theirs.db"
    if content == "table":
        raw = sqlite3.connect(path)
        raw.execute("CREATE TABLE theirs (n)")
        raw.close()
    else:
        path.write_text("by no means a database, and long enough to be read as one" * 20)
    before = path.read_bytes()
    answer = look(SqliteStore(str(path)))
    assert asyncio.iscoroutine(answer)
    with pytest.raises(StoreMismatch):
        await answer
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["theirs.db"]


async def test_a_newer_file_has_nothing_pending_but_an_error(
    tmp_path: Path, clock: VirtualClock
) -> None:
    await (await opened(tmp_path / "store.db", clock)).close()
    raw = sqlite3.connect(tmp_path / "store.db")
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StoreMismatch, match="upgrade"):
        await SqliteStore(str(tmp_path / "store.db")).unmigrated()


async def test_a_drop_takes_the_files_beside_it_and_no_others(
    tmp_path: Path, clock: VirtualClock
) -> None:
    (tmp_path / "store.db-mine").touch()
    store = await opened(tmp_path / "store.db", clock)
    await put(store, clock, order(0))
    assert "store.db-wal" in names_in(tmp_path)
    await store.drop()
    assert names_in(tmp_path) == ["store.db-mine"]


async def test_a_file_that_somebody_works_with_is_not_dropped(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await opened(tmp_path / "store.db", clock)
    await put(store, clock, order(0))
    with pytest.raises(Refused, match="stop the workers"):
        await SqliteStore(str(tmp_path / "store.db")).drop()
    assert len(await store.find(Query())) == 1
    await put(store, clock, order(1))
    await store.close()


async def test_a_copy_taken_while_others_write_is_whole(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Every execution in it has its line in the log, and none is missing before another."""
    store = await opened(tmp_path / "store.db", clock)
    await put(store, clock, *map(order, range(ORDERS)))
    writing = asyncio.create_task(_write(store, clock))
    targets = [tmp_path / f"copy-{number}.db" for number in range(3)]
    for target in targets:
        await store.backup(target)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    for target in targets:
        copy = await opened(target, clock)
        found = await copy.find(Query(limit=100_000))
        logged = [event.execution for event in await copy.tail(Feed(limit=100_000))]
        assert len(found) >= ORDERS
        assert sorted(logged) == [head.id for head in found]
        await copy.close()
    await store.close()


async def _write(store: SqliteStore, clock: VirtualClock) -> None:
    number = ORDERS
    while True:
        await put(store, clock, order(number), order(number + 1))
        number += 2


async def test_a_copy_is_the_same_store_in_a_life_of_its_own(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await opened(tmp_path / "store.db", clock)
    await put(store, clock, order(0), order(1))
    cursor = (await store.tail(Feed()))[-1].cursor
    await store.backup(tmp_path / "copy.db")
    copy = await opened(tmp_path / "copy.db", clock)
    assert await copy.find(Query()) == await store.find(Query())
    with pytest.raises(CursorExpired):
        await copy.tail(Feed(after=cursor))
    assert await store.tail(Feed(after=cursor)) == []
    await copy.close()
    await store.close()
    assert names_in(tmp_path) == ["copy.db", "store.db"]


async def test_a_copy_overwrites_nothing(tmp_path: Path, clock: VirtualClock) -> None:
    store = await opened(tmp_path / "store.db", clock)
    target = tmp_path / "copy.db"
    target.write_text("precious")
    for taken in (target, tmp_path / "store.db"):
        with pytest.raises(InvalidInput, match="exists"):
            await store.backup(taken)
    with pytest.raises(InvalidInput, match="no folder"):
        await store.backup(tmp_path / "gone" / "copy.db")
    await store.close()
    assert target.read_text() == "precious"
    assert names_in(tmp_path) == ["copy.db", "store.db"]


@pytest.mark.parametrize("can_link", [True, False])
async def test_a_target_that_appears_meanwhile_is_not_overwritten(
    tmp_path: Path, clock: VirtualClock, can_link: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path / "store.db", clock)
    target = tmp_path / "copy.db"
    plain = upkeep._copy

    def copy_and_lose_the_race(path: str, unfinished: Path) -> None:
        plain(path, unfinished)
        target.write_text("precious")

    monkeypatch.setattr(upkeep, "_copy", copy_and_lose_the_race)
    if not can_link:
        monkeypatch.setattr(os, "link", _no_links)
    with pytest.raises(InvalidInput, match="exists"):
        await store.backup(target)
    await store.close()
    assert target.read_text() == "precious"
    assert names_in(tmp_path) == ["copy.db", "store.db"]


def _no_links(*_: object) -> None:
    raise OSError(95, "Operation not supported")


async def test_a_disk_without_links_gets_its_copy_all_the_same(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path / "store.db", clock)
    monkeypatch.setattr(os, "link", _no_links)
    await store.backup(tmp_path / "copy.db")
    await store.close()
    assert names_in(tmp_path) == ["copy.db", "store.db"]
    await (await opened(tmp_path / "copy.db", clock)).close()


@pytest.mark.parametrize("state", ["absent", "empty"])
async def test_a_store_that_was_never_set_up_has_nothing_to_copy(
    tmp_path: Path, state: str
) -> None:
    if state == "empty":
        (tmp_path / "store.db").touch()
    before = names_in(tmp_path)
    with pytest.raises(InvalidInput):
        await SqliteStore(str(tmp_path / "store.db")).backup(tmp_path / "copy.db")
    assert names_in(tmp_path) == before


async def test_a_copy_that_fails_half_way_leaves_nothing(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path / "store.db", clock)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="No space left"):
        await store.backup(tmp_path / "copy.db")
    await store.close()
    assert names_in(tmp_path) == ["store.db"]


async def test_drop_and_close_in_any_order_end_the_same(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await opened(tmp_path / "store.db", clock)
    await store.drop()
    await store.close()
    with pytest.raises(FlowFabricError):
        await store.find(Query())
    assert names_in(tmp_path) == []
