"""Opening and closing a store, and its clock."""

from __future__ import annotations

from flowfabric.store.protocol import Store
from flowfabric.testing.build import order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import contents, put, take


async def test_migrating_again_answers_the_same_counts(store: Store) -> None:
    assert await store.migrate() == await store.migrate()


async def test_migrating_again_keeps_what_is_there(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, tags={"a.b": "c"}), order(1, key="k", digest="d"))
    await take(store, clock)
    before = await contents(store)

    await store.migrate()

    assert await contents(store) == before


async def test_closing_twice_is_harmless(store: Store) -> None:
    await store.close()
    await store.close()


async def test_a_store_that_was_never_used_is_empty(store: Store) -> None:
    assert await contents(store) == ([], [], [], [], [], [], [])


async def test_now_is_the_time_of_the_stores_clock(store: Store, clock: VirtualClock) -> None:
    assert await store.now() == clock.now_ms()
    clock.advance(12_345)
    assert await store.now() == clock.now_ms()
