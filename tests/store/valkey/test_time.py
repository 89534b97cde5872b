"""Time of a partition: it never goes back, also when another server's clock is behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from flowfabric.core.lifecycle import complete, renew
from flowfabric.core.model import Lease, Query
from flowfabric.core.states import State
from flowfabric.core.transition import Rejected, Transition
from flowfabric.errors import ClockSkew
from flowfabric.store import open_store
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.link import Cell
from flowfabric.store.valkey.writing import Moment
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import TTL_MS, ask, execution_id, order
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


class Passing(Moment):
    """Time that passes too far during a call: after it was looked at so often."""

    left: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        self.left -= 1
        passed_ms = 0 if self.left >= 0 else SKEW_LIMIT_MS + 1
        return Moment(self.now_ms, self.now_ms + passed_ms).cells


@pytest.mark.parametrize("looks", range(7))
async def test_what_a_slow_claim_took_is_answered_or_not_taken(
    opened: Open, clock: VirtualClock, looks: int
) -> None:
    """In a cluster a claim is several calls, and any of them may come too late for its time."""
    store = await opened(clock)
    counts = await store.migrate()
    for partition in (3, 200):
        await put(store, clock, order(id=execution_id(partition, partition=partition)))
    slow = Passing(clock.now_ms(), None)
    slow.left = looks
    try:
        leases = await store._claiming.claim(ask(clock.now_ms(), limit=5), slow, counts)
    except ClockSkew:
        leases = []
    held = await store.find(Query(states=(State.ACTIVE,)))
    assert [row.id for row in held] == sorted(lease.id for lease in leases)
