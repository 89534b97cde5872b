"""Servers that began anew, with or without what they knew: nothing of their last life is trusted.

Their functions are loaded again, hints and known lanes are forgotten, cursors go back a little.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from flowfabric.core.model import Feed
from flowfabric.errors import CursorExpired
from flowfabric.store import open_store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command
from flowfabric.store.valkey.cursors import REWIND_MS
from flowfabric.store.valkey.writing import hint_name
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import LANE, NAMESPACE, ask, execution_id, order
from flowfabric.testing.conformance.steps import put, take
from flowfabric.testing.servers import ValkeyCluster, ValkeyServer, valkey_cluster, valkey_server


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """Keeps what it acknowledged, unless a test takes its file away."""
    with valkey_server({"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
async def store(server: ValkeyServer, clock: VirtualClock) -> AsyncIterator[ValkeyStore]:
    store = open_store(server.url, clock=clock)
    assert isinstance(store, ValkeyStore)
    await store.migrate()
    yield store
    await store.close()


async def begin_anew(store: ValkeyStore, server: ValkeyServer) -> None:
    """Killed and started again; the store has noticed that its connection is gone."""
    (place,) = [place for place in store.network.places() if place.port == server.port]
    link = await store.network.link(place)
    await asyncio.to_thread(server.kill)
    await link.gone.wait()
    await asyncio.to_thread(server.start)


async def lose_everything(store: ValkeyStore, server: ValkeyServer) -> None:
    """As when a replica that had seen nothing takes the place of its primary."""
    await store.caller.one(command("any", "FLUSHALL", "SYNC"))
    await begin_anew(store, server)


async def test_functions_that_are_gone_are_loaded_again(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    await store.caller.one(command("any", "FUNCTION", "FLUSH", "SYNC"))
    (lease,) = await take(store, clock)
    await store.caller.one(command("any", "FUNCTION", "FLUSH", "SYNC"))
    assert [line.kind for line in await store.tail(Feed())] == ["submitted", "claimed"]
    assert lease.id == execution_id(0)


async def test_lanes_that_were_lost_come_to_be_again(
    store: ValkeyStore, server: ValkeyServer, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    await lose_everything(store, server)
    await put(store, clock, order(1))
    assert [lane.name for lane in await store.lanes("", 10)] == [LANE]


async def test_a_cursor_of_the_last_life_goes_back_a_minute(
    store: ValkeyStore, server: ValkeyServer, clock: VirtualClock
) -> None:
    """Lines that were read may have been lost and their places taken: they are read again."""
    await put(store, clock, order(0))
    clock.advance(REWIND_MS + 1)
    await put(store, clock, order(1))
    clock.advance(REWIND_MS)
    await put(store, clock, order(2))
    cursor = (await store.tail(Feed()))[-1].cursor
    assert await store.tail(Feed(after=cursor)) == []
    await begin_anew(store, server)
    again = await store.tail(Feed(after=cursor))
    assert [line.execution for line in again] == [execution_id(1), execution_id(2)]
    assert await store.tail(Feed(after=again[-1].cursor)) == []


async def test_a_cursor_ahead_of_what_is_left_has_expired(
    store: ValkeyStore, server: ValkeyServer, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    clock.advance(2 * REWIND_MS)
    await put(store, clock, order(1))
    cursor = (await store.tail(Feed()))[-1].cursor
    await lose_everything(store, server)
    with pytest.raises(CursorExpired):
        await store.tail(Feed(after=cursor))


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    """Its nodes forget everything when they end."""
    with valkey_cluster(settings={"appendonly": "no"}) as cluster:
        yield cluster


async def test_work_whose_hints_were_lost_is_found(
    cluster: ValkeyCluster, clock: VirtualClock
) -> None:
    """One node knew where work is, the others have it."""
    store = open_store(cluster.url, clock=clock)
    assert isinstance(store, ValkeyStore)
    await store.migrate()
    forgetful = store.network.place(f"{store.keys.prefix}:{hint_name(NAMESPACE, LANE)}")
    partition = next(
        n for n in range(256) if store.network.place(store.keys.partition(n)) != forgetful
    )
    assert await store.claim(ask(clock.now_ms())) == []
    id = execution_id(0, partition=partition)
    await put(store, clock, order(id=id))
    node = next(node for node in cluster.nodes if node.port == forgetful.port)
    await begin_anew(store, node)
    await asyncio.to_thread(cluster.wait_until_whole)
    assert [lease.id for lease in await take(store, clock)] == [id]
    await store.close()
