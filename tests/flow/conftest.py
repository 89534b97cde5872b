"""Fixtures of the flow tests: a desk on every store, and a stage for its rivals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric.store import Store
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.faults import FaultyStore
from tests.corrupter import Raw, raw_client
from tests.flow.desk import FlowDesk
from tests.flow.racing import Stage


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


@pytest.fixture
async def here(faulty: FaultyStore, clock: VirtualClock) -> FlowDesk:
    """A desk whose engine also works: it keeps the flows that it makes."""
    desk = FlowDesk(faulty, clock)
    await desk.engine.open()
    desk.engine.known.begin()
    return desk


@pytest.fixture
def raw(store: Store) -> Raw:
    return raw_client(store)


@pytest.fixture
def stage(desk: FlowDesk, store_kind: str, tmp_path: Path) -> Iterator[Stage]:
    """Threads take turns far more often than they do by themselves."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield Stage(desk, store_kind, tmp_path)
    sys.setswitchinterval(usual)
