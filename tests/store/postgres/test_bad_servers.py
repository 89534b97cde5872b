"""Servers that cannot be used: a typed error in seconds, what to do about it, and no password."""

from __future__ import annotations

import asyncio
import secrets
import traceback
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest
from asyncpg.serverversion import split_server_version_string

from flowfabric.core.model import Query
from flowfabric.errors import FlowFabricError, InvalidInput, StoreMismatch, StoreUnavailable
from flowfabric.store.postgres import PostgresStore, connections, problems
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order, submissions
from tests.store.postgres.desk import Desk, Raw

SECRET = "hunter2-very-secret"


def at(server_url: str, *, user: str = "", database: str = "", port: int = 0) -> str:
    """The URL of the server with something else in it."""
    parts = urlsplit(server_url)
    account, _, host = parts.netloc.rpartition("@")
    name = host.partition(":")[0]
    place = f"{user or account}@{f'{name}:{port}' if port else host}"
    return parts._replace(netloc=place, path=f"/{database}" if database else parts.path).geturl()


async def refused(url: str) -> FlowFabricError:
    """Why it cannot be opened; nothing that is printed about it holds the password."""
    store = PostgresStore(url)
    with pytest.raises(FlowFabricError) as told:
        await store.migrate()
    await store.close()
    printed = "".join(traceback.format_exception(told.value)) + repr(told.value)
    password = urlsplit(url).password or SECRET
    assert password not in printed
    assert "\n" not in str(told.value)
    assert told.value.hint
    return told.value


async def test_a_wrong_password(server_url: str) -> None:
    user = urlsplit(server_url).username
    error = await refused(at(server_url, user=f"{user}:{SECRET}"))
    assert isinstance(error, StoreUnavailable)
    assert (error.code, error.retryable) == ("auth", False)
    assert "password" in error.hint


async def test_an_unknown_user(server_url: str) -> None:
    error = await refused(at(server_url, user=f"nobody_here:{SECRET}"))
    assert error.code == "auth"


async def test_an_unknown_database(server_url: str) -> None:
    error = await refused(at(server_url, database="not_there"))
    assert isinstance(error, StoreMismatch)
    assert "not_there" in str(error)
    assert "create the database" in error.hint


async def test_nobody_at_the_port(server_url: str) -> None:
    error = await refused(at(server_url, user=f"me:{SECRET}", port=1))
    assert isinstance(error, StoreUnavailable)
    assert "cannot be reached" in str(error)
    assert error.retryable


async def test_a_host_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connections.CONNECT_SECONDS <= 5
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 0.2)
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    error = await refused(f"postgresql://me:{SECRET}@127.0.0.1:{port}/db?sslmode=disable")
    assert isinstance(error, StoreUnavailable)
    assert "did not answer in time" in str(error)
    for writer in writers:
        writer.close()
        await writer.wait_closed()
    silent.close()


async def test_a_host_that_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    error = await refused(f"postgresql://me:{SECRET}@no-such-host.invalid/db")
    assert isinstance(error, StoreUnavailable)
    assert "no-such-host.invalid" in str(error)


async def test_a_server_that_is_no_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    async def chatter(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    other = await asyncio.start_server(chatter, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    error = await refused(f"postgresql://me:{SECRET}@127.0.0.1:{port}/db?sslmode=disable")
    assert isinstance(error, StoreUnavailable)
    other.close()


async def test_a_server_that_is_too_old(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "version_of", lambda connection: 13)
    error = await refused(server_url)
    assert isinstance(error, StoreMismatch)
    assert "Postgres 13" in str(error)
    assert error.hint == "use Postgres 14 or newer"


@pytest.fixture
async def database(server_url: str) -> AsyncIterator[str]:
    """The name of a database of one's own."""
    raw: Raw = await asyncpg.connect(server_url)
    name = f"db_{secrets.token_hex(6)}"
    await raw.execute(f"CREATE DATABASE {name}")
    yield name
    await raw.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await raw.close()


async def test_a_server_that_only_reads(server_url: str, database: str) -> None:
    raw: Raw = await asyncpg.connect(server_url)
    await raw.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    await raw.close()
    error = await refused(at(server_url, database=database))
    assert "is read-only" in str(error)
    assert "default_transaction_read_only" in str(error)


async def test_a_database_with_another_encoding(server_url: str) -> None:
    raw: Raw = await asyncpg.connect(server_url)
    name = f"latin_{secrets.token_hex(6)}"
    await raw.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    error = await refused(at(server_url, database=name))
    assert "LATIN1" in str(error)
    await raw.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await raw.close()


async def test_a_server_that_stops_writing_later(desk: Desk, clock: VirtualClock) -> None:
    """After a fail-over an old connection leads to a standby: refused, and nothing written."""
    store = await desk.opened()
    raw = await desk.raw()
    now_ms = clock.now_ms()
    assert store._pool is not None
    for connection in store._pool._open:
        await connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable) as told:
        await store.insert(submissions([order(0)], now_ms), now_ms)
    assert "primary" in told.value.hint
    assert await raw.fetchval("SELECT count(*) FROM execution") == 0
    await store.insert(submissions([order(0)], now_ms), now_ms)


async def test_a_schema_that_was_dropped_under_a_store(desk: Desk) -> None:
    store = await desk.opened()
    await desk.store().drop()
    with pytest.raises(StoreMismatch) as told:
        await store.find(Query())
    assert "migrate" in told.value.hint


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("postgresql://host:port/db", "url"),
        ("postgresql://host:70000/db", "url"),
        ("postgresql://host/db?schemas=a", "url"),
        ("postgresql://host/db?pooler=session", "pooler"),
    ],
)
def test_a_url_that_cannot_be_right(url: str, field: str) -> None:
    with pytest.raises(InvalidInput) as told:
        PostgresStore(url.replace("host", f"me:{SECRET}@host"))
    assert told.value.field == field
    assert SECRET not in str(told.value)


async def test_a_pooler_is_told_apart_by_what_it_refuses(desk: Desk) -> None:
    """What transaction poolers say about prepared statements and settings of a session."""
    store = await desk.opened()
    with pytest.raises(StoreMismatch) as told:
        await store._read(lambda connection: connection.ask("EXECUTE nothing_prepared"))
    assert "pooler=transaction" in told.value.hint


async def test_behind_a_transaction_pooler_nothing_stays_in_a_session(desk: Desk) -> None:
    """No prepared statement, no setting, no lock: the next statement may go elsewhere."""
    store = await desk.opened("&pooler=transaction")
    now_ms = desk.clock.now_ms()
    await store.insert(submissions([order(0, tags={"a.b": "c"}, key="k")], now_ms), now_ms)
    kept = """SELECT (SELECT count(*) FROM pg_prepared_statements) AS prepared,
        current_setting('enable_seqscan') AS setting"""
    assert store._pool is not None
    (connection,) = store._pool._open
    await connection.execute("DEALLOCATE ALL")
    await store.find(Query())
    row = await connection.fetchrow(kept)
    assert row is not None
    assert (row["prepared"], row["setting"]) == (0, "on")


async def test_a_version_that_cannot_be_read_is_refused_by_its_name(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def strange(*_: object, **__: object) -> None:
        split_server_version_string("Postgres devel")

    monkeypatch.setattr(connections, "connect", strange)
    error = await refused(server_url)
    assert isinstance(error, StoreMismatch)
    assert '"Postgres devel"' in error.message
    assert error.hint == "use Postgres 14 or newer"
