"""Reading executions by their ids, and how they ended."""

from __future__ import annotations

from flowfabric.core.lifecycle import Failure, complete, fail
from flowfabric.core.model import Ended, Query, Want, Writer
from flowfabric.core.operator import Source, cancel, replay
from flowfabric.core.states import State
from flowfabric.core.transition import Held, Rejected, Transition
from flowfabric.store.protocol import Store
from flowfabric.testing.build import ask, execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import (
    FAR_MS,
    apply,
    contents,
    head,
    loaded,
    put,
    put_and_take,
    result,
)


async def test_executions_come_in_the_order_asked_for(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, *(order(n) for n in range(5)))
    asked = [execution_id(n) for n in (3, 0, 4, 1)]
    found = await store.load(Want(ids=asked))
    assert [each.head.id for each in found if each is not None] == asked


async def test_what_is_not_there_is_none(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(1))
    asked = [execution_id(n) for n in (0, 1, 2)]
    want = Want(ids=asked, payload=True, tags=True, attempts=True)
    found = await store.load(want)
    assert [each is None for each in found] == [True, False, True]


async def test_an_id_asked_for_twice_is_answered_twice(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    found = await store.load(Want(ids=[execution_id(0)] * 2, payload=True))
    assert len(found) == 2
    assert found[0] == found[1] is not None


async def test_every_answer_is_a_copy_of_its_own(store: Store, clock: VirtualClock) -> None:
    """An engine knows a lease that it handed out by the object: two answers must not share one."""
    lease = await put_and_take(store, clock, order(0))
    again = ask(clock.now_ms(), repeated=True)
    strange = Held(lease.epoch + 1, lease.token)
    change = Transition(lease.id, strange, Writer.WORKER, {"progress_pct": 1})
    answers: list[object] = [lease.head]
    for _ in range(2):
        claimed = await store.claim(again)
        found = await store.load(Want(ids=[lease.id]))
        answers += [each.head for each in (*claimed, *found) if each is not None]
        listed, due = await store.find(Query(limit=1)), await store.due(FAR_MS, 1)
        (refused,) = await store.apply([change], clock.now_ms())
        assert isinstance(refused, Rejected)
        answers += [*listed, *due.rows, refused.current]
    assert answers == [lease.head] * 11
    assert len({id(each) for each in answers}) == 11


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
        (Want(ids=ids), (b"", {}, ())),
        (Want(ids=ids, payload=True), (b"in", {}, ())),
        (Want(ids=ids, tags=True), (b"", {"a.b": "c"}, ())),
        (Want(ids=ids, attempts=True), (b"", {}, full.attempts)),
    ):
        found = (await store.load(want))[0]
        assert found is not None
        assert (found.payload, found.tags, found.attempts) == expected
        assert found.head == full.head


async def test_a_write_is_seen_by_the_next_read(store: Store, clock: VirtualClock) -> None:
    for number in range(20):
        lease = await put_and_take(store, clock, order(number))
        await apply(store, clock, complete(lease, clock.now_ms(), b"%d" % number))
        assert await result(store, lease.id) == b"%d" % number
        assert [a.result for a in (await loaded(store, lease.id)).attempts] == [b"%d" % number]


async def test_reading_changes_nothing(store: Store, clock: VirtualClock) -> None:
    await put_and_take(store, clock, order(0, tags={"a.b": "c"}))
    before = await contents(store)
    assert await contents(store) == before


async def test_endings_come_in_the_order_asked_for(store: Store, clock: VirtualClock) -> None:
    leases = [await put_and_take(store, clock, order(number)) for number in range(4)]
    now_ms = clock.now_ms()
    await apply(
        store,
        clock,
        complete(leases[0], now_ms, b"result"),
        fail(leases[1], now_ms, Failure("broke", "network")),
        cancel(leases[2].head, now_ms, "no", source=Source.OPERATOR),
    )
    ids = [execution_id(number) for number in (2, 9, 0, 3, 1, 0)]
    done = Ended(execution_id(0), State.COMPLETED, "", "", b"result")
    assert await store.endings(ids) == [
        Ended(execution_id(2), State.CANCELLED, "no", Source.OPERATOR),
        None,
        done,
        Ended(execution_id(3), State.ACTIVE, "", ""),
        Ended(execution_id(1), State.FAILED, "broke", "network"),
        done,
    ]
    assert await store.endings([]) == []


async def test_an_ending_that_was_undone_is_none_any_more(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    await apply(store, clock, complete(lease, clock.now_ms(), b"first"))
    await apply(store, clock, replay(await head(store, lease.id), clock.now_ms()))
    ended = (await store.endings([lease.id]))[0]
    assert ended is not None
    assert ended.state is State.WAITING
