"""Copies in indexes that were broken past the store are set right, and nothing else is written."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from flowfabric.core.documents import AnyDocument, DocumentQuery, create, remove, scope_of
from flowfabric.core.ids import flow_partition
from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Query
from flowfabric.store.upkeep import Damage, Verifiable, Verified
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
# A kind whose documents are in that partition, too.
KIND = next(
    f"kind-{number}"
    for number in count()
    if scope_of(f"kind-{number}", "default", COUNTS.flow) == PARTITION
)
SHELF = f"{len(KIND)}:{KIND}:7:default"
DUE_MS = 1_700_000_900_000


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
    await store.put(
        [
            create(KIND, "default", name, body=b"1", words=words, due_ms=DUE_MS)
            for name, words in (("a", ("red", "blue")), ("b", ("red",)))
        ],
        clock.now_ms(),
    )
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
    "a document that no listing names": ("ZREM", f"docs:{SHELF}", "a"),
    "no listing of documents": ("DEL", f"docs:{SHELF}"),
    "a name without a document": ("ZADD", f"docs:{SHELF}", 0, "nobody"),
    "a document without its word": ("ZREM", f"word:{SHELF}:red", "a"),
    "no index of a word": ("DEL", f"word:{SHELF}:blue"),
    "a word without a document": ("ZADD", f"word:{SHELF}:red", 0, "nobody"),
    "a word that its document does not have": ("ZADD", f"word:{SHELF}:blue", 0, "b"),
    "a document that is never due": ("ZREM", f"doc_due:{KIND}", "default\0a"),
    "a document that is due late": ("ZADD", f"doc_due:{KIND}", DUE_MS + 1, "default\0a"),
    "a time without a document": ("ZADD", f"doc_due:{KIND}", 7, "default\0nobody"),
    "a time that cannot be read": ("ZADD", f"doc_due:{KIND}", 7, "nobody"),
    "an index that is not known": ("ZREM", "doc_indexes", f":word:{SHELF}:red"),
    "an index of nothing": ("ZADD", "doc_indexes", 0, f":word:{SHELF}:green"),
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


async def test_a_document_that_had_lost_its_time_is_due_again(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    """Also for those that go by hints, and found by its name and its word again."""
    before = await documents(store)
    base = store.keys.partition(PARTITION)
    lost = [f"{base}:{name}" for name in (f"docs:{SHELF}", f"word:{SHELF}:blue")]
    await ask(store, base, "DEL", f"{base}:doc_due:{KIND}", *lost)
    clock.set(DUE_MS)
    assert (await store.due(DUE_MS, 9, [KIND])).documents == []
    assert await documents(store, "blue") == []
    told = "5 entries differ from their records"
    assert await store.inspect() == [Damage("the indexes", told)]
    assert await verified(store) == 5
    assert [each.name for each in (await store.due(DUE_MS, 9, [KIND])).documents] == ["a", "b"]
    assert await documents(store) == before
    assert [each.name for each in await documents(store, "blue")] == ["a"]
    assert await store.inspect() == []


async def documents(store: ValkeyStore, word: str = "") -> list[AnyDocument]:
    return await store.documents(DocumentQuery(kind=KIND, namespace="default", word=word))


async def test_words_of_a_document_that_cannot_be_read_stay_where_they_are(
    store: ValkeyStore,
) -> None:
    key = f"{store.keys.partition(PARTITION)}:doc:{SHELF}:a"
    await ask(store, key, "HSET", key, "words", "melted", "due_ms", "soon")
    before = await shown(store)
    assert await verified(store) == 0
    assert await shown(store) == before


async def test_indexes_of_documents_that_are_gone_are_gone(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    await store.put([remove(each) for each in await documents(store)], clock.now_ms())
    base = store.keys.partition(PARTITION)
    assert not [key for key in await keys(store, f"{base}:*") if ":doc" in key or ":word" in key]
