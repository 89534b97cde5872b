"""The write-ahead log: emptied by the janitor, and told of when it cannot be."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from flowfabric.engine.diagnosis import Kind
from flowfabric.engine.doctor import Doctor
from flowfabric.engine.janitor import CHORES, Shed
from flowfabric.engine.telemetry import Telemetry
from flowfabric.store import upkeep
from flowfabric.store.clock import FollowingClock
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.sqlite import upkeep as sqlite_upkeep
from flowfabric.store.sqlite.file import CHECKPOINT_PAGES
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order
from flowfabric.testing.conformance.steps import put


@pytest.fixture
async def mine(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "store.db"), synchronous="NORMAL", clock=clock)
    await store.migrate()
    yield store
    await store.close()


async def sweep(store: SqliteStore, clock: VirtualClock) -> None:
    """What the janitor does every minute."""
    shed = Shed(store, FollowingClock(clock), Telemetry())
    assert not (await CHORES["retention_trimmer"](shed).run_once()).errors


def in_the_file(store: SqliteStore) -> int:
    """How many executions the file holds without its log."""
    with closing(sqlite3.connect(f"file:{store.path}?immutable=1", uri=True)) as raw:
        try:
            count: int = raw.execute("SELECT count(*) FROM execution").fetchone()[0]
        except sqlite3.OperationalError:
            return 0
    return count


async def test_the_janitor_moves_the_log_into_the_file(
    mine: SqliteStore, clock: VirtualClock
) -> None:
    await put(mine, clock, order(0), order(1))
    assert in_the_file(mine) == 0
    await sweep(mine, clock)
    assert in_the_file(mine) == 2
    assert await mine.checkpoint() == 0


async def test_a_log_that_cannot_be_emptied_is_told_of(
    mine: SqliteStore,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for module in (upkeep, sqlite_upkeep):
        monkeypatch.setattr(module, "LOG_ALARM_BYTES", 1)
    await put(mine, clock, order(0))
    with closing(sqlite3.connect(mine.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM execution").fetchone()
        await put(mine, clock, order(1))
        await sweep(mine, clock)
        (told,) = [each for each in caplog.records if "write-ahead log" in each.message]
        assert told.levelno == logging.ERROR
        (finding,) = (await Doctor(mine, FollowingClock(clock)).examine()).findings
        assert (finding.kind, finding.subject) == (Kind.SLOWED, f"{mine.path}-wal")
        assert "end the program that has had the file open" in finding.sentence
    caplog.clear()
    await sweep(mine, clock)
    assert caplog.records == []
    assert (await Doctor(mine, FollowingClock(clock)).examine()).findings == []


def test_the_alarm_is_above_what_gathers_by_itself() -> None:
    with closing(sqlite3.connect(":memory:")) as raw:
        page = raw.execute("PRAGMA page_size").fetchone()[0]
    assert 3 * CHECKPOINT_PAGES * page < upkeep.LOG_ALARM_BYTES
