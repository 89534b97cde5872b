"""Fixtures of the worker's tests: a floor on every store."""

from __future__ import annotations

import pytest

from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.faults import FaultyStore
from tests.worker.floor import Floor


@pytest.fixture
async def floor(faulty: FaultyStore, clock: VirtualClock) -> Floor:
    floor = Floor(faulty, clock)
    await floor.engine.open()
    return floor
