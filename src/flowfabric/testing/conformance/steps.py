"""Steps that many tests of the suite take. No test lives here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from flowfabric.core.documents import AnyDocument, DocumentQuery
from flowfabric.core.entries import Kept, Topic
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import (
    Ended,
    Event,
    Execution,
    Feed,
    Lane,
    Lease,
    Loaded,
    Malformed,
    Query,
    Want,
)
from flowfabric.core.transition import Applied, Changeset, Rejected, Transition
from flowfabric.store.protocol import Store
from flowfabric.testing.build import KIND, LANE, NAMESPACE, TOKEN, TTL_MS, WORKER, ask, submissions
from flowfabric.testing.clock import VirtualClock

T = TypeVar("T")
Corrupter = Callable[[ExecutionId], Awaitable[None]]

ALL = 1_000_000
# What tests write to when it does not matter which.
TOPIC, DOCUMENT_KIND = "notes", "red"
FAR_MS = 10**14


class Contents(NamedTuple):
    """Everything that a store can be asked for: two of them are equal if nothing was written."""

    loaded: list[Loaded | None]
    ends: list[Ended | None]
    timers: list[Execution | Malformed]
    events: list[Event]
    lanes: list[Lane]
    entries: list[list[Kept]]
    documents: list[AnyDocument]


async def contents(store: Store) -> Contents:
    ids = [row.id for row in await store.find(Query(limit=ALL))]
    want = Want(ids=ids, payload=True, tags=True, attempts=True)
    return Contents(
        await store.load(want),
        await store.endings(ids),
        (await store.due(FAR_MS, ALL)).rows,
        await store.tail(Feed(limit=ALL)),
        await store.lanes("", ALL),
        await store.entries([Topic(id, TOPIC) for id in ids]),
        await store.documents(DocumentQuery(kind=DOCUMENT_KIND, namespace=NAMESPACE, limit=ALL)),
    )


async def put(store: Store, clock: VirtualClock, *orders: Order) -> list[Execution]:
    """Insert these; answers their heads as the store has them."""
    now_ms = clock.now_ms()
    answers = await store.insert(submissions(orders, now_ms), now_ms)
    assert [answer.created for answer in answers] == [True] * len(orders)
    return [await head(store, order.id) for order in orders]


async def take(
    store: Store,
    clock: VirtualClock,
    limit: int = 1,
    *,
    token: str = TOKEN,
    worker: str = WORKER,
    lanes: tuple[str, ...] = (LANE,),
    tasks: tuple[str, ...] = (KIND,),
    ttl_ms: int = TTL_MS,
    start: bool = True,
    only: ExecutionId | None = None,
) -> list[Lease]:
    """Claim; answers exactly as many leases as were asked for."""
    leases = await store.claim(
        ask(
            clock.now_ms(),
            limit=limit,
            token=token,
            worker=worker,
            lanes=lanes,
            tasks=tasks,
            ttl_ms=ttl_ms,
            start=start,
            only=only,
        )
    )
    assert len(leases) == limit
    return leases


async def put_and_take(store: Store, clock: VirtualClock, order: Order) -> Lease:
    await put(store, clock, order)
    return (await take(store, clock, only=order.id, lanes=(order.lane,), tasks=(order.kind,)))[0]


async def head(store: Store, id: ExecutionId) -> Execution:
    loaded = (await store.load(Want(ids=[id])))[0]
    assert loaded is not None
    return loaded.head


async def loaded(store: Store, id: ExecutionId) -> Loaded:
    """With everything that can be asked for."""
    want = Want(ids=[id], payload=True, tags=True, attempts=True)
    found = (await store.load(want))[0]
    assert found is not None
    return found


async def result(store: Store, id: ExecutionId) -> bytes:
    """What somebody who waits for it gets."""
    ended = (await store.endings([id]))[0]
    assert ended is not None
    return ended.result


async def apply(store: Store, clock: VirtualClock, *transitions: Transition) -> None:
    """Apply these; every guard must hold."""
    answers = await store.apply(transitions, clock.now_ms())
    assert answers == [Applied(transition.id) for transition in transitions]


async def refuse(store: Store, clock: VirtualClock, transition: Transition) -> Rejected:
    """Apply one whose guard must not hold; nothing may change by it."""
    before = await contents(store)
    answers = await store.apply([transition], clock.now_ms())
    assert len(answers) == 1
    refused = answers[0]
    assert isinstance(refused, Rejected)
    assert await contents(store) == before
    return refused


async def commit(store: Store, clock: VirtualClock, transitions: Sequence[Transition] = ()) -> None:
    """Commit these; every guard must hold."""
    assert await store.commit(Changeset(transitions), clock.now_ms())


def in_threads(count: int, work: Callable[[int], Awaitable[T]]) -> list[T]:
    """Run the work in as many threads at once, each with an event loop of its own."""
    start = threading.Barrier(count)

    async def run(number: int) -> T:
        start.wait()
        return await work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda number: asyncio.run(run(number)), range(count)))
