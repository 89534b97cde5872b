"""Random histories against the engine on the memory store and on SQLite."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, settings

from flowfabric.store.memory import MemoryStore
from flowfabric.testing.machine import play

pytestmark = pytest.mark.lab


def test_x() -> None:
    tally = play(
        lambda clock: [MemoryStore(clock)],
        settings(max_examples=100, stateful_step_count=50, suppress_health_check=list(HealthCheck)),
    )
    sys.stdout.write(f"{tally}\n")
