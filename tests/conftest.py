"""Fixtures for the whole suite: every store, a clock moved by hand, and the size of the labs."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import asyncpg
import msgspec
import pytest
from hypothesis import settings

from flowfabric.core.ids import ExecutionId
from flowfabric.store import Store, open_store
from flowfabric.store.memory import MemoryStore
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import Corrupter
from tests.servers import SERVERS, store_url

Size = Literal["small", "long"]

SIZE: Size = "long" if os.environ.get("FLOWFABRIC_TEST_SIZE") == "long" else "small"

# Small runs are the same everywhere; long ones look further each time.
settings.register_profile("small", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=1_000, print_blob=True)
settings.load_profile(SIZE)


def pytest_unconfigure() -> None:
    SERVERS.close()


@pytest.fixture(scope="session")
def size() -> Size:
    """How large a lab is: small for every run of the suite, long for `make long`."""
    return SIZE


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


KINDS = ("memory", "sqlite", "postgres", "valkey", "valkey-cluster")


@pytest.fixture(params=KINDS)
def store_kind(request: pytest.FixtureRequest) -> str:
    """Every store in turn; a test that takes `store` runs once on each."""
    return str(request.param)


async def discard(store: Store) -> None:
    """Close it, and leave nothing of it on a server."""
    if isinstance(store, PostgresStore | ValkeyStore):
        await store.drop()
    await store.close()


@pytest.fixture
async def store(store_kind: str, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(store_url(store_kind, tmp_path / "store.db"), clock=clock)
    await store.migrate()
    yield store
    await discard(store)


@pytest.fixture
async def stranger(store_kind: str, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Store]:
    """A second store of the same kind, which shares nothing with the first."""
    store = open_store(store_url(store_kind, tmp_path / "stranger.db"), clock=clock)
    await store.migrate()
    yield store
    await discard(store)


@pytest.fixture
def corrupter(store: Store) -> Corrupter:
    """Writes a state that no reader knows, past the store."""

    async def corrupt(id: ExecutionId) -> None:
        match store:
            case MemoryStore():
                store.corrupt(id, "unknown state")
            case SqliteStore():
                with sqlite3.connect(store.path) as raw:
                    raw.execute("UPDATE execution SET state = 'melted' WHERE id = ?", (id,))
                raw.close()
            case PostgresStore() | ValkeyStore():
                await write_raw(store, id, "state", "melted")
            case _:
                raise TypeError(f"nobody has said how to corrupt a {type(store).__name__}")

    return corrupt


async def write_raw(
    store: PostgresStore | ValkeyStore, id: ExecutionId, column: str, text: str
) -> None:
    """Past the store, as a raw client could."""
    if isinstance(store, ValkeyStore):
        key = store.keys.execution(id)
        kept = await store.caller.one(command(key, "GET", key))
        assert isinstance(kept, bytes)
        changed = msgspec.msgpack.decode(kept) | {column: text}
        await store.caller.one(command(key, "SET", key, msgspec.msgpack.encode(changed)))
        return
    raw = await asyncpg.connect(store.address.dsn)
    table = f'"{store.address.schema}".execution'
    await raw.execute(f"UPDATE {table} SET {column} = $2 WHERE id = $1", id, text)  # noqa: S608
    await raw.close()
