"""The log of many partitions: ordered by time, read page by page, and never missing a line."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from flowfabric.core.model import Event, Feed
from flowfabric.core.operator import change_priority
from flowfabric.core.states import State
from flowfabric.errors import CursorExpired
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order, submissions
from flowfabric.testing.conformance.steps import apply, head, in_threads, put
from flowfabric.testing.servers import ValkeyServer
from tests.store.valkey.conftest import Opener
from tests.store.valkey.raw import ask


async def write_spread(store: ValkeyStore, clock: VirtualClock, rounds: int) -> int:
    """Lines in twenty partitions, at other times in each round."""
    for number in range(rounds):
        clock.advance(1)
        some = [order(id=execution_id(number * 100 + n, partition=n * 12 % 256)) for n in range(20)]
        await put(store, clock, *some)
    return rounds * 20


async def pages(store: ValkeyStore, limit: int, states: tuple[State, ...] = ()) -> list[Event]:
    read: list[Event] = []
    while page := await store.tail(
        Feed(after=read[-1].cursor if read else "", limit=limit, states=states)
    ):
        assert len(page) <= limit
        read += page
    return read


async def test_lines_of_all_partitions_come_by_time(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    count = await write_spread(store, clock, 12)
    events = await store.tail(Feed(limit=10_000))
    assert len(events) == count
    assert [event.at_ms for event in events] == sorted(event.at_ms for event in events)


@pytest.mark.parametrize("limit", [1, 7, 50, 10_000])
async def test_pages_of_any_size_give_the_same_lines(
    url: str, opener: Opener, clock: VirtualClock, limit: int
) -> None:
    store, other = opener(url), opener(url)
    await store.migrate()
    await other.migrate()
    await write_spread(store, clock, 3)
    whole = await other.tail(Feed(limit=10_000))
    assert await pages(store, limit) == whole
    assert await pages(other, limit, (State.WAITING,)) == whole
    assert await pages(store, limit, (State.FAILED,)) == []


async def test_a_cursor_of_one_process_is_good_in_another(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store, other = opener(url), opener(url)
    await store.migrate()
    await other.migrate()
    await write_spread(store, clock, 2)
    events = await store.tail(Feed(limit=10_000))
    for position in (0, 13, 38):
        after = events[position].cursor
        assert await other.tail(Feed(after=after, limit=10_000)) == events[position + 1 :]


async def test_a_line_that_comes_late_is_told(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    """A partition whose clock is behind writes a line older than what was read from others."""
    store = opener(url)
    await store.migrate()
    await put(store, clock, order(id=execution_id(0, partition=1)))
    clock.advance(1_000)
    await put(store, clock, order(id=execution_id(1, partition=2)))
    cursor = (await store.tail(Feed()))[-1].cursor
    behind = opener(url)
    behind._clock = VirtualClock(clock.now_ms() - 400)
    await behind.migrate()
    late = submissions([order(id=execution_id(2, partition=3))], clock.now_ms() - 400)
    await behind.insert(late, clock.now_ms() - 400)
    told = await store.tail(Feed(after=cursor))
    assert [event.execution for event in told] == [execution_id(2, partition=3)]


async def test_a_reader_misses_nothing_while_many_partitions_are_written(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    now_ms = clock.now_ms()
    finished = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def write(number: int) -> None:
        for n in range(30):
            one = order(id=execution_id(number * 100 + n, partition=(number * 31 + n) % 256))
            await store.insert(submissions([one], now_ms), now_ms)

    def write_all() -> None:
        in_threads(3, write)
        loop.call_soon_threadsafe(finished.set)

    writing = asyncio.create_task(asyncio.to_thread(write_all))
    seen: list[str] = []
    cursor, is_last = "", False
    while not is_last:
        await asyncio.sleep(0)
        is_last = finished.is_set()
        while page := await store.tail(Feed(after=cursor, limit=7)):
            seen += [event.execution for event in page]
            cursor = page[-1].cursor
    await writing
    assert set(Counter(seen).values()) == {1}
    assert len(seen) == 90


async def test_the_newest_line_of_many_partitions_is_where_a_follower_begins(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    await write_spread(store, clock, 2)
    events = await store.tail(Feed(limit=10_000))
    assert await store.tail(Feed(newest=True)) == events[-1:]
    (newest,) = await store.tail(Feed(newest=True))
    assert await store.tail(Feed(after=newest.cursor)) == []
    await put(store, clock, order(id=execution_id(999, partition=250)))
    told = await store.tail(Feed(after=newest.cursor))
    assert [event.execution for event in told] == [execution_id(999, partition=250)]


async def test_a_history_keeps_its_last_thousand_lines(
    opener: Opener, server: ValkeyServer, clock: VirtualClock
) -> None:
    store = opener(server.url)
    await store.migrate()
    row = (await put(store, clock, order(0)))[0]
    key = f"{store.keys.partition(7)}:log:{uuid_of(row.id)}"
    lines = [f"{number}-1\tactive\t1\tnoted\t0\t0\t{{}}" for number in range(1_100)]
    await ask(store, key, "RPUSH", key, *lines)
    for number in range(1, 41):
        await apply(
            store, clock, change_priority(await head(store, row.id), clock.now_ms(), number)
        )
    assert await ask(store, key, "LLEN", key) == 1_000
    events = await store.tail(Feed(limit=10_000))
    assert len(events) == 41
    history = await store.tail(Feed(execution=row.id, limit=10_000))
    assert [event.cursor for event in history[-41:]] == [event.cursor for event in events]
    assert 1_000 < len(history) < 1_041


async def test_a_cursor_of_a_store_that_was_dropped_has_expired(
    url: str, opener: Opener, clock: VirtualClock
) -> None:
    store = opener(url)
    await store.migrate()
    await put(store, clock, order(0))
    cursor = (await store.tail(Feed()))[-1].cursor
    await store.drop()
    await store.migrate()
    await put(store, clock, order(0))
    with pytest.raises(CursorExpired):
        await store.tail(Feed(after=cursor))
