"""Changesets of several partitions at once: each is guarded, written and indexed by itself."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Feed
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset, Held, Transition
from flowfabric.store.valkey import ValkeyStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import TOKEN, execution_id, order
from flowfabric.testing.conformance.steps import head, put, take
from tests.store.valkey.conftest import Opener
from tests.store.valkey.test_verifying import verified

IDS = [execution_id(number, partition=number) for number in (1, 2, 3)]


@pytest.fixture
async def store(url: str, opener: Opener, clock: VirtualClock) -> ValkeyStore:
    store = opener(url)
    await store.migrate()
    for id in IDS:
        await put(store, clock, order(id=id))
    return store


async def test_alike_ones_of_other_partitions_are_written_where_they_belong(
    store: ValkeyStore, clock: VirtualClock
) -> None:
    ends = await _ends(store, clock)
    stale = msgspec.structs.replace(ends[1], guard=Held(9, TOKEN))
    batch = [Changeset([end]) for end in (ends[0], stale, ends[2])]
    assert await store.commit_each(batch, clock.now_ms()) == [True, False, True]
    states = [(await head(store, id)).state for id in IDS]
    assert states == [State.COMPLETED, State.ACTIVE, State.COMPLETED]
    assert await verified(store) == 0
    told = await store.tail(Feed(states=(State.COMPLETED,)))
    assert sorted(event.execution for event in told) == [IDS[0], IDS[2]]


async def test_one_server_gets_one_call(store: ValkeyStore, clock: VirtualClock) -> None:
    batch = [Changeset([end]) for end in await _ends(store, clock)]
    before = store.trips.count
    assert await store.commit_each(batch, clock.now_ms()) == [True] * 3
    assert store.trips.count.since(before).statements == (1 if store.keys.inline else 3)


async def _ends(store: ValkeyStore, clock: VirtualClock) -> list[Transition]:
    leases = {lease.id: lease for lease in await take(store, clock, limit=3)}
    return [complete(leases[id], clock.now_ms(), b"1") for id in IDS]
