"""Time of a partition: it never goes back, also when another server's clock is behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from flowfabric.core.lifecycle import complete, renew
from flowfabric.core.model import Lease
from flowfabric.core.transition import Rejected, Transition
from flowfabric.store import open_store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import TTL_MS, order
from flowfabric.testing.conformance.steps import put, put_and_take
from tests.servers import store_url

BEHIND_MS = 300

Open = Callable[[VirtualClock], Awaitable[ValkeyStore]]


@pytest.fixture(params=["valkey", "valkey-cluster"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the same store again, on servers with another clock."""
    stores: list[ValkeyStore] = []

    async def open_with(clock: VirtualClock) -> ValkeyStore:
        store = open_store(store_url(str(request.param), tmp_path / "store"), clock=clock)
        assert isinstance(store, ValkeyStore)
        await store.migrate()
        stores.append(store)
        return store

    yield open_with
    await stores[0].drop()
    for store in stores:
        await store.close()


def late_words(lease: Lease, now_ms: int) -> list[Transition]:
    return [renew(lease, now_ms, TTL_MS), complete(lease, now_ms, b"late")]


async def test_a_lease_that_was_over_is_not_alive_again_on_a_server_that_is_behind(
    opened: Open, clock: VirtualClock
) -> None:
    """The new primary of a partition has another clock than the one that served it before."""
    store = await opened(clock)
    lease = await put_and_take(store, clock, order(0))
    clock.set(lease.until_ms)
    await put(store, clock, order(1))

    behind = VirtualClock(lease.until_ms - BEHIND_MS)
    other = await opened(behind)
    for late in late_words(lease, behind.now_ms()):
        answers = await other.apply([late], behind.now_ms())
        assert answers == [Rejected(lease.id, lease.head)]
