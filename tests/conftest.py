"""Fixtures for the whole suite: every store, a clock moved by hand, and the size of the labs."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import settings

from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.store import Store, open_store
from flowfabric.store.memory import MemoryStore
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import Corrupter

Size = Literal["small", "long"]

SIZE: Size = "long" if os.environ.get("FLOWFABRIC_TEST_SIZE") == "long" else "small"

# Small runs are the same everywhere; long ones look further each time.
settings.register_profile("small", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=1_000, print_blob=True)
settings.load_profile(SIZE)


@pytest.fixture(scope="session")
def size() -> Size:
    """How large a lab is: small for every run of the suite, long for `make long`."""
    return SIZE


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


SERVERS = {
    "valkey": "FLOWFABRIC_TEST_VALKEY",
    "valkey-cluster": "FLOWFABRIC_TEST_VALKEY_CLUSTER",
}
KINDS = ["memory", "sqlite", *(kind for kind, name in SERVERS.items() if name in os.environ)]


@pytest.fixture(params=KINDS)
def store_kind(request: pytest.FixtureRequest) -> str:
    """Every store in turn; a test that takes `store` runs once on each."""
    return str(request.param)


def store_url(kind: str, path: Path) -> str:
    if kind in SERVERS:
        # One prefix for each path, so that the same path is the same store.
        prefix = f"test_{sha256(str(path).encode()).hexdigest()[:24]}"
        return f"{os.environ[SERVERS[kind]]}?prefix={prefix}"
    # A test says what is written, not what survives a loss of power.
    return "memory://" if kind == "memory" else f"sqlite:///{path}?synchronous=NORMAL"


async def discard(store: Store) -> None:
    """Close it, and leave nothing of it on a server."""
    if isinstance(store, ValkeyStore):
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
            case ValkeyStore():
                await corrupt_valkey(store, id)
            case _:
                raise TypeError(f"nobody has said how to corrupt a {type(store).__name__}")

    return corrupt


async def corrupt_valkey(store: ValkeyStore, id: ExecutionId) -> None:
    key = f"{store.keys.partition(partition_of(id))}:x:{uuid_of(id)}"
    await store.caller.one(command(key, "HSET", key, "state", "melted"))
