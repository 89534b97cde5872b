"""Servers that cannot be used: said within seconds, with what to do, and without the password."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Query
from flowfabric.core.states import State
from flowfabric.errors import FlowFabricError, StoreMismatch, StoreUnavailable
from flowfabric.store import open_store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import ask, order, submissions
from flowfabric.testing.conformance.steps import apply, contents, head, put, put_and_take
from flowfabric.testing.servers import ValkeyCluster, ValkeyServer, valkey_cluster, valkey_server
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask_all

INFO_OF_REDIS_6 = b"redis_version:6.2.14\r\nrun_id:1\r\nrole:master\r\n"


def follow(replica: ValkeyServer, primary: ValkeyServer) -> None:
    """Make one server the replica of another, and wait until it has what the other has."""
    with replica.talk() as talk:
        talk.ask("CONFIG", "SET", "primaryauth", primary.password)
        talk.ask("REPLICAOF", "127.0.0.1", str(primary.port))

        def is_in_step() -> bool:
            return talk.facts("INFO", "replication").get("master_link_status") == "up"

        replica.wait_until(is_in_step)


async def refusal(url: str) -> FlowFabricError:
    store = open_store(url)
    with pytest.raises(FlowFabricError) as refused:
        await store.migrate()
    await store.close()
    return refused.value


async def test_a_wrong_password_is_said_and_not_shown(server: ValkeyServer) -> None:
    wrong = server.url.replace(server.password, "hunter2-is-wrong")
    error = await refusal(wrong)
    assert isinstance(error, StoreUnavailable)
    assert error.code == "auth"
    assert error.hint == "check the user and the password"
    assert "hunter2" not in f"{error}{error.__cause__}"


async def test_a_missing_password_is_said(server: ValkeyServer) -> None:
    error = await refusal(f"valkey://127.0.0.1:{server.port}")
    assert (error.code, "password" in error.hint) == ("auth", True)


@pytest.mark.case("BC-013")
@pytest.mark.parametrize("scheme", ["valkey", "valkey+cluster"])
async def test_a_host_that_does_not_answer_is_said(scheme: str) -> None:
    error = await refusal(f"{scheme}://:secret@127.0.0.1:1")
    assert isinstance(error, StoreUnavailable)
    assert (error.code, error.details["backend"]) == ("transport", "valkey")
    assert "127.0.0.1:1 cannot be reached: " in str(error)
    assert "secret" not in str(error)


async def test_a_host_with_no_address_is_said() -> None:
    error = await refusal("valkey://no-such-host.invalid")
    assert isinstance(error, StoreUnavailable)
    assert "cannot be reached" in str(error)


async def test_a_server_that_evicts_is_refused() -> None:
    with valkey_server({"maxmemory-policy": "allkeys-lru"}) as server:
        error = await refusal(server.url)
    assert isinstance(error, StoreMismatch)
    assert "allkeys-lru" in str(error)
    assert error.hint == "CONFIG SET maxmemory-policy noeviction"


async def test_the_url_says_whether_it_is_a_cluster(
    server: ValkeyServer, cluster: ValkeyCluster
) -> None:
    alone = await refusal(cluster.url.replace("+cluster", ""))
    assert isinstance(alone, StoreMismatch)
    assert "valkey+cluster://" in alone.hint
    together = await refusal(server.url.replace("valkey:", "valkey+cluster:"))
    assert isinstance(together, StoreMismatch | StoreUnavailable)


@asynccontextmanager
async def imposter(answer: Callable[[bytes], bytes]) -> AsyncIterator[int]:
    """Something that listens on a port and is no Valkey; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(answer(data))
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


def redis_6(data: bytes) -> bytes:
    assert b"INFO" in data
    return b"+OK\r\n$%d\r\n%s\r\n" % (len(INFO_OF_REDIS_6), INFO_OF_REDIS_6)


@pytest.mark.case("BC-006")
async def test_redis_6_is_too_old() -> None:
    async with imposter(redis_6) as port:
        error = await refusal(f"redis://127.0.0.1:{port}")
    assert isinstance(error, StoreMismatch)
    assert not error.retryable
    assert "redis 6.2.14, which is too old" in str(error)
    assert "Redis 7.0" in error.message


async def test_what_does_not_speak_the_protocol_is_said() -> None:
    async with imposter(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        error = await refusal(f"redis://127.0.0.1:{port}")
    assert isinstance(error, StoreUnavailable)
    assert "does not speak the protocol" in str(error)


async def test_what_never_answers_is_given_up(server: ValkeyServer) -> None:
    async with imposter(lambda _: b"") as port:
        error = await refusal(f"redis://127.0.0.1:{port}?timeout=0.1")
    assert isinstance(error, StoreUnavailable)
    assert "no answer within 0.1 s" in str(error)


async def test_a_replica_is_refused(clock: VirtualClock) -> None:
    with valkey_server() as primary, valkey_server() as replica:
        follow(replica, primary)
        error = await refusal(replica.url)
    assert isinstance(error, StoreUnavailable)
    assert "read-only replica" in str(error)
    assert error.hint == "connect to the primary"


async def test_a_primary_that_became_a_replica_is_told_of(
    opener: Opener, clock: VirtualClock
) -> None:
    with valkey_server() as server:
        store = opener(server.url)
        await store.migrate()
        await put(store, clock, order(0))
        with server.talk() as talk:
            talk.ask("REPLICAOF", "127.0.0.1", "1")
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="replica"):
                    await put(store, clock, order(1))
            talk.ask("REPLICAOF", "NO", "ONE")
        await put(store, clock, order(1))


async def test_a_cluster_with_a_missing_slot_is_refused() -> None:
    with valkey_cluster() as cluster:
        for node in cluster.nodes:
            with node.talk() as talk:
                talk.ask("CLUSTER", "DELSLOTSRANGE", "16000", "16383")
        error = await refusal(cluster.url)
    assert isinstance(error, StoreUnavailable)
    assert "does not serve 384 of 16384 slots, from 16000 on" in str(error)
    assert "ADDSLOTSRANGE" in error.hint


async def test_a_full_server_writes_nothing_half_and_goes_on_afterwards(
    opener: Opener, clock: VirtualClock
) -> None:
    with valkey_server() as server:
        store = opener(server.url)
        await store.migrate()
        lease = await put_and_take(store, clock, order(0))
        await put(store, clock, order(1))
        before = await contents(store)
        await ask_all(store, "CONFIG", "SET", "maxmemory", "1")
        now_ms = clock.now_ms()
        for write in (
            store.insert(submissions([order(2, payload=b"x" * 1_000)], now_ms), now_ms),
            store.apply([complete(lease, now_ms, b"r")], now_ms),
            store.claim(ask(now_ms)),
        ):
            with pytest.raises(StoreUnavailable) as refused:
                await write
            assert "maxmemory" in refused.value.hint
        assert await contents(store) == before
        await ask_all(store, "CONFIG", "SET", "maxmemory", "0")
        await apply(store, clock, complete(lease, clock.now_ms(), b"r"))
        assert (await head(store, lease.id)).state is State.COMPLETED


async def test_with_too_few_replicas_nothing_is_confirmed(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    await opener(server.url).migrate()
    with pytest.raises(StoreUnavailable, match="0 of 1 replicas") as refused:
        await opener(server.url, more="&replicas=1").migrate()
    assert "?replicas=" in refused.value.hint


async def test_a_confirmed_write_is_on_the_replica(opener: Opener, clock: VirtualClock) -> None:
    with valkey_server() as primary, valkey_server() as replica:
        follow(replica, primary)
        store = opener(primary.url, more="&replicas=1")
        await store.migrate()
        await put(store, clock, order(0))
        primary.kill()
        with replica.talk() as talk:
            talk.ask("REPLICAOF", "NO", "ONE")
        other = opener(replica.url)
        await other.migrate()
        assert [row.id for row in await other.find(Query())] == [order(0).id]


async def test_a_store_that_was_closed_says_so(opener: Opener, server: ValkeyServer) -> None:
    store = opener(server.url)
    await store.migrate()
    await store.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.find(Query())
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.lanes("", 1)


@pytest.mark.parametrize(("least", "is_told"), [("0", True), ("1", True), ("2", False)])
async def test_a_server_that_writes_with_fewer_replicas_than_asked_for_is_told_of(
    least: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with valkey_server({"min-replicas-to-write": least}) as server:
        store = open_store(f"{server.url}?replicas=2")
        assert isinstance(store, ValkeyStore)
        await store.network.reach()
        await store.close()
        plain = open_store(server.url)
        assert isinstance(plain, ValkeyStore)
        await plain.network.reach()
        await plain.close()
    told = [each.message for each in caplog.records if "min-replicas-to-write" in each.message]
    assert len(told) == is_told
    assert all("CONFIG SET min-replicas-to-write 2" in text for text in told)
