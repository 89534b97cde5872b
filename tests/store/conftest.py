"""Fixtures of the store tests: contenders for the same executions, threads that take turns, and the
bare tables of SQLite."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from flowfabric.store import Store, open_store
from flowfabric.store.queries import migrations
from flowfabric.testing import VirtualClock
from tests.servers import store_url
from tests.store.racing import CONTENDERS


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads take turns far more often than they do by themselves."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture
async def contenders(
    store: Store, store_kind: str, clock: VirtualClock, tmp_path: Path, restless: None
) -> AsyncIterator[list[Store]]:
    """Each sees the same executions."""
    if store_kind == "memory":
        yield [store] * CONTENDERS
        return
    url = store_url(store_kind, tmp_path / "store.db")
    others = [open_store(url, clock=clock) for _ in range(CONTENDERS - 1)]
    for other in others:
        await other.migrate()
    yield [store, *others]
    for other in others:
        await other.close()


@pytest.fixture
def schema() -> Iterator[sqlite3.Connection]:
    """The tables of the SQLite store in memory."""
    connection = sqlite3.connect(":memory:")
    for step in migrations("sqlite"):
        connection.executescript(step)
    yield connection
    connection.close()
