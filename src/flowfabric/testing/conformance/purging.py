"""What may go is found in order, and goes as a whole, with all that is its own, if as seen."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.views import Members, Sight
from flowfabric.core.lifecycle import Order, complete
from flowfabric.core.model import Execution, Feed, Query, Want
from flowfabric.core.policy import DAY_MS
from flowfabric.core.retention import Departure, FlowDeparture, Purge, Purged
from flowfabric.core.transition import Changeset
from flowfabric.errors import ClockSkew, CursorExpired
from flowfabric.store.protocol import Store
from flowfabric.store.upkeep import LASTING, Upkeep
from flowfabric.testing.build import order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import (
    FlowContents,
    add_lines,
    everything,
    flow_of,
    look,
    patch,
    put_flow,
)
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.conformance.steps import (
    apply,
    contents,
    head,
    loaded,
    put,
    put_and_take,
)
from flowfabric.testing.flows import FLOW, flow_id, member, plan


async def rows_of(store: Store) -> dict[str, int]:
    """How many records of each kind there are, but for those that stay for ever."""
    assert isinstance(store, Upkeep)
    sizes = await store.sizes()
    return {part.name: part.rows for part in sizes if part.rows and part.name not in LASTING}


async def of_others(store: Store) -> FlowContents:
    """All there is of the second flow. Where to go on from a line may be told in other words, once
    others have gone."""
    found = await everything(store, flow_id(2))
    events = [msgspec.structs.replace(event, cursor="") for event in found.rest.events]
    return found._replace(rest=found.rest._replace(events=events))


async def finish(store: Store, clock: VirtualClock, new: Order) -> Execution:
    """Run one to its end."""
    lease = await put_and_take(store, clock, new)
    await apply(store, clock, complete(lease, clock.now_ms(), b"result"))
    return await head(store, new.id)


async def purge(store: Store, clock: VirtualClock, *rows: Execution) -> Purged:
    seen = [Departure(row.id, row.rev) for row in rows]
    return await store.purge(Purge(now_ms=clock.now_ms(), executions=seen))


async def purge_flow(store: Store, clock: VirtualClock, *, members: int = 500) -> Purged:
    flow = await flow_of(store)
    seen = [FlowDeparture(flow.id, flow.rev)]
    return await store.purge(Purge(now_ms=clock.now_ms(), flows=seen, members=members))


async def test_what_has_ended_departs_when_its_time_has_come_soonest_first(
    store: Store, clock: VirtualClock
) -> None:
    first = await finish(store, clock, order(1))
    clock.advance(5)
    second = await finish(store, clock, order(0))
    await put(store, clock, order(2))
    clock.advance(DAY_MS - 6)
    assert (await store.departing(clock.now_ms(), 10)).executions == []
    clock.advance(1)
    found = (await store.departing(clock.now_ms(), 10)).executions
    assert found == [Departure(first.id, first.rev)]
    clock.advance(5)
    found = (await store.departing(clock.now_ms(), 10)).executions
    assert found == [Departure(first.id, first.rev), Departure(second.id, second.rev)]
    assert (await store.departing(clock.now_ms(), 1)).executions == found[:1]


async def test_a_purged_execution_leaves_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    before = await rows_of(store)
    ended = await finish(store, clock, order(1, tags={"a.b": "c"}, payload=b"body"))
    assert await rows_of(store) != before
    assert (await purge(store, clock, ended)).gone == [ended.id]
    assert await rows_of(store) == before
    assert await store.load(Want(ids=[ended.id], tags=True, attempts=True)) == [None]
    assert await store.tail(Feed(execution=ended.id)) == []
    assert await store.find(Query(tags={"a.b": "c"})) == []
    assert (await purge(store, clock, ended)).gone == []


async def test_an_id_that_was_purged_can_be_used_again(store: Store, clock: VirtualClock) -> None:
    ended = await finish(store, clock, order(0, tags={"a.b": "c"}))
    await purge(store, clock, ended)
    await put(store, clock, order(0))
    again = await loaded(store, ended.id)
    assert (again.tags, again.attempts, again.head.attempt) == ({}, (), -1)


async def test_what_changed_since_it_was_seen_stays(store: Store, clock: VirtualClock) -> None:
    ended = await finish(store, clock, order(0))
    before = await contents(store)
    stale = Departure(ended.id, ended.rev - 1)
    answer = await store.purge(Purge(now_ms=clock.now_ms(), executions=[stale]))
    assert (answer.gone, answer.kept) == ([], {})
    assert await contents(store) == before


async def test_an_execution_stays_while_its_key_is_alive(store: Store, clock: VirtualClock) -> None:
    until_ms = clock.now_ms() + 1_000
    keyed = order(0, key="order-7", digest="d", policy=policy(dedup_window_ms=1_000))
    ended = await finish(store, clock, keyed)
    answer = await purge(store, clock, ended)
    assert (answer.gone, answer.kept) == ([], {ended.id: until_ms})
    assert await store.load(Want(ids=[ended.id])) != [None]
    clock.advance(1_000)
    assert (await purge(store, clock, ended)).gone == [ended.id]


async def test_one_that_stays_keeps_no_other(store: Store, clock: VirtualClock) -> None:
    rows = [await finish(store, clock, order(number)) for number in range(3)]
    seen = [Departure(row.id, row.rev - (place == 1)) for place, row in enumerate(rows)]
    answer = await store.purge(Purge(now_ms=clock.now_ms(), executions=seen))
    assert sorted(answer.gone) == sorted([rows[0].id, rows[2].id])


async def test_a_cursor_before_a_removed_line_has_expired(
    store: Store, clock: VirtualClock
) -> None:
    ended = await finish(store, clock, order(0))
    lines = await store.tail(Feed(execution=ended.id))
    later = (await put(store, clock, order(1)))[0]
    await purge(store, clock, ended)
    with pytest.raises(CursorExpired):
        await store.tail(Feed(after=lines[0].cursor))
    assert [each.execution for each in await store.tail(Feed(after=lines[-1].cursor))] == [later.id]
    assert [each.execution for each in await store.tail(Feed())] == [later.id]


async def test_a_purge_with_a_clock_that_is_off_is_refused(
    store: Store, clock: VirtualClock
) -> None:
    ended = await finish(store, clock, order(0))
    seen = [Departure(ended.id, ended.rev)]
    with pytest.raises(ClockSkew):
        await store.purge(Purge(now_ms=clock.now_ms() + 5_000, executions=seen))
    assert await store.load(Want(ids=[ended.id])) != [None]


async def test_a_flow_departs_when_its_time_has_come(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("ab", "a>b"))
    assert (await store.departing(clock.now_ms() + DAY_MS, 10)).flows == []
    await patch(store, clock, purge_ms=clock.now_ms() + 5)
    assert (await store.departing(clock.now_ms() + 4, 10)).flows == []
    assert (await store.departing(clock.now_ms() + 5, 10)).flows == [await flow_of(store)]


async def test_a_purged_flow_leaves_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    await put_flow(store, clock, plan("cd", "c>d", flow=flow_id(2)))
    before = await rows_of(store)
    other = await of_others(store)
    await put_flow(store, clock, plan("abc", "a>b b>c a>c"))
    await add_lines(store, clock, line(1), line(2))
    answer = await purge_flow(store, clock)
    assert (answer.gone, answer.members) == ([FLOW], 3)
    assert await rows_of(store) == before
    assert await of_others(store) == other
    assert (await look(store, Sight(flow=FLOW))).flow is None


async def test_a_large_flow_goes_in_portions_and_itself_with_the_last(
    store: Store, clock: VirtualClock
) -> None:
    before = await rows_of(store)
    await put_flow(store, clock, plan("abcde", "a>b b>c c>d d>e"))
    first = await purge_flow(store, clock, members=2)
    assert (first.gone, first.members) == ([], 2)
    view = await look(store, Sight(flow=FLOW, members=Members()))
    assert view.members == [member(name) for name in "cde"]
    second = await purge_flow(store, clock, members=2)
    assert (second.gone, second.members) == ([], 2)
    third = await purge_flow(store, clock, members=2)
    assert (third.gone, third.members) == ([FLOW], 1)
    assert await rows_of(store) == before


async def test_a_flow_that_changed_since_it_was_seen_stays(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("ab", "a>b"))
    seen = await flow_of(store)
    assert await store.commit(
        Changeset(flows=[FlowPatch(FLOW, seen.rev, {"failed": 1})]), clock.now_ms()
    )
    before = await everything(store)
    stale = Purge(now_ms=clock.now_ms(), flows=[FlowDeparture(FLOW, seen.rev)])
    assert (await store.purge(stale)).gone == []
    assert await everything(store) == before


async def test_members_are_counted_by_their_stored_state(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("abc", "a>b b>c"))
    view = await look(store, Sight(flow=FLOW, tally=True))
    assert view.tally == {"waiting": 1, "blocked_dependencies": 2}
    assert (await look(store, Sight(flow=FLOW))).tally == {}
