"""Reading executions by their ids."""

from __future__ import annotations

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Want
from flowfabric.store.protocol import Store
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, contents, loaded, put, put_and_take


async def test_executions_come_in_the_order_asked_for(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, *(order(n) for n in range(5)))
    asked = [execution_id(n) for n in (3, 0, 4, 1)]
    found = await store.load(Want(ids=asked))
    assert [each.head.id for each in found if each is not None] == asked


async def test_what_is_not_there_is_none(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(1))
    asked = [execution_id(n) for n in (0, 1, 2)]
    want = Want(ids=asked, payload=True, result=True, tags=True, attempts=True)
    found = await store.load(want)
    assert [each is None for each in found] == [True, False, True]


async def test_an_id_asked_for_twice_is_answered_twice(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    found = await store.load(Want(ids=[execution_id(0)] * 2, payload=True))
    assert len(found) == 2
    assert found[0] == found[1] is not None


async def test_nothing_asked_for_is_nothing_answered(store: Store) -> None:
    assert await store.load(Want(ids=[])) == []


async def test_only_what_is_asked_for_comes_with_the_head(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0, payload=b"in", tags={"a.b": "c"}))
    await apply(store, clock, complete(lease, clock.now_ms(), b"out"))
    full = await loaded(store, lease.id)
    ids = [lease.id]
    for want, expected in (
        (Want(ids=ids), (b"", None, {}, ())),
        (Want(ids=ids, payload=True), (b"in", None, {}, ())),
        (Want(ids=ids, result=True), (b"", b"out", {}, ())),
        (Want(ids=ids, tags=True), (b"", None, {"a.b": "c"}, ())),
        (Want(ids=ids, attempts=True), (b"", None, {}, full.attempts)),
    ):
        found = (await store.load(want))[0]
        assert found is not None
        assert (found.payload, found.result, found.tags, found.attempts) == expected
        assert found.head == full.head


async def test_a_write_is_seen_by_the_next_read(store: Store, clock: VirtualClock) -> None:
    for number in range(20):
        lease = await put_and_take(store, clock, order(number))
        await apply(store, clock, complete(lease, clock.now_ms(), b"%d" % number))
        assert (await loaded(store, lease.id)).result == b"%d" % number


async def test_reading_changes_nothing(store: Store, clock: VirtualClock) -> None:
    await put_and_take(store, clock, order(0, tags={"a.b": "c"}))
    before = await contents(store)
    assert await contents(store) == before
