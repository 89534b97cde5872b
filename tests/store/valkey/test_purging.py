"""What a purge leaves behind on a server, and what readers of the log notice of it."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Event, Execution, Feed, Want
from flowfabric.core.operator import change_priority
from flowfabric.core.policy import DAY_MS
from flowfabric.core.retention import Departure, FlowDeparture, Purge, Purged
from flowfabric.errors import CursorExpired
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order, policy
from flowfabric.testing.conformance.flow_steps import add_lines, flow_of, put_flow
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.conformance.purging import finish, purge, purge_flow
from flowfabric.testing.conformance.steps import apply, head, put, put_and_take, take
from flowfabric.testing.flows import FLOW, member, plan
from flowfabric.testing.servers import valkey_server
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask, ask_all, keys


@pytest.fixture
async def store(url: str, opener: Opener) -> ValkeyStore:
    store = opener(url)
    await store.migrate()
    return store


async def finish_at(
    store: ValkeyStore, clock: VirtualClock, number: int, partition: int
) -> Execution:
    clock.advance(1)
    return await finish(store, clock, order(id=execution_id(number, partition=partition)))


async def pages(store: ValkeyStore, after: str = "") -> list[Event]:
    """All lines, one at a time."""
    read: list[Event] = []
    while page := await store.tail(Feed(after=read[-1].cursor if read else after, limit=1)):
        read += page
    return read


async def test_no_key_of_an_execution_is_left(store: ValkeyStore, clock: VirtualClock) -> None:
    window = policy(dedup_window_ms=1)
    new = order(0, payload=b"x" * 300, tags={"a.b": "c"}, key="once", digest="d", policy=window)
    (row,) = await put(store, clock, new)
    for number in range(40):
        row = await head(store, row.id)
        await apply(store, clock, change_priority(row, clock.now_ms(), number))
    (lease,) = await take(store, clock)
    await apply(store, clock, complete(lease, clock.now_ms(), b"result"))
    mine = {key for key in await keys(store, f"{store.address.prefix}:*") if uuid_of(row.id) in key}
    kinds = {key.split("}:")[1].split(":")[0] for key in mine}
    assert kinds == {"x", "payload", "tags", "attempt", "log"}
    clock.advance(1)
    assert (await purge(store, clock, await head(store, row.id))).gone == [row.id]
    left = {key.split("}")[-1] for key in await keys(store, f"{store.address.prefix}:{{fp:*")}
    assert left == {"", ":feed"}


async def test_no_key_of_a_flow_is_left(store: ValkeyStore, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("abcd", "a>b a>c b>d c>d"))
    await add_lines(store, clock, line(1), line(2))
    await take(store, clock, only=member("a"))
    assert (await purge_flow(store, clock, members=3)).members == 3
    last = {key.split("}:")[-1].split(":")[0] for key in await keys(store, "*") if "{fp:" in key}
    assert {"flow", "members", "tally", "x", "edges", "groups", "leaving"} <= last
    assert (await purge_flow(store, clock)).gone == [FLOW]
    left = {key.split("}")[-1] for key in await keys(store, f"{store.address.prefix}:{{fp:*")}
    assert left == {"", ":feed"}


async def test_a_key_that_somebody_else_has_by_now_is_his(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    window = policy(dedup_window_ms=1_000)
    keyed = [order(n, key="order-7", digest=str(n), policy=window) for n in (0, 256)]
    ended = await finish(store, clock, keyed[0])
    clock.advance(1_000)
    await put(store, clock, keyed[1])
    assert (await purge(store, clock, ended)).gone == [ended.id]
    clock.advance(1)
    repeated = order(512, key="order-7", digest="1", policy=window)
    with pytest.raises(AssertionError):
        await put(store, clock, repeated)


async def test_what_may_go_is_merged_from_all_partitions(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    """More of it in one partition than each is asked for at first."""
    places = [3] * 40 + [4, 5, 3, 4]
    rows = [await finish_at(store, clock, n, partition) for n, partition in enumerate(places)]
    clock.advance(DAY_MS)
    expected = [Departure(row.id, row.rev) for row in rows]
    for limit in (0, 1, 30, 42, 100):
        found = (await store.departing(clock.now_ms(), limit)).executions
        assert found == expected[:limit]


async def test_what_is_no_record_goes_when_its_time_has_come(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    strange, plain = [await finish_at(store, clock, n, 7) for n in range(2)]
    key = store.keys.execution(strange.id)
    await ask(store, key, "SET", key, b"strange")
    clock.advance(DAY_MS)
    found = (await store.departing(clock.now_ms(), 10)).executions
    assert [each.id for each in found] == [strange.id, plain.id]
    answer = await store.purge(Purge(now_ms=clock.now_ms(), executions=found))
    assert answer == Purged([strange.id, plain.id], {})
    assert (await store.departing(clock.now_ms(), 10)).executions == []
    await ask(store, key, "DEL", key)


async def test_an_index_that_names_nobody_keeps_nobody(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    lost, plain = [await finish_at(store, clock, n, 7) for n in range(2)]
    key = store.keys.execution(lost.id)
    await ask(store, key, "DEL", key)
    clock.advance(DAY_MS)
    found = (await store.departing(clock.now_ms(), 10)).executions
    assert found == [Departure(plain.id, plain.rev)]


async def test_who_reads_from_the_beginning_gets_what_is_left_page_by_page(
    store: ValkeyStore, opener: Opener, url: str, clock: VirtualClock
) -> None:
    gone = [await finish_at(store, clock, n, partition) for n, partition in enumerate((3, 9))]
    kept = [await finish_at(store, clock, 10 + n, partition) for n, partition in enumerate((9, 4))]
    await purge(store, clock, *gone)
    await finish_at(store, clock, 20, 3)
    other = opener(url)
    await other.migrate()
    whole = await other.tail(Feed(limit=100))
    assert [line.execution for line in whole[::3]] == [
        *(row.id for row in kept),
        execution_id(20, partition=3),
    ]
    assert len(whole) == 9
    assert await pages(store) == whole
    for place, event in enumerate(whole):
        assert await pages(other, event.cursor) == whole[place + 1 :]


async def test_a_reader_who_was_behind_has_missed_lines(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    """Also in a partition of which he had nothing yet, and if nothing at all is left of it."""
    first = await finish_at(store, clock, 0, 3)
    (only,) = await store.tail(Feed(limit=1))
    behind = await finish_at(store, clock, 1, 9)
    (newest,) = await store.tail(Feed(newest=True))
    await purge(store, clock, behind)
    with pytest.raises(CursorExpired):
        await pages(store, only.cursor)
    assert await pages(store, newest.cursor) == []
    assert {event.execution for event in await pages(store)} == {first.id}
    (left,) = await store.tail(Feed(newest=True))
    assert left.execution == first.id
    await put(store, clock, order(id=execution_id(2, partition=9)))
    assert len(await pages(store, newest.cursor)) == 1
    assert len(await pages(store, left.cursor)) == 1


async def test_a_write_that_is_gone_was_read_to_its_end_or_not(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    rows = [order(id=execution_id(n, partition=3)) for n in range(2)]
    await put(store, clock, *rows)
    half, whole = await store.tail(Feed(limit=10))
    leases = await take(store, clock, 2)
    ends = [complete(lease, clock.now_ms(), b"1") for lease in leases]
    await store.apply(ends, clock.now_ms())
    *_, before, last = await store.tail(Feed(limit=10))
    (later,) = await put(store, clock, order(id=execution_id(5, partition=3)))
    await purge(store, clock, *[await head(store, lease.id) for lease in leases])
    for event in (half, whole, before):
        with pytest.raises(CursorExpired):
            await pages(store, event.cursor)
    assert [event.execution for event in await pages(store, last.cursor)] == [later.id]


async def test_a_purge_while_others_work_leaves_their_records_alone(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    ended = await finish_at(store, clock, 0, 3)
    lease = await put_and_take(store, clock, order(id=execution_id(1, partition=3)))
    await purge(store, clock, ended)
    await apply(store, clock, complete(lease, clock.now_ms(), b"mine"))
    (end,) = await store.endings([lease.id])
    assert end is not None
    assert end.result == b"mine"
    assert await store.load(Want(ids=[ended.id])) == [None]


async def test_a_full_server_lets_go(opener: Opener, clock: VirtualClock) -> None:
    with valkey_server() as server:
        full = opener(server.url)
        await full.migrate()
        ended = await finish_at(full, clock, 0, 3)
        await ask_all(full, "CONFIG", "SET", "maxmemory", "1")
        assert (await purge(full, clock, ended)).gone == [ended.id]
        await ask_all(full, "CONFIG", "SET", "maxmemory", "0")


async def test_members_that_go_are_no_longer_counted(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("abc", "a>b b>c"))
    flow = await flow_of(store)
    seen = [FlowDeparture(FLOW, flow.rev)]
    await store.purge(Purge(now_ms=clock.now_ms(), flows=seen, members=1))
    base = store.keys.partition(int(member("a").split("}")[0].removeprefix("{fp:")))
    tally = await ask(store, base, "GET", f"{base}:tally:{FLOW}")
    assert isinstance(tally, bytes)
    assert msgspec.msgpack.decode(tally) == {"blocked_dependencies": 2}
