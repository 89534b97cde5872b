"""Query plans: what runs for every task finds its rows by an index, however many are finished.

The statements are those that the store really runs, caught on their way to the server, and planned
as the store's own connections plan them: once, without knowing the values.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple, cast

import pytest

from flowfabric.core.lifecycle import complete, renew
from flowfabric.core.model import Feed, Lease, Query, Want
from flowfabric.core.operator import Source, cancel, set_tags
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.store.hints import Hint
from flowfabric.store.postgres import PostgresStore, changes
from flowfabric.store.postgres.connections import transaction
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import TTL_MS, ask, execution_id, order, submissions
from flowfabric.testing.flows import FLOW
from tests.servers import SERVERS
from tests.store.postgres.desk import Desk

FINISHED = 20_000
FILL = """INSERT INTO execution
    (id, namespace, lane, kind, route, creator, created_ms, policy, state, reason, updated_ms,
     payload)
    SELECT '{fp:9}:' || lpad(x::text, 12, '0'), 'default', 'main', 'greet', 'main greet', 'tests',
           x, '',
           'completed', 'none', x, '' FROM generate_series(1, $1) AS x"""
LOG = """INSERT INTO log (n, id, at_ms, kind, state, attempt, epoch, detail)
    SELECT n, id, 1, 'completed', state, 0, 1, '{}' FROM execution WHERE state = 'completed'"""
EMPTY = """DELETE FROM execution WHERE id NOT LIKE '{fp:9}:%';
    DELETE FROM log WHERE id NOT LIKE '{fp:9}:%';
    DELETE FROM attempt; DELETE FROM tag; DELETE FROM idempotency; DELETE FROM lane"""
TABLES = {"execution", "attempt", "tag", "idempotency", "lane", "log"}


def nodes(plan: dict[str, object]) -> Iterator[dict[str, object]]:
    yield plan
    for inner in cast(list[dict[str, object]], plan.get("Plans", [])):
        yield from nodes(inner)


# Parts of statements about our own tables; whatever else is run has no plan of interest.
ASKED = ("execution", ".l", ".flow")


class Scene(NamedTuple):
    store: PostgresStore
    clock: VirtualClock
    leases: list[Lease]
    ran: list[tuple[str, tuple[object, ...]]]

    async def plans(self, call: Awaitable[object]) -> list[list[dict[str, object]]]:
        """The nodes of the plan of each statement that the call ran."""
        self.ran.clear()
        await call
        asked = [each for each in self.ran if any(name in each[0] for name in ASKED)]
        assert asked
        return [await self._plan(text, arguments) for text, arguments in asked]

    async def _plan(self, text: str, arguments: tuple[object, ...]) -> list[dict[str, object]]:
        async def explain(connection: Connection) -> str:
            records = await connection.fetch(f"EXPLAIN (FORMAT JSON) {text}", *arguments)
            return str(records[0][0])

        told = json.loads(await self.store._read(explain))
        return list(nodes(told[0]["Plan"]))


@pytest.fixture(scope="module")
def large() -> Iterator[str]:
    """The name of a schema that is filled once, by the first test that needs it."""
    name = f"test_{secrets.token_hex(8)}"
    yield name
    asyncio.run(Desk(SERVERS.url("postgres"), name, VirtualClock()).close())


async def fill(desk: Desk) -> None:
    """Many that are finished, and nothing else: what an earlier test put there goes."""
    raw = await desk.raw()
    if not await raw.fetchval("SELECT EXISTS (SELECT FROM execution)"):
        await raw.execute(FILL, FINISHED)
        await raw.execute(LOG)
        await raw.execute("VACUUM ANALYZE execution")
        await raw.execute("VACUUM ANALYZE log")
    await raw.execute(EMPTY)


@pytest.fixture(params=["large", "new"])
async def desk(
    request: pytest.FixtureRequest, server_url: str, clock: VirtualClock
) -> AsyncIterator[Desk]:
    """A schema with many that are finished, or a new one."""
    if request.param == "new":
        desk = Desk(server_url, f"test_{secrets.token_hex(8)}", clock)
        yield desk
        await desk.close()
        return
    desk = Desk(server_url, request.getfixturevalue("large"), clock)
    await desk.opened()
    await fill(desk)
    yield desk
    await desk.leave()


@pytest.fixture
async def scene(
    store: PostgresStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    """Some that wait, and some that are held."""
    ran: list[tuple[str, tuple[object, ...]]] = []
    rightly = Connection.ask

    async def caught(connection: Connection, text: str, *arguments: object) -> list[Record]:
        ran.append((text, arguments))
        return await rightly(connection, text, *arguments)

    monkeypatch.setattr(Connection, "ask", caught)
    now_ms = clock.now_ms()
    orders = [order(n, tags={"a.b": str(n)}) for n in range(200)]
    orders += [order(n, delay_until_ms=now_ms + n) for n in range(300, 350)]
    await store.insert(submissions(orders, now_ms), now_ms)
    leases = await store.claim(ask(now_ms, limit=100))
    return Scene(store, clock, leases, ran)


def insert(scene: Scene) -> Awaitable[object]:
    now_ms = scene.clock.now_ms()
    orders = [order(n, key=f"k{n}", tags={"a.b": "c"}) for n in range(1_000, 1_030)]
    return scene.store.insert(submissions(orders, now_ms), now_ms)


def claim(scene: Scene) -> Awaitable[object]:
    return scene.store.claim(ask(scene.clock.now_ms(), limit=5, token="t"))


def claim_of_lanes(scene: Scene) -> Awaitable[object]:
    lanes = ("main", "b", "c")
    return scene.store.claim(ask(scene.clock.now_ms(), limit=5, lanes=lanes, token="t"))


def claim_one(scene: Scene) -> Awaitable[object]:
    return scene.store.claim(ask(scene.clock.now_ms(), only=execution_id(150), token="t"))


def claim_again(scene: Scene) -> Awaitable[object]:
    return scene.store.claim(ask(scene.clock.now_ms(), limit=5, repeated=True))


def renew_many(scene: Scene) -> Awaitable[object]:
    now_ms = scene.clock.now_ms()
    return scene.store.apply([renew(lease, now_ms, TTL_MS) for lease in scene.leases], now_ms)


def complete_many(scene: Scene) -> Awaitable[object]:
    now_ms = scene.clock.now_ms()
    return scene.store.apply([complete(lease, now_ms, b"") for lease in scene.leases], now_ms)


def cancel_one(scene: Scene) -> Awaitable[object]:
    now_ms = scene.clock.now_ms()
    ended = cancel(scene.leases[0].head, now_ms, "", source=Source.OPERATOR)
    return scene.store.commit(Changeset([ended]), now_ms)


def change_many_ways(scene: Scene) -> Awaitable[object]:
    now_ms = scene.clock.now_ms()
    first, second, third = scene.leases[:3]
    return scene.store.apply(
        [
            renew(first, now_ms, TTL_MS),
            complete(second, now_ms, b""),
            set_tags(third.head, now_ms, {"a.b": "c"}),
        ],
        now_ms,
    )


def load(scene: Scene) -> Awaitable[object]:
    ids = [lease.id for lease in scene.leases]
    return scene.store.load(Want(ids=ids, payload=True, tags=True, attempts=True))


def endings(scene: Scene) -> Awaitable[object]:
    return scene.store.endings([lease.id for lease in scene.leases])


def due(scene: Scene) -> Awaitable[object]:
    return scene.store.due(scene.clock.now_ms() + 320, 5)


def find(scene: Scene) -> Awaitable[object]:
    return scene.store.find(Query(partition=7, after=execution_id(3), states=(State.ACTIVE,)))


def find_members(scene: Scene) -> Awaitable[object]:
    return scene.store.find(Query(flow=FLOW, after=execution_id(3), states=(State.ACTIVE,)))


def find_tagged(scene: Scene) -> Awaitable[object]:
    return scene.store.find(Query(tags={"a.b": "7"}))


def find_held(scene: Scene) -> Awaitable[object]:
    return scene.store.find(Query(namespace="default", states=(State.ACTIVE,)))


def count(scene: Scene) -> Awaitable[object]:
    return scene.store.count(Query(namespace="default", states=(State.FAILED,)))


def count_members(scene: Scene) -> Awaitable[object]:
    return scene.store.count(Query(flow=FLOW))


def count_held(scene: Scene) -> Awaitable[object]:
    return scene.store.count(Query(namespace="default", states=(State.ACTIVE,)))


def queues(scene: Scene) -> Awaitable[object]:
    return scene.store.queues("default", "", 10, 1_000)


def tail(scene: Scene) -> Awaitable[object]:
    return scene.store.tail(Feed(limit=5))


def tail_ends(scene: Scene) -> Awaitable[object]:
    return scene.store.tail(Feed(limit=5, states=(State.COMPLETED,)))


def tail_one(scene: Scene) -> Awaitable[object]:
    return scene.store.tail(Feed(execution=execution_id(3)))


def tail_newest(scene: Scene) -> Awaitable[object]:
    return scene.store.tail(Feed(newest=True))


def lanes(scene: Scene) -> Awaitable[object]:
    return scene.store.lanes("a", 5)


Call = Callable[[Scene], Awaitable[object]]
CALLS: list[Call] = [
    insert,
    claim,
    claim_of_lanes,
    claim_one,
    claim_again,
    renew_many,
    complete_many,
    cancel_one,
    change_many_ways,
    load,
    endings,
    due,
    find,
    find_members,
    find_tagged,
    find_held,
    count,
    count_members,
    count_held,
    queues,
    tail,
    tail_ends,
    tail_one,
    tail_newest,
    lanes,
]


@pytest.mark.parametrize("call", CALLS)
async def test_no_table_is_walked_from_end_to_end(scene: Scene, call: Call) -> None:
    for plan in await scene.plans(call(scene)):
        walked = [node for node in plan if node["Node Type"] == "Seq Scan"]
        assert not [n for n in walked if n.get("Relation Name") in TABLES], plan
        # An index without a condition is a table walked in another order.
        blind = [
            node
            for node in plan
            if str(node["Node Type"]).startswith("Index")
            and node.get("Relation Name") in TABLES
            and "Index Cond" not in node
        ]
        assert {node["Index Name"] for node in blind} <= {"execution_due"}, blind


INDEXES: list[tuple[Call, str]] = [
    (claim, "execution_ready"),
    (claim_of_lanes, "execution_ready"),
    (claim_one, "execution_pkey"),
    (claim_again, "execution_due"),
    (renew_many, "execution_pkey"),
    (complete_many, "execution_pkey"),
    (load, "execution_pkey"),
    (load, "attempt_pkey"),
    (load, "tag_pkey"),
    (endings, "execution_pkey"),
    (due, "execution_due"),
    (find, "execution_pkey"),
    (find_members, "execution_flow"),
    (find_tagged, "tag_value"),
    (find_tagged, "log_execution"),
    (find_held, "execution_ready"),
    (find_held, "execution_due"),
    (find_held, "execution_pkey"),
    (count, "execution_pkey"),
    (count_members, "execution_flow"),
    (count_held, "execution_due"),
    (queues, "execution_ready"),
    (tail, "log_feed"),
    (tail_one, "log_execution"),
    (tail_newest, "log_feed"),
]


@pytest.mark.parametrize(("call", "index"), INDEXES)
async def test_rows_are_found_by_the_index_made_for_it(
    scene: Scene, call: Call, index: str
) -> None:
    plans = await scene.plans(call(scene))
    used = {node.get("Index Name") for plan in plans for node in plan}
    assert index in used


@pytest.mark.parametrize("call", [claim, due, find, find_members, tail, tail_newest])
async def test_what_is_wanted_in_order_is_not_sorted_first(scene: Scene, call: Call) -> None:
    """Below a limit there is no sort: it would read all that fits, for a few."""
    for plan in await scene.plans(call(scene)):
        for limit in (node for node in plan if node["Node Type"] == "Limit"):
            below = list(nodes(limit))
            if any(node.get("Relation Name") in TABLES for node in below):
                assert not any(node["Node Type"] == "Sort" for node in below), limit


def unlimited(node: dict[str, object]) -> Iterator[dict[str, object]]:
    """The nodes below that no limit stops."""
    for inner in cast(list[dict[str, object]], node.get("Plans", [])):
        if inner["Node Type"] != "Limit":
            yield inner
            yield from unlimited(inner)


@pytest.mark.parametrize("call", [claim, claim_of_lanes])
async def test_a_claim_reads_no_more_of_a_queue_than_it_asks_for(scene: Scene, call: Call) -> None:
    """Lanes are merged, but each is read by itself and only as far as its best."""
    for plan in await scene.plans(call(scene)):
        assert "execution_ready" in {node.get("Index Name") for node in plan}
        for sort in (node for node in plan if "Sort" in str(node["Node Type"])):
            read = {node.get("Index Name") for node in unlimited(sort)}
            assert "execution_ready" not in read, sort


HOT = "SELECT n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE schemaname = $1 AND n_tup_upd > 0"


async def test_a_renewal_stays_in_its_page(desk: Desk, scene: Scene) -> None:
    """No indexed column is touched, so no index is written, unless the page is full."""
    now_ms = scene.clock.now_ms()
    batch = [renew(lease, now_ms, TTL_MS) for lease in scene.leases[:20]]

    async def renewed(connection: Connection) -> int:
        async with transaction(connection):
            await changes.apply(connection, scene.store._call(now_ms, Hint()), batch)
            return int(await connection.fetchval(HOT, desk.schema))

    assert await scene.store._write(renewed) >= 15


@pytest.mark.parametrize(
    ("call", "trips"),
    [(insert, 1), (claim, 1), (claim_of_lanes, 1), (renew_many, 1), (complete_many, 1)],
)
async def test_a_hot_verb_is_one_trip(scene: Scene, call: Call, trips: int) -> None:
    before = scene.store.trips.count
    await call(scene)
    assert scene.store.trips.count.since(before) == (trips, trips)
