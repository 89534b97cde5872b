"""A server without room: the store says so, nothing is half written, and work goes on later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from flowfabric.core.model import Want
from flowfabric.errors import StoreUnavailable
from flowfabric.store import Store, open_store
from flowfabric.testing.build import execution_id, order, submissions
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.servers import PostgresServer, postgres_server, valkey_server

MIB = 1 << 20
ROOM = 24 * MIB
BATCH = 4


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
async def store(server: PostgresServer, clock: VirtualClock) -> AsyncIterator[Store]:
    store = open_store(server.url, clock=clock)
    await store.migrate()
    yield store
    await store.close()


async def limit_files(server: PostgresServer, size: int | None) -> None:
    """No file of the server may grow beyond this."""
    server.file_limit = size
    await asyncio.to_thread(server.restart)


async def put(store: Store, clock: VirtualClock, first: int) -> None:
    orders = [order(first + n, payload=os.urandom(MIB - 64)) for n in range(BATCH)]
    now_ms = clock.now_ms()
    await store.insert(submissions(orders, now_ms), now_ms)


async def fill(store: Store, clock: VirtualClock) -> int:
    """Until there is no room; answers the number of the first of the batch that did not fit."""
    for first in range(0, 1_000, BATCH):
        try:
            await put(store, clock, first)
        except StoreUnavailable:
            return first
    raise AssertionError("there was room for everything")


async def test_a_full_disk_is_told_and_leaves_nothing_half_written(
    server: PostgresServer, store: Store, clock: VirtualClock
) -> None:
    await limit_files(server, ROOM)
    refused = await fill(store, clock)
    there = await store.load(Want(ids=[execution_id(n) for n in range(refused + BATCH)]))
    assert [found is not None for found in there] == [True] * refused + [False] * BATCH

    await limit_files(server, None)
    await put(store, clock, refused)
    there = await store.load(Want(ids=[execution_id(refused + n) for n in range(BATCH)]))
    assert all(there)


async def test_a_valkey_without_memory_is_told_and_leaves_nothing_half_written(
    clock: VirtualClock,
) -> None:
    with valkey_server() as server:
        store = open_store(server.url, clock=clock)
        await store.migrate()
        with server.talk() as raw:
            used = int(raw.facts("INFO", "memory")["used_memory"])
            raw.ask("CONFIG", "SET", "maxmemory", str(used + ROOM))
        refused = await fill(store, clock)
        there = await store.load(Want(ids=[execution_id(n) for n in range(refused + BATCH)]))
        assert [found is not None for found in there][:refused] == [True] * refused
        with server.talk() as raw:
            raw.ask("CONFIG", "SET", "maxmemory", "0")
        await put(store, clock, refused)
        there = await store.load(Want(ids=[execution_id(refused + n) for n in range(BATCH)]))
        assert all(there)
        await store.close()
