"""Upkeep, the same on every store: what is pending, what is there, and nothing after a drop."""

from __future__ import annotations

import pytest

from flowfabric.core.model import Feed, Query
from flowfabric.store import Store
from flowfabric.store.upkeep import Upkeep
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order
from flowfabric.testing.conformance.steps import put
from tests.servers import DURABLE


def keeping(store: Store) -> Upkeep:
    assert isinstance(store, Upkeep)
    return store


async def rows_of(store: Store) -> dict[str, int]:
    return {part.name: part.rows for part in await keeping(store).sizes()}


async def test_nothing_is_pending_once_it_is_set_up(store: Store) -> None:
    assert await keeping(store).unmigrated() == []


async def test_every_part_is_counted(store: Store, clock: VirtualClock) -> None:
    before = await rows_of(store)
    await put(store, clock, order(0), order(1), order(2))
    after = await rows_of(store)
    assert after["execution"] - before["execution"] == 3
    assert sum(after.values()) > sum(before.values()) + 3
    assert sum(part.bytes for part in await keeping(store).sizes()) > 0


@pytest.mark.parametrize("store_kind", DURABLE)
async def test_what_was_dropped_has_no_parts(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    await keeping(store).drop()
    assert await keeping(store).sizes() == []


async def test_what_was_dropped_can_be_set_up_again_and_is_empty(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    cursor = (await store.tail(Feed()))[-1].cursor
    await keeping(store).drop()
    await keeping(store).drop()
    await store.migrate()
    assert await store.find(Query()) == []
    assert await store.tail(Feed()) == []
    assert await store.lanes("", 10) == []
    await put(store, clock, order(0))
    assert (await store.tail(Feed()))[-1].cursor != cursor
