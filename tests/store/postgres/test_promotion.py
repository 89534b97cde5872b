"""A server that was promoted: what followed on its old timeline may be lost, so cursors expire."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator

import pytest

from flowfabric.core.model import Feed
from flowfabric.errors import CursorExpired
from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.conformance.steps import put
from flowfabric.testing.servers import PostgresServer, postgres_server


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """It has no archive, and lets nobody in until it has recovered what is in its own folder."""
    settings = {"restore_command": "false", "hot_standby": "off"}
    with postgres_server(settings=settings) as server:
        yield server


@pytest.fixture
async def store(server: PostgresServer, clock: VirtualClock) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(server.url, clock=clock)
    await store.migrate()
    yield store
    await store.close()


def promote(server: PostgresServer) -> None:
    """Started once as after a restore: it recovers, and goes on on a timeline of its own."""
    server.stop()
    data = server._data
    signal = data / "recovery.signal"
    signal.touch()
    owner = data.stat()
    shutil.chown(signal, owner.st_uid, owner.st_gid)
    server.start()


async def test_a_cursor_of_the_old_timeline_has_expired(
    server: PostgresServer, store: PostgresStore, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    (before,) = await store.tail(Feed())
    await asyncio.to_thread(server.restart)
    await put(store, clock, order(1))
    (after,) = await store.tail(Feed(after=before.cursor))
    assert after.execution == execution_id(1)

    await asyncio.to_thread(promote, server)
    with pytest.raises(CursorExpired):
        await store.tail(Feed(after=before.cursor))
    lines = await store.tail(Feed())
    assert [line.execution for line in lines] == [execution_id(0), execution_id(1)]
