"""Fixtures of the flow tests: a desk on every store."""

from __future__ import annotations

import pytest

from flowfabric.store import Store
from flowfabric.testing.clock import VirtualClock
from tests.flow.desk import FlowDesk


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk
