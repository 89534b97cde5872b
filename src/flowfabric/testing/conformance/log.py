"""The log: in the order of commits, after a cursor, never missing a line."""

from __future__ import annotations

import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Event, Feed
from flowfabric.core.states import State
from flowfabric.errors import CursorExpired, InvalidInput
from flowfabric.store.protocol import Store
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, put_and_take


async def write(store: Store, clock: VirtualClock, first: int, count: int) -> None:
    """Submit, claim and complete some, one after the other: three lines each."""
    for number in range(first, first + count):
        lease = await put_and_take(store, clock, order(number))
        await apply(store, clock, complete(lease, clock.advance(1), b""))


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.execution, event.kind) for event in events]


KINDS = ("submitted", "claimed", "completed")


async def test_lines_come_in_the_order_they_were_committed(
    store: Store, clock: VirtualClock
) -> None:
    await write(store, clock, 0, 5)
    expected = [(execution_id(n), kind) for n in range(5) for kind in KINDS]
    assert told(await store.tail(Feed())) == expected


async def test_a_cursor_leads_to_what_follows_it(store: Store, clock: VirtualClock) -> None:
    await write(store, clock, 0, 4)
    events = await store.tail(Feed())
    for position, event in enumerate(events):
        assert await store.tail(Feed(after=event.cursor)) == events[position + 1 :]


async def test_pages_of_the_log_follow_each_other(store: Store, clock: VirtualClock) -> None:
    await write(store, clock, 0, 5)
    whole = await store.tail(Feed())
    read: list[Event] = []
    while page := await store.tail(Feed(after=read[-1].cursor if read else "", limit=4)):
        assert len(page) <= 4
        read += page
    assert read == whole


async def test_a_follower_sees_what_is_written_after_it_looked(
    store: Store, clock: VirtualClock
) -> None:
    await write(store, clock, 0, 1)
    last = (await store.tail(Feed()))[-1].cursor
    assert await store.tail(Feed(after=last)) == []
    await write(store, clock, 1, 1)
    found = await store.tail(Feed(after=last))
    assert told(found) == [(execution_id(1), kind) for kind in KINDS]


async def test_the_lines_of_one_execution(store: Store, clock: VirtualClock) -> None:
    await write(store, clock, 0, 3)
    mine = await store.tail(Feed(execution=execution_id(1)))
    assert told(mine) == [(execution_id(1), kind) for kind in KINDS]
    rest = await store.tail(Feed(execution=execution_id(1), after=mine[0].cursor))
    assert rest == mine[1:]
    assert await store.tail(Feed(execution=execution_id(1), limit=2)) == mine[:2]
    assert await store.tail(Feed(execution=execution_id(9))) == []


async def test_lines_of_one_execution_after_a_cursor_of_another(
    store: Store, clock: VirtualClock
) -> None:
    await write(store, clock, 0, 3)
    other = (await store.tail(Feed(execution=execution_id(0))))[-1]
    mine = await store.tail(Feed(execution=execution_id(2), after=other.cursor))
    assert told(mine) == [(execution_id(2), kind) for kind in KINDS]


async def test_the_newest_line_is_where_a_follower_begins(
    store: Store, clock: VirtualClock
) -> None:
    assert await store.tail(Feed(newest=True)) == []
    await write(store, clock, 0, 3)
    events = await store.tail(Feed())
    assert await store.tail(Feed(newest=True)) == events[-1:]
    one = Feed(newest=True, execution=execution_id(1))
    assert await store.tail(one) == [events[5]]
    assert await store.tail(Feed(newest=True, execution=execution_id(9))) == []
    assert await store.tail(Feed(newest=True, after=events[-1].cursor)) == []


async def test_lines_can_be_chosen_by_the_state_they_led_to(
    store: Store, clock: VirtualClock
) -> None:
    await write(store, clock, 0, 3)
    chosen = Feed(states=(State.COMPLETED, State.FAILED))
    ends = await store.tail(chosen)
    assert told(ends) == [(execution_id(n), "completed") for n in range(3)]
    rest = Feed(states=(State.COMPLETED,), after=ends[0].cursor, limit=1)
    assert await store.tail(rest) == [ends[1]]
    assert await store.tail(Feed(states=(State.SKIPPED,))) == []


async def test_a_limit_of_no_lines_gives_none(store: Store, clock: VirtualClock) -> None:
    await write(store, clock, 0, 1)
    assert await store.tail(Feed(limit=0)) == []


async def test_a_cursor_of_another_store_has_expired(
    store: Store, stranger: Store, clock: VirtualClock
) -> None:
    """A store that was restored or begun anew must not silently go on from an old position."""
    await write(stranger, clock, 0, 1)
    await write(store, clock, 0, 2)
    for event in await stranger.tail(Feed()):
        for feed in (Feed(after=event.cursor), Feed(after=event.cursor, newest=True)):
            with pytest.raises(CursorExpired):
                await store.tail(feed)


@pytest.mark.parametrize(
    "garbage", ["garbage", " ", ":", "x:y", "1:-1", "1:1.5", "\0", "ключ:ключ", "a:" + "9" * 5_000]
)
async def test_what_is_no_cursor_is_refused(
    store: Store, clock: VirtualClock, garbage: str
) -> None:
    await write(store, clock, 0, 1)
    with pytest.raises(InvalidInput) as refused:
        await store.tail(Feed(after=garbage))
    assert refused.value.field == "after"
