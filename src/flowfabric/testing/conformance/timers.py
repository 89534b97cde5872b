"""Timers: which rows are due, soonest first, and when the next one will be."""

from __future__ import annotations

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import complete, delay, renew
from flowfabric.core.model import DueBatch
from flowfabric.core.operator import block, unblock
from flowfabric.core.states import Reason, State
from flowfabric.core.timers import on_due
from flowfabric.store.protocol import Store
from flowfabric.testing.build import TTL_MS, execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, contents, head, put, put_and_take


async def put_delayed(store: Store, clock: VirtualClock, *delays_ms: int) -> list[ExecutionId]:
    now_ms = clock.now_ms()
    orders = [order(n, delay_until_ms=now_ms + delay) for n, delay in enumerate(delays_ms)]
    return [row.id for row in await put(store, clock, *orders)]


def ids(batch: DueBatch) -> list[ExecutionId]:
    return [row.id for row in batch.rows]


async def test_nothing_is_due_in_an_empty_store(store: Store, clock: VirtualClock) -> None:
    assert await store.due(clock.now_ms(), 10) == DueBatch([], None)


async def test_rows_without_a_timer_are_never_due(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    assert await store.due(clock.now_ms() + 10**12, 10) == DueBatch([], None)


async def test_a_row_is_due_at_its_instant_and_not_before(
    store: Store, clock: VirtualClock
) -> None:
    await put_delayed(store, clock, 100)
    due_ms = clock.now_ms() + 100
    assert await store.due(due_ms - 1, 10) == DueBatch([], due_ms)
    assert await store.due(due_ms, 10) == DueBatch([await head(store, execution_id(0))], None)


async def test_the_soonest_comes_first_then_the_smallest_id(
    store: Store, clock: VirtualClock
) -> None:
    await put_delayed(store, clock, 30, 10, 20, 10, 40)
    batch = await store.due(clock.now_ms() + 30, 10)
    assert ids(batch) == [execution_id(n) for n in (1, 3, 2, 0)]
    assert batch.next_ms == clock.now_ms() + 40


async def test_no_more_than_the_limit_comes_at_once(store: Store, clock: VirtualClock) -> None:
    await put_delayed(store, clock, *range(1, 8))
    batch = await store.due(clock.now_ms() + 5, 3)
    assert ids(batch) == [execution_id(n) for n in range(3)]
    assert batch.next_ms == clock.now_ms() + 6


async def test_looking_does_not_take(store: Store, clock: VirtualClock) -> None:
    await put_delayed(store, clock, 1, 2)
    before = await contents(store)
    assert await store.due(clock.now_ms() + 5, 5) == await store.due(clock.now_ms() + 5, 5)
    assert await contents(store) == before


async def test_a_row_that_was_handled_is_not_due_again(store: Store, clock: VirtualClock) -> None:
    first, second = await put_delayed(store, clock, 10, 20)
    clock.advance(10)
    await apply(store, clock, on_due(await head(store, first), clock.now_ms()).transition)
    assert (await head(store, first)).state is State.WAITING
    assert await store.due(clock.now_ms(), 10) == DueBatch([], clock.now_ms() + 10)
    clock.advance(10)
    assert ids(await store.due(clock.now_ms(), 10)) == [second]


async def test_what_is_over_has_no_timer(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, deadline_ms=clock.now_ms() + 50))
    await apply(store, clock, complete(lease, clock.now_ms(), b""))
    assert await store.due(clock.now_ms() + 10**12, 10) == DueBatch([], None)


async def test_every_state_with_a_timer_is_due(store: Store, clock: VirtualClock) -> None:
    now_ms = clock.now_ms()
    rows = await put(
        store,
        clock,
        order(0, delay_until_ms=now_ms + 1),
        order(1, deadline_ms=now_ms + 2),
        order(2),
    )
    await apply(store, clock, block(rows[2], now_ms, Reason.WAITING_FOR_BUDGET))
    lease = await put_and_take(store, clock, order(3))
    await apply(store, clock, delay(lease, now_ms, now_ms + 4))
    await put_and_take(store, clock, order(4))
    batch = await store.due(now_ms + TTL_MS, 10)
    assert ids(batch) == [execution_id(n) for n in (0, 1, 3, 2, 4)]


async def test_a_timer_that_moved_is_due_at_its_new_instant_only(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    row = (await put(store, clock, order(0, deadline_ms=now_ms + 60_000)))[0]
    await apply(store, clock, block(row, now_ms, Reason.WAITING_FOR_QUOTA))
    assert (await store.due(now_ms, 10)).next_ms == now_ms + 5_000
    await apply(store, clock, unblock(await head(store, row.id), now_ms))
    assert await store.due(now_ms + 59_999, 10) == DueBatch([], now_ms + 60_000)


async def test_an_early_timer_is_armed_again(store: Store, clock: VirtualClock) -> None:
    """A renewal leaves the timer where it was; when it fires, it moves to the truth."""
    lease = await put_and_take(store, clock, order(0))
    clock.advance(TTL_MS // 2)
    await apply(store, clock, renew(lease, clock.now_ms(), TTL_MS))
    clock.advance(TTL_MS - TTL_MS // 2)
    batch = await store.due(clock.now_ms(), 10)
    assert ids(batch) == [lease.id]

    early = on_due(await head(store, lease.id), clock.now_ms())
    assert early.duty is None
    await apply(store, clock, early.transition)

    after_ms = clock.now_ms() + TTL_MS // 2
    assert await store.due(clock.now_ms(), 10) == DueBatch([], after_ms)
    await apply(store, clock, complete(lease, clock.now_ms(), b""))
