"""Listing executions: every condition that is set must hold, in order of ids, page by page."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.ids import partition_of
from flowfabric.core.lifecycle import Order, complete
from flowfabric.core.model import Query
from flowfabric.core.operator import set_tags
from flowfabric.core.states import State
from flowfabric.store.protocol import Store
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import put_flow
from flowfabric.testing.conformance.steps import apply, head, put, take
from flowfabric.testing.flows import flow_id, member, plan


def mixed(now_ms: int) -> list[Order]:
    """Six that differ in everything a query can ask for."""
    return [
        order(0),
        order(1, lane="second", tags={"a.b": "1"}),
        order(2, kind="send", tags={"a.b": "1", "a.c": "2"}),
        order(3, namespace="other", lane="second"),
        order(4, delay_until_ms=now_ms + 1_000, tags={"a.b": "2", "a.c": "1"}),
        order(5, id=execution_id(5, partition=70)),
    ]


async def found(store: Store, query: Query) -> list[int]:
    """The numbers of what fits, in the order it was answered."""
    known = {execution_id(n): n for n in range(5)} | {execution_id(5, partition=70): 5}
    return [known[row.id] for row in await store.find(query)]


QUERIES: dict[str, tuple[Query, list[int]]] = {
    "everything": (Query(), [5, 0, 1, 2, 3, 4]),
    "namespace": (Query(namespace="other"), [3]),
    "partition": (Query(partition=7), [0, 1, 2, 3, 4]),
    "another partition": (Query(partition=70), [5]),
    "an empty partition": (Query(partition=0), []),
    "lane": (Query(lane="second"), [1, 3]),
    "kind": (Query(kind="send"), [2]),
    "one state": (Query(states=(State.DELAYED,)), [4]),
    "several states": (Query(states=(State.DELAYED, State.ACTIVE, State.WAITING)), [5, *range(5)]),
    "no such state": (Query(states=(State.SKIPPED,)), []),
    "a tag": (Query(tags={"a.b": "1"}), [1, 2]),
    "two tags": (Query(tags={"a.b": "1", "a.c": "2"}), [2]),
    "values of other keys": (Query(tags={"a.c": "1", "a.b": "1"}), []),
    "an unknown tag": (Query(tags={"a.d": "1"}), []),
    "all at once": (
        Query(
            namespace="default",
            partition=7,
            lane="main",
            kind="greet",
            states=(State.DELAYED,),
            tags={"a.b": "2"},
        ),
        [4],
    ),
    "conditions that exclude each other": (Query(namespace="other", lane="main"), []),
    "after": (Query(after=execution_id(2)), [3, 4]),
    "after in another partition": (
        Query(partition=7, after=execution_id(9, partition=5)),
        [*range(5)],
    ),
    "after the partition": (Query(partition=70, after=execution_id(0)), []),
    "limit": (Query(limit=2), [5, 0]),
    "after and limit": (Query(after=execution_id(0), limit=2), [1, 2]),
    "a limit of nothing": (Query(limit=0), []),
}


@pytest.mark.parametrize(("query", "expected"), QUERIES.values(), ids=QUERIES.keys())
async def test_a_query_finds_what_fits(
    store: Store, clock: VirtualClock, query: Query, expected: list[int]
) -> None:
    await put(store, clock, *mixed(clock.now_ms()))
    assert await found(store, query) == expected


@pytest.mark.parametrize(("query", "expected"), QUERIES.values(), ids=QUERIES.keys())
async def test_a_query_counts_what_fits(
    store: Store, clock: VirtualClock, query: Query, expected: list[int]
) -> None:
    await put(store, clock, *mixed(clock.now_ms()))
    unlimited = msgspec.structs.replace(query, limit=100)
    assert await store.count(query) == len(await store.find(unlimited))


async def test_what_was_made_since_a_moment_is_found(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(1), order(3))
    since_ms = clock.advance(1_000)
    await put(store, clock, order(0, kind="send"), order(2))
    assert await found(store, Query(since_ms=since_ms)) == [0, 2]
    assert await found(store, Query(since_ms=since_ms, kind="send")) == [0]
    assert await found(store, Query(since_ms=since_ms + 1)) == []
    assert await store.count(Query(since_ms=since_ms - 1)) == 2


async def test_members_of_a_flow_are_found_by_it(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    for number in (1, 2):
        await put_flow(store, clock, plan("abc", "a>b b>c", flow=flow_id(number)))
    one, other = flow_id(1), flow_id(2)
    members = sorted(member(name, one) for name in "abc")
    assert [row.id for row in await store.find(Query(flow=one))] == members
    assert [row.id for row in await store.find(Query(flow=one, limit=2))] == members[:2]
    page = Query(flow=one, after=members[0])
    assert [row.id for row in await store.find(page)] == members[1:]
    assert (await store.count(Query(flow=other)), await store.count(page)) == (3, 2)
    assert await store.find(Query(flow=one, kind="send")) == []
    assert await store.find(Query(flow=one, states=(State.ACTIVE,))) == []
    assert await store.find(Query(flow=flow_id(404))) == []
    assert await store.find(Query(flow=one, partition=partition_of(members[0]) + 1)) == []


async def test_an_empty_store_has_nothing_to_find(store: Store) -> None:
    assert await store.find(Query()) == []


async def test_rows_are_found_as_they_are(store: Store, clock: VirtualClock) -> None:
    rows = await put(store, clock, *mixed(clock.now_ms()))
    assert await store.find(Query()) == sorted(rows, key=lambda row: row.id)


@pytest.mark.case("LI-020")
async def test_pages_follow_each_other_without_gap_or_overlap(
    store: Store, clock: VirtualClock
) -> None:
    rows = await put(store, clock, *(order(n) for n in range(15)))
    pages = [await store.find(Query(partition=7, limit=5))]
    while pages[-1]:
        pages.append(await store.find(Query(partition=7, limit=5, after=pages[-1][-1].id)))
    assert [len(page) for page in pages] == [5, 5, 5, 0]
    assert [row for page in pages for row in page] == rows


async def test_a_row_is_found_by_what_it_has_become(store: Store, clock: VirtualClock) -> None:
    row = (await put(store, clock, order(0, tags={"a.b": "1"})))[0]
    lease = (await take(store, clock))[0]
    assert await found(store, Query(states=(State.WAITING,))) == []
    assert await found(store, Query(states=(State.ACTIVE,))) == [0]
    await apply(store, clock, complete(lease, clock.now_ms(), b""))
    assert await found(store, Query(states=(State.COMPLETED,))) == [0]
    retagged = set_tags(await head(store, row.id), clock.now_ms(), {"a.b": "2"})
    await apply(store, clock, retagged)
    assert await found(store, Query(tags={"a.b": "1"})) == []
    assert await found(store, Query(tags={"a.b": "2"})) == [0]
