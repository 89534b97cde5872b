"""Fixtures of the flow tests: a desk on every store."""

from __future__ import annotations

import pytest

from flowfabric.store import Store
from flowfabric.testing.clock import VirtualClock
from tests.corrupter import Raw, raw_client
from tests.flow.desk import FlowDesk


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


@pytest.fixture
def raw(store: Store) -> Raw:
    return raw_client(store)
