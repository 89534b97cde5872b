"""Servers that are replaced or lose their last writes: leases are fenced, readers miss nothing."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Feed
from flowfabric.core.refusal import refusal_of_lease
from flowfabric.core.states import State
from flowfabric.core.transition import Applied, Rejected
from flowfabric.errors import CursorExpired, StaleLease
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.address import Place
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import OTHER_TOKEN, ask, execution_id, order
from flowfabric.testing.conformance.steps import apply, head, put, take
from flowfabric.testing.servers import valkey_cluster, valkey_server
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask_all
from tests.store.valkey.test_refusals import follow


async def linked(store: ValkeyStore, port: int) -> asyncio.Event:
    """Set when the store has noticed that this server is gone."""
    return (await store.network.link(Place("127.0.0.1", port))).gone


async def test_a_stale_worker_with_an_equal_epoch_is_refused(
    opener: Opener, clock: VirtualClock
) -> None:
    """The primary hands out epoch 1, is lost before that is replicated, and the promoted replica
    hands out epoch 1 again: only the token tells the two workers apart."""
    with valkey_server() as primary, valkey_server() as replica:
        follow(replica, primary)
        safe, old = opener(primary.url, more="&replicas=1"), opener(primary.url)
        await safe.migrate()
        await old.migrate()
        await put(safe, clock, order(0))
        with replica.talk() as talk:
            talk.ask("REPLICAOF", "NO", "ONE")
        first = (await take(old, clock, worker="worker-1"))[0]
        primary.kill()
        new = opener(replica.url)
        await new.migrate()
        second = (await take(new, clock, token=OTHER_TOKEN, worker="worker-2"))[0]
        assert first.epoch == second.epoch == 1

        answers = await new.apply([complete(first, clock.now_ms(), b"stale")], clock.now_ms())

        assert answers == [Rejected(first.id, second.head)]
        error = refusal_of_lease(second.head, first, clock.now_ms())
        assert isinstance(error, StaleLease)
        await apply(new, clock, complete(second, clock.now_ms(), b"right"))
        assert (await head(new, first.id)).state is State.COMPLETED


async def test_a_reader_goes_on_after_a_restart_and_misses_nothing(
    opener: Opener, clock: VirtualClock
) -> None:
    """Another life of the server: lines are told again from a minute before, none is left out."""
    with valkey_server({"appendfsync": "always"}) as server:
        store = opener(server.url)
        await store.migrate()
        await put(store, clock, order(0))
        clock.advance(120_000)
        await put(store, clock, order(1))
        cursor = (await store.tail(Feed()))[-1].cursor
        assert await store.tail(Feed(after=cursor)) == []
        server.kill()
        server.start()
        other = opener(server.url)
        await other.migrate()
        await put(other, clock, order(2))
        told = [event.execution for event in await other.tail(Feed(after=cursor))]
        assert told == [execution_id(1), execution_id(2)]


async def test_a_cursor_ahead_of_what_is_left_has_expired(
    opener: Opener, clock: VirtualClock
) -> None:
    """The server was put back to an old copy: going on from there would be silence for ever."""
    with valkey_server({"appendfsync": "always"}) as server:
        store = opener(server.url)
        await store.migrate()
        await put(store, clock, order(0))
        key = store.keys.partition(7)
        old = await ask_all(store, "DUMP", f"{key}:feed")
        partition = await ask_all(store, "GET", key)
        clock.advance(3_600_000)
        await put(store, clock, order(1))
        cursor = (await store.tail(Feed()))[-1].cursor
        assert isinstance(old[0], bytes)
        assert isinstance(partition[0], bytes)
        await ask_all(store, "RESTORE", f"{key}:feed", 0, old[0], "REPLACE")
        await ask_all(store, "SET", key, partition[0])
        await store.close()
        server.restart()
        await store.migrate()
        with pytest.raises(CursorExpired):
            await store.tail(Feed(after=cursor))


async def test_work_that_a_lost_server_forgot_is_found_by_a_sweep(
    opener: Opener, clock: VirtualClock
) -> None:
    """Hints of before may say that there is nothing where the last claim is undone."""
    with valkey_server({"appendfsync": "always"}) as server:
        store = opener(server.url)
        await store.migrate()
        await put(store, clock, order(0))
        hints = f"{store.address.prefix}:{{hint:7:default:main greet}}"
        await ask_all(store, "UNLINK", hints, f"{hints}:version")
        assert len(await store.claim(ask(clock.now_ms(), limit=5))) == 1
        await put(store, clock, order(1))
        await ask_all(store, "UNLINK", hints, f"{hints}:version")
        assert await store.claim(ask(clock.now_ms(), limit=5, token="token-5")) == []
        gone = await linked(store, server.port)
        server.restart()
        await gone.wait()
        assert len(await store.claim(ask(clock.now_ms(), limit=5, token="token-6"))) == 1


async def test_a_cluster_goes_on_with_the_replica_of_a_lost_node(
    opener: Opener, clock: VirtualClock
) -> None:
    with valkey_cluster(replicas=1) as cluster:
        safe = opener(cluster.url, more="&replicas=1")
        store = opener(cluster.url, more="&timeout=30")
        await safe.migrate()
        await store.migrate()
        spread = [order(n, id=execution_id(n, partition=n * 10)) for n in range(12)]
        await put(safe, clock, *spread)
        leases = await take(safe, clock, 12)
        gone = await linked(store, cluster.nodes[0].port)
        cluster.nodes[0].kill()
        await gone.wait()
        now_ms = clock.now_ms()
        answers = await store.apply([complete(lease, now_ms, b"r") for lease in leases], now_ms)
        assert answers == [Applied(lease.id) for lease in leases]
        await put(store, clock, order(20))
        assert len(await store.claim(ask(clock.now_ms(), limit=5, token=OTHER_TOKEN))) == 1
