"""Fixtures of what is only Valkey's: private servers, and stores with a prefix of their own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import pytest

from flowfabric.errors import FlowFabricError
from flowfabric.store import open_store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.servers import ValkeyCluster, ValkeyServer, valkey_cluster, valkey_server

Opener = Callable[..., ValkeyStore]


@pytest.fixture(scope="session")
def server() -> Iterator[ValkeyServer]:
    """A server that no test stops or changes for others."""
    with valkey_server() as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[ValkeyCluster]:
    with valkey_cluster() as cluster:
        yield cluster


@pytest.fixture(params=["server", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    """One server and a cluster in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, ValkeyServer | ValkeyCluster)
    return found.url


@pytest.fixture
async def opener(clock: VirtualClock) -> AsyncIterator[Opener]:
    """Opens stores that share one prefix unless told otherwise; closes them all."""
    prefix = f"t{secrets.token_hex(6)}"
    opened: list[ValkeyStore] = []

    def open_one(
        url: str, *, prefix: str = prefix, real: bool = False, more: str = ""
    ) -> ValkeyStore:
        made = open_store(f"{url}?prefix={prefix}{more}", clock=None if real else clock)
        assert isinstance(made, ValkeyStore)
        opened.append(made)
        return made

    yield open_one
    for store in opened:
        # A test may have left a store that cannot be dropped, or a server that is gone.
        with suppress(FlowFabricError):
            await store.drop()
        await store.close()
