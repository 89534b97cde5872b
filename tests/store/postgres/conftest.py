"""Fixtures of what is only Postgres: a server, a schema of one's own, raw connections to it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import VirtualClock
from tests.servers import SERVERS
from tests.store.postgres.desk import Desk


@pytest.fixture
def server_url() -> str:
    """A server that tests share: the one that was named, or a private one."""
    return SERVERS.url("postgres")


@pytest.fixture
async def desk(server_url: str, clock: VirtualClock) -> AsyncIterator[Desk]:
    desk = Desk(server_url, f"test_{secrets.token_hex(8)}", clock)
    yield desk
    await desk.close()


@pytest.fixture
async def store(desk: Desk) -> PostgresStore:
    return await desk.opened()
