"""Writes while their slot is on its way to another node: whole or not there, done in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

from flowfabric.core.lifecycle import complete, renew
from flowfabric.core.model import Feed
from flowfabric.core.operator import Source, cancel, set_tags
from flowfabric.core.transition import Changeset, Transition
from flowfabric.store import open_store
from flowfabric.store.valkey import ValkeyStore, calls
from flowfabric.store.valkey.address import Place
from flowfabric.store.valkey.link import Cell, Reply, pack
from flowfabric.store.valkey.slots import slot_of
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import (
    OTHER_TOKEN,
    PARTITION,
    TTL_MS,
    ask,
    execution_id,
    order,
    submissions,
)
from flowfabric.testing.conformance.steps import put, put_and_take
from flowfabric.testing.servers import ValkeyCluster, valkey_cluster

KEYS_MAX = 1_000
MOVE_MS = 5_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    """A private one: its slots are moved about."""
    with valkey_cluster(settings={"appendonly": "no"}) as cluster:
        yield cluster


@pytest.fixture
async def store(cluster: ValkeyCluster, clock: VirtualClock) -> AsyncIterator[ValkeyStore]:
    store = open_store(f"{cluster.url}?timeout=20", clock=clock)
    assert isinstance(store, ValkeyStore)
    await store.migrate()
    yield store
    await store.drop()
    await store.close()


class Move(NamedTuple):
    """A slot between two nodes, and what a node says of itself by a plain command."""

    store: ValkeyStore
    slot: int
    source: Place
    target: Place

    async def ask(self, place: Place, *cells: Cell) -> Reply:
        (reply,) = await (await self.store.network.link(place)).ask([pack(*cells)])
        assert not isinstance(reply, Exception), reply
        return reply

    async def name(self, place: Place) -> bytes:
        reply = await self.ask(place, "CLUSTER", "MYID")
        assert isinstance(reply, bytes)
        return reply

    async def set_slot(self, place: Place, *cells: Cell) -> None:
        await self.ask(place, "CLUSTER", "SETSLOT", self.slot, *cells)

    async def begin(self) -> None:
        await self.set_slot(self.target, "IMPORTING", await self.name(self.source))
        await self.set_slot(self.source, "MIGRATING", await self.name(self.target))

    async def give_up(self) -> None:
        for place in (self.source, self.target):
            await self.set_slot(place, "STABLE")

    async def finish(self) -> None:
        keys = list(await self.keys())
        where = (self.target.host, self.target.port, "", 0, MOVE_MS)
        password = self.store.address.password
        await self.ask(self.source, "MIGRATE", *where, "AUTH", password, "KEYS", *keys)
        name = await self.name(self.target)
        for place in (self.target, self.source):
            await self.set_slot(place, "NODE", name)

    async def keys(self) -> Sequence[bytes]:
        reply = await self.ask(self.source, "CLUSTER", "GETKEYSINSLOT", self.slot, KEYS_MAX)
        assert isinstance(reply, list)
        return sorted(key for key in reply if isinstance(key, bytes))

    async def picture(self) -> dict[bytes, Reply]:
        """Every key of the slot, with all that is in it."""
        return {key: await self.ask(self.source, "DUMP", key) for key in await self.keys()}


@pytest.fixture
async def move(store: ValkeyStore) -> AsyncIterator[Move]:
    scope = store.keys.partition(PARTITION)
    source = store.network.place(scope)
    target = next(place for place in store.network.places() if place != source)
    move = Move(store, slot_of(scope), source, target)
    yield move
    await move.give_up()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a call was refused and is about to be asked again."""
    event = asyncio.Event()
    rightly = calls._Patience.pause

    async def pause(patience: calls._Patience) -> None:
        event.set()
        await rightly(patience)

    monkeypatch.setattr(calls._Patience, "pause", pause)
    return event


Write = Callable[[], Awaitable[object]]


async def writes(store: ValkeyStore, clock: VirtualClock) -> dict[str, Write]:
    """Each makes keys that are not there yet, after it has changed some that are."""
    now_ms = clock.now_ms()
    lease = await put_and_take(store, clock, order(0))
    rows = await put(store, clock, order(1), order(2))

    def committed(transition: Transition) -> Write:
        return lambda: store.commit(Changeset([transition]), now_ms)

    return {
        "insert": lambda: store.insert(submissions([order(9)], now_ms), now_ms),
        "claim": lambda: store.claim(ask(now_ms, only=rows[0].id, token=OTHER_TOKEN)),
        "complete": committed(complete(lease, now_ms, b"done")),
        "renew": committed(renew(lease, now_ms, TTL_MS)),
        "set tags": committed(set_tags(rows[0], now_ms, {"a.b": "c"})),
        "cancel": committed(cancel(rows[1], now_ms, "", source=Source.OPERATOR)),
    }


VERBS = ("insert", "claim", "complete", "renew", "set tags", "cancel")


async def refused_at_least_once(waiting: asyncio.Future[object], refused: asyncio.Event) -> bool:
    """False if the write was done although its slot is on its way."""
    waiting.add_done_callback(lambda _: refused.set())
    await refused.wait()
    return not waiting.done()


@pytest.mark.parametrize("verb", VERBS)
async def test_a_write_in_a_slot_on_its_way_is_not_there_until_the_slot_stays(
    move: Move, clock: VirtualClock, refused: asyncio.Event, verb: str
) -> None:
    write = (await writes(move.store, clock))[verb]
    before = await move.picture()
    lines = len(await move.store.tail(Feed()))
    await move.begin()

    waiting = asyncio.ensure_future(write())
    was_refused = await refused_at_least_once(waiting, refused)
    meanwhile = await move.picture()
    await move.give_up()
    done = await waiting

    assert was_refused
    assert meanwhile == before
    assert done
    assert len(await move.store.tail(Feed())) == lines + (verb != "renew")


async def test_a_write_in_a_slot_on_its_way_is_done_where_the_slot_goes(
    move: Move, clock: VirtualClock, refused: asyncio.Event
) -> None:
    write = (await writes(move.store, clock))["set tags"]
    await move.begin()
    waiting = asyncio.ensure_future(write())
    was_refused = await refused_at_least_once(waiting, refused)
    await move.finish()

    assert await waiting is True
    assert was_refused
    assert move.store.network.place(move.store.keys.partition(PARTITION)) == move.target
    lines = await move.store.tail(Feed(execution=execution_id(1)))
    assert [line.kind for line in lines] == ["submitted", "tagged"]
