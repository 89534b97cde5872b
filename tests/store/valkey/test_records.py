"""What an operator finds with a plain client, and what is left when a store is dropped."""

from __future__ import annotations

import re

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Query
from flowfabric.core.operator import change_priority
from flowfabric.errors import Corrupt
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.store.valkey.library import library_name
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.conformance.steps import apply, head, put, put_and_take, take
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask, ask_all, columns, keys


async def used(store: ValkeyStore, clock: VirtualClock) -> None:
    """Write a record of every kind, in several partitions."""
    await store.migrate()
    for number in range(4):
        one = order(
            number,
            id=execution_id(number, partition=number * 50),
            key=f"key-{number}",
            digest="d",
            tags={"a.b": "c"},
            payload=b"x" * 300,
            delay_until_ms=clock.now_ms() + 1_000 if number == 3 else None,
        )
        if number < 2:
            lease = await put_and_take(store, clock, one)
            await apply(store, clock, complete(lease, clock.now_ms(), b"result"))
        else:
            await put(store, clock, one)


async def test_a_head_has_its_columns_as_messagepack_by_their_names(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    lease = await put_and_take(store, clock, order(0, lane="mail", payload=b'{"to":"x"}'))
    shown = await columns(store, lease.id)
    names = ("state", "lane", "worker", "epoch", "payload", "lease_until_ms")
    assert {name: shown[name] for name in names} == {
        "state": "active",
        "lane": "mail",
        "worker": "worker-1",
        "epoch": 1,
        "payload": '{"to":"x"}',
        "lease_until_ms": lease.until_ms,
    }


async def test_every_key_has_the_prefix_and_the_tag_of_its_scope(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    before = await keys(store)
    await used(store, clock)
    mine = await keys(store) - before
    assert len(mine) > 20
    tagged = re.compile(rf"{store.address.prefix}:\{{(fp:\d+|[a-z]+|hint:.*)\}}(:.*)?", re.DOTALL)
    assert [key for key in mine if not tagged.fullmatch(key)] == []


async def test_a_drop_leaves_no_key_and_no_function(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    # Stores of other tests would keep the functions.
    await ask_all(store, "FLUSHALL")
    await store.close()
    await used(store, clock)
    await store.drop()
    assert await keys(store, f"{store.address.prefix}:*") == set()
    for reply in await ask_all(store, "FUNCTION", "LIST", "LIBRARYNAME", library_name()):
        assert reply == []
    await store.drop()


async def test_a_drop_leaves_other_prefixes_and_their_functions_alone(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store, other = opener(url), opener(url, prefix="other")
    await used(store, clock)
    await used(other, clock)
    before = await keys(other, "other:*")
    await store.drop()
    assert await keys(other, "other:*") == before
    for reply in await ask_all(other, "FUNCTION", "LIST", "LIBRARYNAME", library_name()):
        assert reply != []
    assert len(await other.find(Query())) == 4
    await other.drop()


async def test_a_drop_that_was_interrupted_can_be_repeated(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    """What says that the store is ours goes last."""
    store = opener(url)
    await used(store, clock)
    meta = store.keys.shared("meta")
    for key in await keys(store, f"{store.address.prefix}:*"):
        if key != meta:
            await ask(store, key, "UNLINK", key)
    await store.drop()
    assert await keys(store, f"{store.address.prefix}:*") == set()


@pytest.mark.case("BC-007")
async def test_what_is_missing_is_named_and_then_loaded(url: str, opener: Opener) -> None:
    store = opener(url)
    load = "FUNCTION LOAD (flowfabric lib v3)"
    assert await store.unmigrated() == [load, "first start"]
    await store.migrate()
    assert await store.unmigrated() == []
    await ask_all(store, "FUNCTION", "FLUSH")
    assert await store.unmigrated() == [load]


@pytest.mark.case("PA-019")
async def test_the_keys_of_an_execution_carry_one_tag(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await used(store, clock)
    prefix, uuid = store.address.prefix, uuid_of(execution_id(1, partition=50))
    mine = {key for key in await keys(store, f"{prefix}:*") if uuid in key}
    kinds = ("x", "payload", "tags", "attempt")
    assert mine == {
        f"{prefix}:{{fp:50}}:{kind}:{uuid}{':0' if kind == 'attempt' else ''}" for kind in kinds
    }


@pytest.mark.case("PA-020")
async def test_queues_and_timers_are_named_by_what_they_hold(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await used(store, clock)
    prefix = store.address.prefix
    assert {
        f"{prefix}:{{fp:100}}:ready:7:default:main greet",
        f"{prefix}:{{fp:150}}:due",
        f"{prefix}:{{fp:100}}:ids",
        f"{prefix}:{{lanes}}:all",
        f"{prefix}:{{hint:7:default:main greet}}",
    } <= await keys(store, f"{prefix}:*")


async def test_a_text_that_is_no_record_keeps_nobody_from_being_claimed(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    strange, plain = await put(store, clock, order(0), order(1))
    key = store.keys.execution(strange.id)
    await ask(store, key, "SET", key, b"strange")
    assert [lease.id for lease in await take(store, clock)] == [plain.id]
    with pytest.raises(Corrupt, match="cannot be read"):
        await head(store, strange.id)
    change = change_priority(strange, clock.now_ms(), 3)
    await apply(store, clock, change)
    assert (await columns(store, strange.id))["priority"] == 3


async def test_a_record_that_is_written_often_stays_short(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    row = (await put(store, clock, order(0, payload=b"\xff\x00body")))[0]
    sizes: list[int] = []
    for number in range(1, 60):
        await apply(
            store, clock, change_priority(await head(store, row.id), clock.now_ms(), number)
        )
        size = await ask(
            store, store.keys.execution(row.id), "STRLEN", store.keys.execution(row.id)
        )
        assert isinstance(size, int)
        sizes.append(size)
    assert max(sizes) < 4_000
    (lease,) = await take(store, clock)
    assert (lease.payload, lease.head.priority, lease.head.rev) == (b"\xff\x00body", 59, 61)
