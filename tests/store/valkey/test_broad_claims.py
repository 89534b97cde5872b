"""Claims over many routes: what they cost, counted in commands of the servers and not in time, and
that the best come first across all of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import Lease
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.answers import Change
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import LANE, OTHER_TOKEN, ask, execution_id, order
from flowfabric.testing.conformance.steps import put, take
from flowfabric.testing.servers import ValkeyCluster, ValkeyServer
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask as command
from tests.store.valkey.raw import ask_all

TASKS = tuple(f"task-{number:03}" for number in range(200))
# What a claim does besides looking at routes and queues: clocks, records, timers, the log.
BESIDE = 12


async def commands(store: ValkeyStore) -> Counter[str]:
    """How often each command has run on all servers, within functions too."""
    found: Counter[str] = Counter()
    for reply in await ask_all(store, "INFO", "commandstats"):
        assert isinstance(reply, bytes)
        for line in reply.decode().splitlines():
            name, _, facts = line.removeprefix("cmdstat_").partition(":calls=")
            if facts and name != "info":
                found[name] += int(facts.partition(",")[0])
    return found


async def claimed(
    store: ValkeyStore, clock: VirtualClock, limit: int, tasks: tuple[str, ...] = TASKS
) -> tuple[list[Lease], Counter[str]]:
    """What a claim got, and the commands that it took."""
    before = await commands(store)
    leases = await store.claim(ask(clock.now_ms(), limit=limit, tasks=tasks, token=OTHER_TOKEN))
    return leases, await commands(store) - before


async def put_one_each(store: ValkeyStore, clock: VirtualClock, *partitions: int) -> None:
    """One of each task, a millisecond apart, in these partitions by turns."""
    for number, task in enumerate(TASKS):
        id = execution_id(number, partition=partitions[number % len(partitions)])
        await put(store, clock, order(id=id, kind=task))
        clock.advance(1)


@pytest.fixture
async def store(url: str, opener: Opener, clock: VirtualClock) -> ValkeyStore:
    """One that has looked at everything: only then are hints all that a claim goes by."""
    store = opener(url)
    await store.migrate()
    assert await store.claim(ask(clock.now_ms(), tasks=TASKS)) == []
    return store


async def test_a_broad_claim_looks_once_at_each_route_and_each_queue(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    await put_one_each(store, clock, 3, 70)
    leases, spent = await claimed(store, clock, 50)
    assert [lease.head.kind for lease in leases] == list(TASKS[:50])
    # The hints of each route, and the heads of those queues that are taken from: in a cluster they
    # are looked at twice, to see how many each partition has, and to take them.
    looks = 1 if store.keys.inline else 2
    assert spent["zrange"] <= len(TASKS) + looks * 50 + BESIDE
    # The hint of each queue goes. No version of it is written, and the queues go together.
    assert spent["zrem"] <= 50
    assert spent["hset"] <= BESIDE
    assert spent["unlink"] <= 2


async def test_a_broad_claim_with_nothing_to_take_does_not_look_at_each_route(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    store = opener(server.url)
    await store.migrate()
    await store.claim(ask(clock.now_ms(), tasks=TASKS))
    leases, spent = await claimed(store, clock, 50)
    assert leases == []
    assert spent.total() <= BESIDE
    await put(store, clock, order(0, kind=TASKS[123]))
    leases, spent = await claimed(store, clock, 50)
    assert len(leases) == 1
    assert spent.total() <= 4 * BESIDE


@pytest.mark.parametrize(("partitions", "round_trips"), [((3,), 3), ((3, 70), 4)])
async def test_a_broad_claim_in_a_cluster_asks_only_where_hints_point(
    opener: Opener,
    cluster: ValkeyCluster,
    clock: VirtualClock,
    partitions: tuple[int, ...],
    round_trips: int,
) -> None:
    """The hints of each route, how partitions begin where there are several, their shares, and what
    changed: nothing is said of queues that no hint has named."""
    store = opener(cluster.url)
    await store.migrate()
    await store.claim(ask(clock.now_ms(), tasks=TASKS))
    await put_one_each(store, clock, *partitions)
    await take(store, clock, 100, tasks=TASKS)
    before = store.trips.count
    leases, spent = await claimed(store, clock, 50)
    asked = store.trips.count.since(before)
    assert [lease.head.kind for lease in leases] == list(TASKS[100:150])
    assert asked.round_trips == round_trips
    assert asked.statements <= len(TASKS) + 2 * len(partitions) + 50 + 1
    assert spent["hget"] <= 50 + BESIDE


async def test_a_sweep_for_many_routes_does_not_look_at_each_of_their_queues(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    """One that just began looks into every partition."""
    store = opener(url)
    await store.migrate()
    await put(store, clock, order(0, kind=TASKS[7]))
    fresh = opener(url)
    await fresh.migrate()
    _, spent = await claimed(fresh, clock, 50, TASKS[100:])
    partitions = 256
    assert partitions <= spent["exists"] <= 3 * partitions
    assert spent["zrange"] <= 3 * partitions


@pytest.mark.parametrize("limit", [1, 20, 130])
async def test_the_best_come_first_across_routes_and_partitions(
    store: ValkeyStore, clock: VirtualClock, limit: int
) -> None:
    """By priority, age and id; some begin alike."""
    chance = random.Random(limit)
    made: list[tuple[int, Order]] = []
    for number in range(260):
        clock.advance(chance.choice((0, 0, 1)))
        id = execution_id(number, partition=chance.choice((7, 70, 71, 0, 255, 30, 31)))
        urgent = chance.choice((0, 0, 0, 1))
        made.append((clock.now_ms(), order(id=id, kind=chance.choice(TASKS), priority=urgent)))
        await put(store, clock, made[-1][1])
    best = [each for _, each in sorted(made, key=lambda one: (-one[1].priority, one[0], one[1].id))]
    found: list[ExecutionId] = []
    while len(found) < 2 * limit:
        asked = ask(clock.now_ms(), limit=limit, tasks=TASKS, token=f"token-{len(found)}")
        leases = await store.claim(asked)
        found += [lease.id for lease in leases]
    assert found == [each.id for each in best[: 2 * limit]]


async def test_a_long_queue_loses_what_it_gave_and_nothing_else(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    """More than are read of a queue at a time, beside others that are emptied."""
    long = [order(n, kind="long") for n in range(60)]
    await put(store, clock, *long, *(order(100 + n, kind=TASKS[n]) for n in range(3)))
    leases = await take(store, clock, 50, tasks=("long", *TASKS))
    assert [lease.id for lease in leases] == [each.id for each in long[:50]]
    key = f"{store.keys.partition(7)}:ready:7:default:{LANE} long"
    assert await command(store, key, "ZRANGE", key, 0, -1) == [
        uuid_of(execution_id(n)).encode() for n in range(50, 60)
    ]
    rest = await store.claim(
        ask(clock.now_ms(), limit=50, tasks=("long", *TASKS), token=OTHER_TOKEN)
    )
    assert len(rest) == 13
    assert await command(store, key, "EXISTS", key) == 0


async def test_wrong_hints_of_many_routes_go_away_and_hide_nothing(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    for task in TASKS[:30]:
        key = f"{store.address.prefix}:{{hint:7:default:{LANE} {task}}}"
        await command(store, key, "ZADD", key, 1, 42, 2, 43, 3, 44)
    await put(store, clock, order(0, kind=TASKS[3]), order(1, kind=TASKS[150]))
    leases, _ = await claimed(store, clock, 10)
    assert [lease.id for lease in leases] == [execution_id(0), execution_id(1)]
    assert (await claimed(store, clock, 10, TASKS[:30]))[0] == []
    for task in TASKS[:30]:
        key = f"{store.address.prefix}:{{hint:7:default:{LANE} {task}}}"
        assert await command(store, key, "EXISTS", key) == 0


async def test_an_old_hint_of_an_empty_queue_costs_a_look_and_goes_away(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    """A hint that goes leaves no version that would keep an older one out."""
    await put(store, clock, order(0, kind=TASKS[0]))
    key = f"{store.address.prefix}:{{hint:7:default:{LANE} {TASKS[0]}}}"
    version = await command(store, key, "HGET", f"{key}:version", "7")
    assert isinstance(version, bytes)
    await take(store, clock, tasks=TASKS)
    again = Change(key.partition(":")[2], "7", str(int(version) + 1), "1")
    await store._hinting.tell([again])
    assert await command(store, key, "ZSCORE", key, "7") == b"1"
    assert (await claimed(store, clock, 10))[0] == []
    assert await command(store, key, "EXISTS", key) == 0


async def test_a_row_in_a_queue_of_another_route_leaves_both(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    await put(store, clock, order(0, kind=TASKS[0]), order(1, kind=TASKS[1]))
    right, wrong = (
        f"{store.keys.partition(7)}:ready:7:default:{LANE} {task}" for task in TASKS[:2]
    )
    await command(store, wrong, "ZADD", wrong, 1, uuid_of(execution_id(0)))
    leases, _ = await claimed(store, clock, 1, TASKS[1:2])
    assert [lease.id for lease in leases] == [execution_id(0)]
    assert await command(store, right, "EXISTS", right) == 0
    assert await command(store, wrong, "ZRANGE", wrong, 0, -1) == [
        uuid_of(execution_id(1)).encode()
    ]
