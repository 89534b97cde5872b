"""Copies in indexes that were broken past the store are set right, and nothing else is written."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.ids import flow_partition
from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Query
from flowfabric.store.upkeep import Verifiable, Verified
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.store.valkey.link import Cell
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.conformance.flow_steps import add_lines, patch, put_flow
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.conformance.steps import apply, head, put, put_and_take, take
from flowfabric.testing.flows import COUNTS, FLOW, flow_id, member, plan
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask, keys

PARTITION = flow_partition(FLOW, COUNTS)
SOLO = execution_id(1, partition=PARTITION)
ENDED = execution_id(2, partition=PARTITION)
LEASED = execution_id(3, partition=PARTITION)


@pytest.fixture
async def store(url: str, opener: Opener, clock: VirtualClock) -> ValkeyStore:
    """With something in every index, all in one partition."""
    store = opener(url)
    await store.migrate()
    await put_and_take(store, clock, order(id=LEASED))
    lease = await put_and_take(store, clock, order(id=ENDED))
    await apply(store, clock, complete(lease, clock.now_ms(), b"1"))
    await put(store, clock, order(id=SOLO))
    await put_flow(store, clock, plan("abc", "a>b b>c"))
    await add_lines(store, clock, line(1))
    await patch(store, clock, purge_ms=clock.now_ms() + 5)
    return store


async def shown(store: ValkeyStore) -> dict[str, object]:
    """Every index of the partition."""
    base = store.keys.partition(PARTITION)
    found: dict[str, object] = {}
    for key in await keys(store, f"{base}:*"):
        kind = await ask(store, key, "TYPE", key)
        if kind == b"zset":
            found[key] = await ask(store, key, "ZRANGE", key, 0, -1, "WITHSCORES")
    tally = await ask(store, base, "GET", f"{base}:tally:{FLOW}")
    found["tally"] = msgspec.msgpack.decode(tally) if isinstance(tally, bytes) else None
    return found


async def verified(store: ValkeyStore, limit: int = 500) -> int:
    """A whole round; answers how much was repaired."""
    repaired, cursor = 0, ""
    for _ in range(1_000):
        answer = await store.verify(cursor, limit)
        repaired, cursor = repaired + answer.repaired, answer.cursor
        if not cursor:
            return repaired
    raise AssertionError("the round does not end")


async def test_with_nothing_wrong_nothing_is_repaired(store: ValkeyStore) -> None:
    assert isinstance(store, Verifiable)
    before = await shown(store)
    assert await store.verify("", 500) == Verified()
    assert await store.verify("rubbish", 500) == Verified()
    for limit in (1, 2, 3):
        assert await verified(store, limit) == 0
    assert await shown(store) == before


def _told(**counts: int) -> bytes:
    return msgspec.msgpack.encode(counts)


BREAKS = {
    "no id": ("ZREM", "ids", uuid_of(ENDED)),
    "no id of a member": ("ZREM", "ids", uuid_of(member("b"))),
    "ended otherwise": ("ZADD", "ids", 0, uuid_of(ENDED)),
    "an id of nobody": ("ZADD", "ids", 0, "nobody"),
    "not ready": ("ZREM", "ready:7:default:main greet", uuid_of(SOLO)),
    "ready too late": ("ZADD", "ready:7:default:main greet", 1, uuid_of(SOLO)),
    "ready and blocked": ("ZADD", "ready:7:default:main greet", 1, uuid_of(member("b"))),
    "no timer": ("ZREM", "due", uuid_of(LEASED)),
    "a late timer": ("ZADD", "due", 900_000_000_000_000, uuid_of(LEASED)),
    "a timer of nobody": ("ZADD", "due", 7, "nobody"),
    "stays for ever": ("ZREM", "purge", uuid_of(ENDED)),
    "goes too soon": ("ZADD", "purge", 7, uuid_of(SOLO)),
    "no member": ("ZREM", f"members:{FLOW}", uuid_of(member("b"))),
    "a strange member": ("ZADD", f"members:{FLOW}", 0, uuid_of(SOLO)),
    "a member who is nobody": ("ZADD", f"members:{FLOW}", 0, "nobody"),
    "counted twice": ("SET", f"tally:{FLOW}", _told(waiting=2, blocked_dependencies=2)),
    "counted elsewhere": ("SET", f"tally:{FLOW}", _told(waiting=1, melted=2)),
    "not to be counted": ("SET", f"tally:{FLOW}", b"\x07"),
    "not counted": ("DEL", f"tally:{FLOW}"),
    "no flow": ("ZREM", "flow_ids", FLOW),
    "a flow that is none": ("ZADD", "flow_ids", 0, flow_id(99)),
    "seems settled": ("ZREM", "unsettled", FLOW),
    "unsettled and none": ("ZADD", "unsettled", 0, flow_id(99)),
    "a flow that stays": ("ZREM", "going", FLOW),
    "a flow that goes and is none": ("ZADD", "going", 7, flow_id(99)),
    "a flow that sleeps": ("ZREM", "flows", FLOW),
}


@pytest.mark.parametrize("words", BREAKS.values(), ids=BREAKS.keys())
async def test_what_differs_from_the_records_is_set_right(
    store: ValkeyStore, words: tuple[str, str, *tuple[Cell, ...]]
) -> None:
    before = await shown(store)
    verb, name, *rest = words
    key = f"{store.keys.partition(PARTITION)}:{name}"
    await ask(store, key, verb, key, *rest)
    assert await shown(store) != before
    assert await verified(store) > 0
    assert await verified(store) == 0
    assert await shown(store) == before


async def test_what_had_lost_its_queue_is_claimed_again(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    """Whoever looks for work is told where it is."""
    base = store.keys.partition(PARTITION)
    key = f"{base}:ready:7:default:main greet"
    await ask(store, key, "DEL", key)
    assert await take(store, clock, 0) == []
    assert await verified(store) == 2
    leases = await take(store, clock, 2)
    assert {lease.id for lease in leases} == {SOLO, member("a")}


async def test_a_record_that_cannot_be_read_stays_where_it_is(store: ValkeyStore) -> None:
    key = store.keys.execution(ENDED)
    await ask(store, key, "SET", key, b"strange")
    before = await shown(store)
    assert await verified(store) == 0
    assert await shown(store) == before


async def test_records_are_not_touched(store: ValkeyStore) -> None:
    rows = await store.find(Query(limit=100))
    base = store.keys.partition(PARTITION)
    await ask(store, base, "DEL", f"{base}:due", f"{base}:purge")
    assert await verified(store) == 2
    assert await store.find(Query(limit=100)) == rows
    assert (await head(store, ENDED)).rev == 3
