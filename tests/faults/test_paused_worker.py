"""A worker stopped by the machine for longer than its lease: another does its work once more."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from flowfabric.core.ids import parse_execution_id
from flowfabric.core.model import Want
from flowfabric.core.states import AttemptLifecycle
from flowfabric.store import open_store
from tests.app.stage import PATIENCE_SECONDS, kinds
from tests.conftest import discard
from tests.servers import DURABLE, store_url
from tests.worker.process import make
from tests.worker.processes import Process, process

OPTIONS = ("0s", "5s")
FILE = "shared.db"


@pytest.fixture(params=DURABLE)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    url = store_url(str(request.param), tmp_path / FILE)
    yield url
    await discard(open_store(url))


def can_be_written(file: Path) -> bool:
    """A process stopped in the middle of a transaction keeps SQLite's only write lock."""
    with closing(sqlite3.connect(file, timeout=1)) as probe:
        try:
            probe.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


async def stop_between_writes(process: Process, file: Path) -> None:
    process.send(signal.SIGSTOP)
    while file.exists() and not await asyncio.to_thread(can_be_written, file):
        process.send(signal.SIGCONT)
        process.send(signal.SIGSTOP)


async def test_a_worker_stopped_past_its_lease_is_refused_and_its_work_runs_once_more(
    url: str, tmp_path: Path
) -> None:
    app, work, _ = make(url)
    with process(url, *OPTIONS) as paused:
        handle = await work.start("job", waits=True)
        assert await paused.says() == "began job"
        await stop_between_writes(paused, tmp_path / FILE)
        with process(url, *OPTIONS) as other:
            assert await other.says() == "began job"
            other.go_on()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await handle.result() == f"job done by {other.id}"
        paused.go_on()
        paused.send(signal.SIGCONT)
        paused.send(signal.SIGTERM)
        assert await paused.says() == "bye"
    (loaded,) = await app.engine.store.load(
        Want(ids=[parse_execution_id(handle.id)], attempts=True)
    )
    assert loaded is not None
    assert [attempt.lifecycle for attempt in loaded.attempts] == [
        AttemptLifecycle.INTERRUPTED_RECLAIMED,
        AttemptLifecycle.ENDED_SUCCESS,
    ]
    assert (await kinds(handle)).count("completed") == 1
    assert await handle.result() == f"job done by {other.id}"
    await app.close()
