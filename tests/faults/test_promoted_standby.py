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
from flowfabric.store.postgres import PostgresStore
from flowfabric.testing.build import KIND, LANE, TTL_MS, order, submissions
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.servers import PostgresServer, postgres_server, postgres_standby
from tests.servers import HASTY_POSTGRES
from tests.store.postgres.desk import Raw

FOLLOW_CLOSELY = """
ALTER SYSTEM SET primary_slot_name = 'follower';
ALTER SYSTEM SET hot_standby_feedback = on;
ALTER SYSTEM SET wal_retrieve_retry_interval = '1ms';
SELECT pg_reload_conf()
"""


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    with postgres_server(settings={**HASTY_POSTGRES, "max_prepared_transactions": "1"}) as server:
        yield server


@pytest.fixture(scope="module")
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


async def until(raw: Raw, question: str, *arguments: object) -> None:
    """Ask again and again; each answer takes the time of a trip."""
    is_so = False
    while not is_so:
        is_so = await raw.fetchval(question, *arguments)


async def catch_up(standby: PostgresServer, primary: PostgresServer) -> None:
    """Until the standby has all that the primary wrote; then it follows no longer."""
    raw: Raw = await asyncpg.connect(primary.url)
    written = await raw.fetchval("SELECT pg_current_wal_insert_lsn()::text")
    await raw.close()
    raw = await asyncpg.connect(standby.url)
    await until(raw, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written)
    await raw.execute("ALTER SYSTEM SET primary_conninfo = ''")
    await raw.execute("SELECT pg_reload_conf()")
    await until(raw, "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
    await raw.close()


async def promote(standby: PostgresServer) -> None:
    raw = await asyncpg.connect(standby.url)
    assert await raw.fetchval("SELECT pg_promote()")
    await raw.close()


async def claimed(engine: Engine, worker: str) -> Lease:
    token = f"{worker}-0123456789abcdef"
    (lease,) = await engine.claim(
        [LANE], 1, tasks=[KIND], worker=worker, token=token, ttl_ms=TTL_MS
    )
    return lease


async def follow_closely(standby: PostgresServer, primary: Raw) -> None:
    """Until the primary keeps for the standby what somebody may still read there."""
    await primary.execute("SELECT pg_create_physical_replication_slot('follower')")
    raw: Raw = await asyncpg.connect(standby.url)
    for command in FOLLOW_CLOSELY.strip().split(";"):
        await raw.execute(command)
    await raw.close()
    await until(primary, "SELECT bool_or(xmin IS NOT NULL) FROM pg_replication_slots")


async def test_what_a_standby_or_a_prepared_transaction_holds_on_to_is_named(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    store = PostgresStore(f"{primary.url}?schema=held")
    await store.migrate()
    raw: Raw = await asyncpg.connect(primary.url)
    await follow_closely(standby, raw)
    await raw.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'left''s'")
    now_ms = await store.now()
    # Nothing of this store was done since the standby's snapshot: it does no harm.
    assert [each.subject for each in await store.hindrances(0)] == ["prepared transaction left's"]
    await store.insert(submissions([order(0)], now_ms), now_ms)
    found = {each.subject: each.sentence for each in await store.hindrances(0)}
    assert "ROLLBACK PREPARED" in found["prepared transaction left's"]
    assert "pg_drop_replication_slot('follower')" in found["replication slot follower"]
    await raw.execute("ROLLBACK PREPARED 'left''s'")
    await raw.close()
    await store.close()


async def test_a_standby_is_refused_until_it_is_promoted_and_then_refuses_what_it_never_heard_of(
    primary: PostgresServer, standby: PostgresServer, before: Engine, after: Engine
) -> None:
    await before.submit([order(0)])
    await catch_up(standby, primary)
    lost = await claimed(before, "first")
    (newest,) = await before.read.events(Feed(newest=True))

    with pytest.raises(StoreUnavailable, match="is a read-only standby") as told:
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
