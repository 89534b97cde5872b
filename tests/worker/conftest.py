"""Fixtures of the worker's tests: a floor on every store."""

from __future__ import annotations

import pytest

from flowfabric.store import Store
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.faults import FaultyStore
from tests.worker.floor import Floor


@pytest.fixture
def faulty(store: Store) -> FaultyStore:
    """Faultless until a test plans something."""
    return FaultyStore(store)


@pytest.fixture
async def floor(faulty: FaultyStore, clock: VirtualClock) -> Floor:
    floor = Floor(faulty, clock)
    await floor.engine.open()
    return floor
