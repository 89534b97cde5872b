"""Fixtures of the engine's tests: a desk on every store."""

from __future__ import annotations

import pytest

from flowfabric.store import Store
from flowfabric.testing.clock import VirtualClock
from tests.engine.desk import Desk


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> Desk:
    desk = Desk(store, clock)
    await desk.engine.open()
    return desk
