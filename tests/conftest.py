"""Fixtures for the whole suite: every store, a clock moved by hand, and the size of the labs."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import settings

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Want
from flowfabric.store import Store, open_store
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.valkey import ValkeyStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import Corrupter
from flowfabric.testing.faults import FaultyStore
from tests.corrupter import raw_client
from tests.every_run import pytest_collection_modifyitems, pytest_terminal_summary
from tests.schemas import SCHEMAS
from tests.servers import SERVERS, store_url

__all__ = ["pytest_collection_modifyitems", "pytest_terminal_summary"]

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
def progress(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Says how far a long lab is while it runs, also from one of several test processes.

    What a lab did belongs on its standard output, which is shown at the end.
    """
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        if SIZE == "long":
            with capture.global_and_fixture_disabled():
                sys.stderr.write(f"{request.node.name}: {text}\n")

    return say


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
    if isinstance(store, PostgresStore):
        return await SCHEMAS.give_back(store)
    if isinstance(store, ValkeyStore):
        await store.drop()
    return await store.close()


@pytest.fixture
async def store(store_kind: str, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(store_url(store_kind, tmp_path / "store.db"), clock=clock)
    await store.migrate()
    yield store
    await discard(store)


@pytest.fixture
def faulty(store: Store) -> FaultyStore:
    """The store, its calls counted; faultless until a test plans something."""
    return FaultyStore(store)


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
        (loaded,) = await store.load(Want(ids=[id]))
        assert loaded is not None
        await raw_client(store).write(loaded.head, "state", "melted")

    return corrupt
