"""What is ready, route by route: how many, and the oldest."""

from __future__ import annotations

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Queue
from flowfabric.core.operator import Source, cancel
from flowfabric.store.protocol import Store
from flowfabric.testing.build import NAMESPACE, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, head, put, take

DEPTH = 100


async def queues(store: Store, after: str = "", limit: int = 10, depth: int = DEPTH) -> list[Queue]:
    return await store.queues(NAMESPACE, after, limit, depth)


async def test_an_empty_store_has_nothing_ready(store: Store) -> None:
    assert await queues(store) == []


async def test_what_is_ready_is_told_by_route_with_the_oldest(
    store: Store, clock: VirtualClock
) -> None:
    first_ms = clock.now_ms()
    await put(store, clock, order(0, lane="b", kind="mail"), order(1, lane="b", kind="mail"))
    later_ms = clock.advance(1_000)
    # The one that goes first is not the oldest.
    await put(
        store,
        clock,
        order(2, lane="b", kind="mail", priority=9),
        order(3, lane="a c", kind="mail"),
        order(4, lane="b", kind="report", delay_until_ms=later_ms + 1_000),
        order(5, lane="b", kind="mail", namespace="other"),
    )
    mail, other = Queue("b mail", 3, first_ms), Queue("a c mail", 1, later_ms)
    assert await queues(store) == [other, mail]
    assert await queues(store, after="a c mail") == [mail]
    assert await queues(store, limit=1) == [other]
    assert await queues(store, after="b mail") == []
    assert await store.queues("other", "", 10, DEPTH) == [Queue("b mail", 1, later_ms)]


async def test_a_deep_queue_is_counted_up_to_a_number(store: Store, clock: VirtualClock) -> None:
    made_ms = clock.now_ms()
    await put(store, clock, *(order(n, priority=n % 3) for n in range(9)))
    (exact,) = await queues(store, depth=9)
    assert exact == Queue("main greet", 9, made_ms)
    assert await queues(store, depth=8) == [Queue("main greet", 8, made_ms, is_more=True)]
    assert await queues(store, depth=2) == [Queue("main greet", 2, made_ms, is_more=True)]


async def test_what_is_not_ready_any_more_is_not_told(store: Store, clock: VirtualClock) -> None:
    rows = await put(store, clock, order(0), order(1), order(2))
    (lease,) = await take(store, clock, 1)
    assert [each.ready for each in await queues(store)] == [2]
    await apply(store, clock, complete(lease, clock.now_ms(), b""))
    for row in rows:
        if row.id != lease.id:
            seen = await head(store, row.id)
            await apply(store, clock, cancel(seen, clock.now_ms(), "", source=Source.OPERATOR))
    assert await queues(store) == []
