"""The file: where it may be, whose it is, and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from flowfabric.core.ids import PartitionCounts
from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Feed, Query
from flowfabric.core.transition import Applied
from flowfabric.errors import (
    FlowFabricError,
    InvalidInput,
    StoreMismatch,
    StoreUnavailable,
)
from flowfabric.store.sqlite import SqliteStore, file
from flowfabric.store.sqlite import store as store_module
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order, submissions
from flowfabric.testing.conformance.steps import contents, put, take
from tests.store.children import Job, run_together

Connect = Callable[[str, str], sqlite3.Connection]


def make(path: Path, *statements: str) -> None:
    """A database of somebody else, or one of ours after somebody else was at it."""
    with sqlite3.connect(path) as raw:
        for statement in statements:
            raw.execute(statement)
    raw.close()


async def refusal(path: Path, counts: PartitionCounts | None = None) -> FlowFabricError:
    """The error with which opening it fails; nothing of the store may stay behind."""
    store = SqliteStore(str(path), counts=counts)
    with pytest.raises(FlowFabricError) as raised:
        await store.migrate()
    assert threads() == []
    await store.close()
    return raised.value


def threads() -> list[str]:
    """The threads of stores that are open in this process."""
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("flowfabric")]


async def opened(path: Path, clock: VirtualClock | None = None) -> SqliteStore:
    store = SqliteStore(str(path), synchronous="NORMAL", clock=clock)
    await store.migrate()
    return store


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE theirs (n)", "PRAGMA application_id = 77", "PRAGMA user_version = 3"],
)
async def test_a_file_of_another_program_is_never_touched(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "theirs.db"
    make(path, statement)
    before = path.read_bytes()
    error = await refusal(path)
    assert isinstance(error, StoreMismatch)
    assert (error.hint, "another program" in str(error)) == ("choose another path", True)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["theirs.db"]


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, this is not a database. " * 50)
    before = path.read_bytes()
    error = await refusal(path)
    assert isinstance(error, StoreMismatch)
    assert "not a database" in str(error)
    assert path.read_bytes() == before


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()
    store = await opened(tmp_path / "new.db")
    assert await store.find(Query()) == []
    await store.close()


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await (await opened(path)).close()
    make(path, "PRAGMA user_version = 99")
    error = await refusal(path)
    assert isinstance(error, StoreMismatch)
    assert "schema version 99" in str(error)
    assert error.hint == "upgrade FlowFabric on this machine"


async def test_other_partition_counts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first = SqliteStore(str(path), counts=PartitionCounts(flow=16))
    assert (await first.migrate()).flow == 16
    await first.close()
    error = await refusal(path, PartitionCounts(flow=32))
    assert isinstance(error, StoreMismatch)
    assert error.field == "partitions"
    again = await opened(path)
    assert await again.migrate() == PartitionCounts(flow=16)
    await again.close()


async def test_what_is_written_is_there_after_opening_again(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await opened(tmp_path / "store.db", clock)
    await put(store, clock, order(0, tags={"a.b": "c"}), order(1, key="k"))
    lease = (await take(store, clock))[0]
    await store.apply([complete(lease, clock.now_ms(), b"done")], clock.now_ms())
    before = await contents(store)
    await store.close()
    store = await opened(tmp_path / "store.db", clock)
    assert await contents(store) == before
    last = before.events[-1].cursor
    assert await store.tail(Feed(after=last)) == []
    await store.close()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    error = await refusal(tmp_path / "nowhere" / "store.db")
    assert isinstance(error, InvalidInput)
    assert (error.field, error.hint) == ("url", "create it first")
    assert str(tmp_path / "nowhere") in str(error)


async def test_a_database_that_is_no_file_is_refused() -> None:
    error = await refusal(Path(":memory:"))
    assert isinstance(error, InvalidInput)
    assert "memory://" in error.hint


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "9p"])
async def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/data {tmp_path} {kind} rw 0 0\n"
    monkeypatch.setattr(file, "_mount_table", lambda: mounts)
    error = await refusal(tmp_path / "store.db")
    assert isinstance(error, InvalidInput)
    assert f"network file system ({kind})" in str(error)
    assert list(tmp_path.iterdir()) == []


async def test_a_link_into_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/data {tmp_path / 'far'} nfs rw 0 0\n"
    monkeypatch.setattr(file, "_mount_table", lambda: mounts)
    error = await refusal(tmp_path / "near" / "store.db")
    assert "network file system" in str(error)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/data", "nfs"),
        ("/data/deep/er", "nfs"),
        ("/database", "ext4"),
        ("/data/local", "xfs"),
        ("/with space/x", "cifs"),
    ],
)
def test_the_nearest_mount_decides(folder: str, kind: str) -> None:
    mounts = (
        "/dev/sda / ext4 rw 0 0\nserver:/d /data nfs rw 0 0\nnonsense\n"
        "/dev/sdb /data/local xfs rw 0 0\n//server/w /with\\040space cifs rw 0 0\n"
    )
    assert file.file_system_of(Path(folder), mounts) == kind
    assert file.file_system_of(Path(folder), "") == ""


def through(monkeypatch: pytest.MonkeyPatch, change: Callable[[Connect], Connect]) -> None:
    """Let the store open its connections in another way."""
    changed = change(file.connect)
    monkeypatch.setattr(file, "connect", changed)
    monkeypatch.setattr(store_module, "connect", changed)


def read_only(plain: Connect) -> Connect:
    def connect(path: str, synchronous: str) -> sqlite3.Connection:
        return plain(f"file:{path}?mode=ro", synchronous)

    return connect


async def test_a_read_only_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await opened(tmp_path / "store.db")).close()
    through(monkeypatch, read_only)
    error = await refusal(tmp_path / "store.db")
    assert type(error) is StoreUnavailable
    assert "permissions" in error.hint
    assert isinstance(error.__cause__, sqlite3.OperationalError)


async def test_a_file_that_cannot_be_made_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through(monkeypatch, read_only)
    error = await refusal(tmp_path / "store.db")
    assert type(error) is StoreUnavailable
    assert "permissions" in error.hint


class Disk:
    """A disk of so many pages, made larger at will."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._connections: list[sqlite3.Connection] = []

    def __call__(self, plain: Connect) -> Connect:
        def connect(path: str, synchronous: str) -> sqlite3.Connection:
            connection = plain(path, synchronous)
            connection.execute(f"PRAGMA max_page_count = {self.pages}")
            self._connections.append(connection)
            return connection

        return connect

    def grow(self) -> None:
        for connection in self._connections:
            # The one that looked at the file first is closed by now.
            with suppress(sqlite3.ProgrammingError):
                connection.execute("PRAGMA max_page_count = 1000000")


async def test_a_full_disk_leaves_nothing_half_written_and_work_goes_on(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(200)
    through(monkeypatch, disk)
    store = await opened(tmp_path / "store.db", clock)
    now_ms = clock.now_ms()

    async def fill(number: int) -> None:
        orders = [order(number * 10 + n, payload=bytes(50_000)) for n in range(10)]
        await store.insert(submissions(orders, now_ms), now_ms)

    await fill(0)
    before = await contents(store)
    with pytest.raises(StoreUnavailable) as raised:
        await fill(1)
    assert "disk space" in raised.value.hint
    assert isinstance(raised.value.__cause__, sqlite3.OperationalError)
    assert await contents(store) == before

    disk.grow()
    await fill(5)
    await put(store, clock, order(9_999))
    lease = (await take(store, clock, only=execution_id(9_999)))[0]
    assert await store.apply([complete(lease, now_ms, b"")], now_ms) == [Applied(lease.id)]
    await store.close()
    with sqlite3.connect(tmp_path / "store.db") as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        orphans = "SELECT count(*) FROM payload WHERE n NOT IN (SELECT n FROM execution)"
        assert raw.execute(orphans).fetchone() == (0,)
    raw.close()


async def test_a_small_write_fits_beside_one_that_fills_the_disk(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    through(monkeypatch, Disk(100))
    store = await opened(tmp_path / "store.db", clock)
    now_ms = clock.now_ms()
    large = submissions([order(0, payload=bytes(1_000_000))], now_ms)
    calls = [store.insert(submissions([order(n)], now_ms), now_ms) for n in (1, 2)]
    answers = await asyncio.gather(
        calls[0], store.insert(large, now_ms), calls[1], return_exceptions=True
    )
    assert isinstance(answers[1], StoreUnavailable)
    rows = await store.find(Query())
    assert [row.id for row in rows] == [execution_id(1), execution_id(2)]
    await store.close()


async def test_a_look_at_a_file_that_is_being_set_up_sees_it_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never in between: tables without an owner would look like those of another program."""
    path = tmp_path / "store.db"
    make(path, "PRAGMA journal_mode = WAL")
    plain = file.connect

    def set_up(statement: str) -> None:
        if "sqlite_schema" in statement and not done:
            done.append(statement)
            other = plain(str(path), "NORMAL")
            other.execute("BEGIN IMMEDIATE")
            file.prepare(other, None)
            other.execute("COMMIT")
            other.close()

    def traced(path: str, synchronous: str) -> sqlite3.Connection:
        connection = plain(path, synchronous)
        connection.set_trace_callback(set_up)
        return connection

    done: list[str] = []
    monkeypatch.setattr(file, "connect", traced)
    file.claim_file(str(path))
    assert len(done) == 1


async def test_opening_twice_at_once_is_opening_once(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    counts = await asyncio.gather(*(store.migrate() for _ in range(5)))
    assert set(counts) == {PartitionCounts()}
    assert await store.find(Query()) == []
    assert len(threads()) == 2
    await store.close()
    assert threads() == []


async def test_a_store_can_be_opened_again_after_it_was_closed(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.find(Query())
    with pytest.raises(StoreUnavailable):
        await store.insert([], await store.now())
    await store.migrate()
    assert await store.find(Query()) == []
    await store.close()


async def test_ten_processes_can_open_a_new_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    answers = run_together(path, [Job("open_and_insert", number) for number in range(10)])
    assert answers == [[str(PartitionCounts()), "True"]] * 10
    store = await opened(path)
    assert len(await store.find(Query())) == 10
    await store.close()


async def test_the_event_loop_goes_on_while_the_file_is_held_by_somebody(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    store = SqliteStore(str(path))
    opening = asyncio.create_task(store.migrate())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not opening.done()
    holder.execute("ROLLBACK")
    holder.close()
    assert (await opening).flow == 256
    await store.close()


async def test_only_its_owner_can_read_a_new_file(tmp_path: Path, clock: VirtualClock) -> None:
    """Those beside it as well, and a copy."""
    usual = os.umask(0)
    try:
        store = await opened(tmp_path / "store.db", clock)
        await put(store, clock, order(0))
        await store.backup(tmp_path / "copy.db")
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in tmp_path.iterdir()}
    finally:
        os.umask(usual)
    await store.close()
    names = ("store.db", "store.db-wal", "store.db-shm", "copy.db")
    assert modes == dict.fromkeys(names, 0o600)


async def test_a_file_that_was_there_keeps_the_rights_it_has(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch(0o640)
    path.chmod(0o640)
    await (await opened(path)).close()
    assert path.stat().st_mode & 0o777 == 0o640


async def test_a_relative_path_is_the_same_file_in_another_working_folder(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading connection is opened when something is first read."""
    monkeypatch.chdir(tmp_path)
    store = await opened(Path("store.db"), clock)
    await put(store, clock, order(0))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert len(await store.find(Query())) == 1
    await store.close()
    assert list((tmp_path / "other").iterdir()) == []
