"""Fixtures of what is only Postgres: a server, a schema of one's own, raw connections to it."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.servers import postgres_server
from tests.store.postgres.desk import Desk


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A server that tests share: the one that was named, or a private one."""
    named = os.environ.get("FLOWFABRIC_TEST_POSTGRES")
    if named:
        yield named
        return
    with postgres_server() as server:
        yield server.url


@pytest.fixture
async def desk(server_url: str, clock: VirtualClock) -> AsyncIterator[Desk]:
    desk = Desk(server_url, f"test_{secrets.token_hex(8)}", clock)
    yield desk
    await desk.close()


@pytest.fixture
async def store(desk: Desk) -> PostgresStore:
    return await desk.opened()
