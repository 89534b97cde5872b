"""Lost connections, ended loops, restarted servers: what goes on and what is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from asyncpg import InternalClientError

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Query, Want
from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.errors import StoreUnavailable
from flowfabric.store.postgres import PostgresStore, connections
from flowfabric.store.postgres.driver import Connection
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import KIND, TTL_MS, ask, execution_id, order, submissions
from flowfabric.testing.conformance.steps import ALL, head, put, take
from flowfabric.testing.servers import PostgresServer, postgres_server
from tests.store.postgres.desk import Desk, waited_for


async def terminate(desk: Desk, store: PostgresStore) -> None:
    """End every session of a store, from outside, while it does not look."""
    raw = await desk.raw()
    pool = store._pool
    assert pool is not None
    for connection in pool._open:
        await raw.execute(f"SELECT pg_terminate_backend({connection.get_server_pid()}, 5000)")


async def test_an_idle_connection_that_was_cut_is_replaced(
    desk: Desk, store: PostgresStore
) -> None:
    await put(store, desk.clock, order(0))
    await terminate(desk, store)
    assert (await head(store, execution_id(0))).state is State.WAITING
    await put(store, desk.clock, order(1))


async def test_a_read_whose_connection_is_lost_is_tried_again(
    store: PostgresStore, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    tries: list[int] = []

    async def unlucky(connection: Connection) -> int:
        tries.append(len(tries))
        if len(tries) == 1:
            connection.terminate()
        return len(await connection.ask("SELECT 1"))

    assert await store._read(unlucky) == 1
    assert tries == [0, 1]


async def test_a_connection_that_the_driver_lost_track_of_is_replaced(store: PostgresStore) -> None:
    """It is told of the end of its session at any moment, also while it begins to send."""
    used: list[Connection] = []

    async def unlucky(connection: Connection) -> int:
        used.append(connection)
        if len(used) == 1:
            raise InternalClientError("cannot switch to state 12")
        return len(await connection.ask("SELECT 1"))

    assert await store._read(unlucky) == 1
    assert (used[0].is_closed(), used[1].is_closed()) == (True, False)
    used.clear()
    with pytest.raises(StoreUnavailable):
        await store._write(unlucky)


async def test_a_write_whose_connection_is_lost_is_not_tried_again(
    store: PostgresStore,
) -> None:
    tries: list[int] = []

    async def unlucky(connection: Connection) -> int:
        tries.append(len(tries))
        connection.terminate()
        return len(await connection.ask("SELECT 1"))

    with pytest.raises(StoreUnavailable) as told:
        await store._write(unlucky)
    assert tries == [0]
    assert told.value.__cause__ is not None
    assert told.value.retryable


async def test_a_claim_whose_reply_was_lost_is_answered_again(
    desk: Desk, store: PostgresStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut after the server committed and before the answer was read."""
    await put(store, clock, *(order(n) for n in range(10)))
    rightly = Connection.ask
    cuts: list[str] = []

    async def cut_once(connection: Connection, text: str, *arguments: object) -> object:
        answer = await rightly(connection, text, *arguments)
        if not cuts and "claimed AS" in text:
            cuts.append(text)
            connection.terminate()
            raise ConnectionResetError("cut")
        return answer

    monkeypatch.setattr(Connection, "ask", cut_once)
    engine = Engine(store, clock=clock)
    leases = await engine.claim(["main"], 4, tasks=[KIND], worker="w", token="t", ttl_ms=TTL_MS)
    assert [lease.id for lease in leases] == [execution_id(n) for n in range(4)]
    assert len(cuts) == 1
    active = await store.find(Query(states=(State.ACTIVE,)))
    assert [row.id for row in active] == [lease.id for lease in leases]


async def test_what_is_urgent_does_not_wait_for_a_connection(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    """All connections wait for a lock; a renewal is served by one that is kept for it."""
    await put(store, clock, *(order(n) for n in range(2)))
    first, second = await take(store, clock, 2)
    raw = await desk.raw()
    await raw.execute("BEGIN")
    await raw.execute("SELECT FROM execution WHERE id = $1 FOR UPDATE", first.id)
    now_ms = clock.now_ms()
    done = complete(first, now_ms, b"")
    stuck = [
        asyncio.create_task(store.apply([done], now_ms)) for _ in range(connections.CONNECTIONS)
    ]
    for _ in range(connections.CONNECTIONS):
        await waited_for(raw)
    assert store._pool is not None
    assert store._pool._slots.locked()
    answers = await store.apply([complete(second, now_ms, b"")], now_ms, urgent=True)
    assert [answer.id for answer in answers] == [second.id]
    await raw.execute("COMMIT")
    await asyncio.gather(*stuck)


async def test_a_cancelled_caller_leaves_a_usable_store(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    raw = await desk.raw()
    await raw.execute("BEGIN")
    await raw.execute("SELECT FROM execution FOR UPDATE")
    lease = ask(clock.now_ms(), only=execution_id(0))
    rows = await store.load(Want(ids=[execution_id(0)]))
    assert rows[0] is not None
    waiting = asyncio.create_task(store.claim(lease))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await raw.execute("COMMIT")
    assert len(await store.claim(lease)) == 1


def test_a_store_outlives_the_loop_it_was_opened_in(server_url: str, clock: VirtualClock) -> None:
    desk = Desk(server_url, "test_two_loops", clock)
    store = desk.store()
    now_ms = clock.now_ms()

    async def begin() -> None:
        await store.migrate()
        await put(store, clock, order(0))
        await store.close()
        await store.migrate()

    async def go_on() -> int:
        await store.insert(submissions([order(1)], now_ms), now_ms)
        found = len(await store.find(Query()))
        await desk.close()
        return found

    with asyncio.Runner() as first:
        first.run(begin())
        assert store._pool is not None
        for connection in store._pool._open:
            first.run(connection.close())
    assert asyncio.run(go_on()) == 2


@pytest.fixture(scope="module")
def private_server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_after_a_restart_of_the_server_everything_goes_on(
    private_server: PostgresServer, clock: VirtualClock, how: str
) -> None:
    """Nothing that was answered is lost, nothing is done twice, and nobody opens anything anew."""
    desk = Desk(private_server.url, f"test_{how}", clock)
    store = await desk.opened()
    await put(store, clock, *(order(n) for n in range(20)))
    leases = await take(store, clock, 10)
    if how == "kill":
        await asyncio.to_thread(private_server.kill)
        await asyncio.to_thread(private_server.start)
    else:
        await asyncio.to_thread(private_server.restart)
    now_ms = clock.now_ms()
    engine = Engine(store, clock=clock)
    done = [await engine.complete(lease, b"done") for lease in leases]
    assert {finished.state for finished in done} == {State.COMPLETED}
    rest = await store.claim(ask(now_ms, limit=ALL, token="later"))
    assert {lease.id for lease in rest} == {execution_id(n) for n in range(10, 20)}
    await desk.close()


async def test_a_server_that_is_gone_is_told_in_time(
    private_server: PostgresServer, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE_SECONDS", 0.1)
    desk = Desk(private_server.url, "test_gone", clock)
    store = await desk.opened()
    await asyncio.to_thread(private_server.stop)
    with pytest.raises(StoreUnavailable) as told:
        await store.find(Query())
    assert "is Postgres running" in told.value.hint
    await asyncio.to_thread(private_server.start)
    assert await store.find(Query()) == []
    await desk.close()
