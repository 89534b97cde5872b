"""Processes killed while they make the file of a SQLite store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowfabric.testing.crash import Victim
from tests.conftest import Size
from tests.crash.lab import Lab

pytestmark = pytest.mark.lab

TICKS_TO_OPEN = 25


async def test_a_process_may_die_while_it_makes_the_file(tmp_path: Path, size: Size) -> None:
    ticks = range(1, TICKS_TO_OPEN + 1, 1 if size == "long" else 12)
    for tick in ticks:
        path = tmp_path / f"{tick}.db"
        lab = Lab(f"sqlite:///{path}", path)
        await lab.kill([Victim(seed=0, tick=tick)])
        await lab.kill([Victim(seed=1, lines=1)])
        assert lab.told.submitted
    sys.stdout.write(f"{len(ticks)} processes died while they made the file\n")
