"""Hints: claims find work through them, and nothing depends on them."""

from __future__ import annotations

import time

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import DueBatch
from flowfabric.store.valkey import ValkeyStore, hinting
from flowfabric.store.valkey.answers import Change
from flowfabric.store.valkey.codec import scored
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import OTHER_TOKEN, THIRD_TOKEN, ask, execution_id, order
from flowfabric.testing.conformance.steps import apply, put, take
from flowfabric.testing.servers import ValkeyServer
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask as command

ROUTE = "{hint:7:default:main greet}"


async def hints(store: ValkeyStore, name: str = ROUTE) -> dict[int, int]:
    key = f"{store.address.prefix}:{name}"
    found = scored(await command(store, key, "ZRANGE", key, 0, -1, "WITHSCORES"))
    return {int(partition): int(score) for partition, score in found}


async def forget_hints(store: ValkeyStore, name: str = ROUTE) -> None:
    key = f"{store.address.prefix}:{name}"
    await command(store, key, "UNLINK", key, f"{key}:version")


async def put_spread(store: ValkeyStore, clock: VirtualClock, *partitions: int) -> None:
    for number, partition in enumerate(partitions):
        await put(store, clock, order(id=execution_id(number, partition=partition)))


async def test_partitions_with_work_are_hinted_and_empty_ones_are_not(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    await put_spread(store, clock, 3, 200, 17)
    assert set(await hints(store)) == {3, 200, 17}
    await take(store, clock, 2)
    assert len(await hints(store)) == 1
    await take(store, clock, token=OTHER_TOKEN)
    assert await hints(store) == {}


async def test_the_best_of_sixteen_partitions_come_first(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    """By priority, age and id, as if all were in one place; 70 sorts before 7 as a text does."""
    store = opener(url)
    await store.migrate()
    partitions = (7, 70, 71, 0, 255, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
    orders = [
        order(id=execution_id(n, partition=partitions[n % 16]), priority=n % 3) for n in range(64)
    ]
    await put(store, clock, *orders)
    best = sorted(orders, key=lambda one: (-one.priority, one.id))
    first = await take(store, clock, 20)
    second = await take(store, clock, 44, token=OTHER_TOKEN)
    assert [lease.id for lease in first + second] == [one.id for one in best]


async def test_work_in_very_many_partitions_is_all_found(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    await put(store, clock, *(order(id=execution_id(n, partition=n)) for n in range(60)))
    leases = await store.claim(ask(clock.now_ms(), limit=100))
    while more := await store.claim(ask(clock.now_ms(), limit=100, token=THIRD_TOKEN)):
        leases += more
    assert {lease.id for lease in leases} == {execution_id(n, partition=n) for n in range(60)}


async def test_a_process_that_has_just_begun_finds_work_that_nobody_hinted_at(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    await put_spread(store, clock, 5, 99)
    await forget_hints(store)
    fresh = opener(url)
    await fresh.migrate()
    assert len(await fresh.claim(ask(clock.now_ms(), limit=10))) == 2


async def test_forgotten_work_is_found_by_the_sweep_of_one_process(
    url: str, opener: Opener, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then, and only by the one that comes first."""
    stores = [opener(url), opener(url)]
    for store in stores:
        await store.migrate()
        assert await store.claim(ask(clock.now_ms(), limit=10)) == []
    await put_spread(stores[0], clock, 5, 99)
    await forget_hints(stores[0])
    for store in stores:
        assert await store.claim(ask(clock.now_ms(), limit=10)) == []
    later = time.monotonic() + 2 * hinting.SWEEP_SECONDS
    for store in stores:
        monkeypatch.setattr(store._hinting, "steady", lambda: later)
    before = [store.trips.count.statements for store in stores]
    assert len(await stores[1].claim(ask(clock.now_ms(), limit=10))) == 2
    assert await stores[0].claim(ask(clock.now_ms(), limit=10, token=OTHER_TOKEN)) == []
    spent = [store.trips.count.statements - was for store, was in zip(stores, before, strict=True)]
    assert spent[0] < 10 < 256 < spent[1]


async def test_a_hint_that_is_wrong_costs_a_look_and_goes_away(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    await put_spread(store, clock, 5)
    key = f"{store.address.prefix}:{ROUTE}"
    await command(store, key, "ZADD", key, 1, 42, 1, 43)
    assert len(await store.claim(ask(clock.now_ms(), limit=10))) == 1
    assert await hints(store) == {}


async def test_an_older_hint_does_not_undo_a_newer_one(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    """Somebody found the partition empty, and says so after new work was told."""
    store = opener(url)
    await store.migrate()
    await put_spread(store, clock, 5)
    key = f"{store.address.prefix}:{ROUTE}:version"
    version = await command(store, key, "HGET", key, "5")
    assert isinstance(version, bytes)
    await store._hinting.tell([Change(ROUTE, "5", str(int(version) - 1), "")])
    assert set(await hints(store)) == {5}
    await store._hinting.tell([Change(ROUTE, "5", str(int(version) + 1), "")])
    assert await hints(store) == {}


async def test_timers_are_found_where_hints_are_too_early_or_gone(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    now_ms = clock.now_ms()
    for number, delay in enumerate((300, 200, 100)):
        id = execution_id(number, partition=number * 100)
        await put(store, clock, order(id=id, delay_until_ms=now_ms + delay))
    assert await store.due(now_ms, 10) == DueBatch([], now_ms + 100)
    key = f"{store.address.prefix}:{{due}}"
    await command(store, key, "ZADD", key, now_ms - 5, 0, now_ms + 1, 77)
    clock.advance(1)
    assert await store.due(now_ms, 10) == DueBatch([], now_ms + 100)
    assert await hints(store, "{due}") == {
        0: now_ms + 300,
        100: now_ms + 200,
        200: now_ms + 100,
    }
    await forget_hints(store, "{due}")
    fresh = opener(url)
    await fresh.migrate()
    assert (await fresh.due(now_ms, 10)).next_ms == now_ms + 100
    rows = (await fresh.due(now_ms + 250, 10)).rows
    assert [row.id for row in rows] == [
        execution_id(2, partition=200),
        execution_id(1, partition=100),
    ]


async def test_an_idle_claim_is_one_trip_on_one_server(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    store = opener(server.url)
    await store.migrate()
    await store.claim(ask(clock.now_ms()))
    before = store.trips.count
    for _ in range(5):
        assert await store.claim(ask(clock.now_ms())) == []
    assert store.trips.count.since(before).round_trips == 5


async def test_completed_work_leaves_no_hint(url: str, opener: Opener, clock: VirtualClock) -> None:
    store = opener(url)
    await store.migrate()
    await put_spread(store, clock, 1, 2, 3)
    leases = await take(store, clock, 3)
    await apply(store, clock, *(complete(lease, clock.now_ms(), b"") for lease in leases))
    assert await store.due(clock.now_ms() + 10**9, 10) == DueBatch([], None)
    assert await hints(store) == await hints(store, "{due}") == {}
