"""Races between processes that share one SQLite file."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest

from flowfabric.core.ids import partition_of
from flowfabric.core.model import Query
from flowfabric.core.states import State
from flowfabric.store.sqlite import SqliteStore
from flowfabric.testing.build import execution_id, order, submissions
from flowfabric.testing.conformance.steps import (
    ALL,
)
from tests.conftest import Size
from tests.store.children import Job, run_together
from tests.store.racing import (
    CONTENDERS,
)


async def test_no_row_is_claimed_twice_by_processes(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"), synchronous="NORMAL")
    await store.migrate()
    now_ms = await store.now()
    await store.insert(submissions([order(n) for n in range(1_000)], now_ms), now_ms)
    jobs = [Job("claim_until_empty", number, 5) for number in range(CONTENDERS)]
    answers = await asyncio.to_thread(run_together, tmp_path / "store.db", jobs)
    assert Counter(id for answer in answers for id in answer) == {
        execution_id(n): 1 for n in range(1_000)
    }
    await store.close()


@pytest.mark.lab
async def test_six_processes_share_a_file_and_nobody_starves(tmp_path: Path, size: Size) -> None:
    seconds = 10 if size == "long" else 2
    path = tmp_path / "store.db"
    jobs = [Job("work_for", number, seconds) for number in range(6)]
    answers = await asyncio.to_thread(run_together, path, jobs)
    cycles = [int(answer[0]) for answer in answers]
    sys.stdout.write(f"six processes, {seconds} s: {cycles} cycles\n")
    store = SqliteStore(str(path))
    await store.migrate()
    done = await store.find(Query(states=(State.COMPLETED,), limit=ALL))
    assert Counter(partition_of(row.id) for row in done) == dict(enumerate(cycles))
    await store.close()
    # Waiting in SQLite's own way leaves some with a tenth of what others get, or with nothing.
    mean = sum(cycles) / len(cycles)
    assert min(cycles) >= mean / (2 if size == "long" else 4)
