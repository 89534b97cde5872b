"""A real standby of Postgres: refused while it only reads, and good once it is promoted.

It is promoted before it heard of the last claim: epochs repeat, tokens do not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from flowfabric.core.model import Feed, Lease
from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.errors import CursorExpired, StaleLease, StoreUnavailable
from flowfabric.store import open_store
from flowfabric.testing.build import LANE, TTL_MS, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.servers import PostgresServer, postgres_server, postgres_standby
from tests.servers import HASTY_POSTGRES


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with postgres_server(settings=HASTY_POSTGRES) as server:
        yield server


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with postgres_standby(primary) as server:
        yield server


@pytest.fixture
async def before(primary: PostgresServer, clock: VirtualClock) -> AsyncIterator[Engine]:
    engine = engine_of(primary, clock)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def after(standby: PostgresServer, clock: VirtualClock) -> AsyncIterator[Engine]:
    engine = engine_of(standby, clock)
    yield engine
    await engine.close()


def engine_of(server: PostgresServer, clock: VirtualClock) -> Engine:
    return Engine(open_store(server.url, clock=clock), clock=clock)


async def catch_up(standby: PostgresServer, primary: PostgresServer) -> None:
    """Until the standby has all that the primary wrote; then it follows no longer."""
    raw = await asyncpg.connect(primary.url)
    written = await raw.fetchval("SELECT pg_current_wal_insert_lsn()::text")
    await raw.close()
    raw = await asyncpg.connect(standby.url)
    while not await raw.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written):
        pass
    await raw.execute("ALTER SYSTEM SET primary_conninfo = ''")
    await raw.execute("SELECT pg_reload_conf()")
    while await raw.fetchval("SELECT EXISTS (SELECT FROM pg_stat_wal_receiver)"):
        pass
    await raw.close()


async def promote(standby: PostgresServer) -> None:
    raw = await asyncpg.connect(standby.url)
    assert await raw.fetchval("SELECT pg_promote()")
    await raw.close()


async def claimed(engine: Engine, worker: str) -> Lease:
    token = f"{worker}-0123456789abcdef"
    (lease,) = await engine.claim([LANE], 1, worker=worker, token=token, ttl_ms=TTL_MS)
    return lease


async def test_a_standby_is_refused_until_it_is_promoted_and_then_refuses_what_it_never_heard_of(
    primary: PostgresServer, standby: PostgresServer, before: Engine, after: Engine
) -> None:
    await before.submit([order(0)])
    await catch_up(standby, primary)
    lost = await claimed(before, "first")
    (newest,) = await before.read.events(Feed(newest=True))

    with pytest.raises(StoreUnavailable, match="is a standby and only reads") as told:
        await after.open()
    assert told.value.hint == "connect to the primary server"

    await promote(standby)
    await after.open()
    held = await claimed(after, "second")
    assert (lost.id, lost.epoch) == (held.id, held.epoch)
    with pytest.raises(StaleLease):
        await after.complete(lost, b"1")
    finished = await after.complete(held, b"2")
    assert finished.state is State.COMPLETED
    assert await after.read.result(held.id) == b"2"
    with pytest.raises(CursorExpired):
        await after.read.events(Feed(after=newest.cursor))
