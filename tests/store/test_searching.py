"""Finding in parts: whatever is looked at in one statement, the same is found and counted."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.lifecycle import Order, complete
from flowfabric.core.model import Query, Queue
from flowfabric.core.states import State
from flowfabric.store import searching
from flowfabric.store.memory import MemoryStore
from flowfabric.store.protocol import Store
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import put_flow
from flowfabric.testing.conformance.steps import apply, put, take
from flowfabric.testing.flows import FLOW, plan

FEW, OPEN = 3, (State.WAITING, State.ACTIVE, State.DELAYED, State.ORPHANED, State.REVOKED)
QUERIES = [
    Query(),
    Query(namespace="default"),
    Query(namespace="default", states=(State.COMPLETED,)),
    Query(namespace="default", states=OPEN),
    Query(namespace="other", states=OPEN),
    Query(states=(State.ACTIVE,)),
    Query(kind="send"),
    Query(lane="second", kind="send"),
    Query(tags={"a.b": "0"}),
    Query(tags={"a.b": "1", "a.c": "1"}),
    Query(tags={"a.b": "9"}),
    Query(partition=7, tags={"a.c": "1"}),
    Query(flow=FLOW),
    Query(flow=FLOW, states=(State.BLOCKED_DEPENDENCIES,)),
]


def some(now_ms: int) -> list[Order]:
    return [
        order(
            number,
            id=execution_id(number, partition=(7, 70, 9)[number % 3]),
            namespace="other" if number % 5 == 0 else "default",
            lane="second" if number % 2 else "main",
            kind="send" if number % 4 == 1 else "greet",
            delay_until_ms=now_ms + 1_000 if number % 7 == 0 else None,
            tags={"a.b": str(number % 2), "a.c": str(number % 6)},
        )
        for number in range(24)
    ]


async def furnish(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, *some(clock.now_ms()))
    await put_flow(store, clock, plan("abcde", "a>b b>c"))
    for lease in (await take(store, clock, 6))[:3]:
        await apply(store, clock, complete(lease, clock.now_ms(), b""))


async def pages(store: Store, query: Query, limit: int) -> list[str]:
    found: list[str] = []
    page = msgspec.structs.replace(query, limit=limit)
    while rows := await store.find(page):
        found += [row.id for row in rows]
        page = msgspec.structs.replace(page, after=rows[-1].id)
    return found


@pytest.mark.parametrize("candidates", [1, FEW, 1_000])
async def test_small_parts_find_the_same_as_one_look(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, candidates: int
) -> None:
    model = MemoryStore(clock)
    for each in (store, model):
        await furnish(each, clock)
    monkeypatch.setattr(searching, "CANDIDATES", candidates)
    for size in (1, FEW):
        monkeypatch.setattr(searching, "STRETCH", size)
        monkeypatch.setattr(searching, "AT_ONCE", size)
        for query in QUERIES:
            expected = [row.id for row in await model.find(query)]
            assert await pages(store, query, 2) == expected, query
            assert await pages(store, query, 100) == expected, query
            assert await store.count(query) == len(expected), query


def test_a_route_that_was_told_of_in_part_waits_for_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searching, "PAIRS", 3)
    told = [("a", 2, 50), ("a", 1, 40), ("b", 1, 10)]
    assert searching.queues_of(told, 10, 100) == [Queue("a", 3, 40)]
    assert searching.queues_of(told[:2], 10, 100) == [Queue("a", 3, 40)]
    alone = [("a", 2, 50), ("a", 1, 40), ("a", 9, 30)]
    assert searching.queues_of(alone, 10, 100) == [Queue("a", 12, 30, is_more=True)]
