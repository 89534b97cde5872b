"""A file that is moved away under its processes: what is acknowledged is in the file that the path
names at that moment, and everything goes on in the new one."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import flowfabric as ff
from flowfabric.core.ids import parse_execution_id
from flowfabric.errors import StoreMismatch, StoreUnavailable
from tests.chaos.crew import Crew
from tests.chaos.pace import rest
from tests.chaos.program import make

pytestmark = pytest.mark.lab

MOVES = int(os.environ.get("FLOWFABRIC_CHAOS_MOVES") or 20)
SEED = int(os.environ.get("FLOWFABRIC_CHAOS_SEED") or 2026)
ENDINGS = ("", "-wal", "-shm")
STAY_SECONDS = (0.5, 4.0)
AT_ONCE = 20


class Client:
    """Submits without end, and remembers which file was there when it got an answer."""

    def __init__(self, path: Path) -> None:
        self.acknowledged: dict[int, set[str]] = {}
        self.refused = 0
        self.moves = 0
        self._path = path
        self._is_done = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._is_done.is_set()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._is_done.set()

    async def _run(self) -> None:
        while not self.is_over:
            app, work = make(f"sqlite:///{self._path}")
            try:
                await app.connect()
                await self._submit(app, work)
            except (StoreMismatch, StoreUnavailable):
                self.refused += 1
            finally:
                await app.close()

    async def _submit(self, app: ff.App, work: ff.Task[..., str]) -> None:
        while not self.is_over:
            moves = self.moves
            handles = await app.start_many([work.bind(0.0, 0) for _ in range(AT_ONCE)])
            if moves == self.moves:
                known = self.acknowledged.setdefault(moves, set())
                known.update(parse_execution_id(handle.id) for handle in handles)
            await rest(0.01)

    def finish(self) -> None:
        self._is_done.set()


def move_away(path: Path, folder: Path) -> None:
    folder.mkdir()
    for ending in ENDINGS:
        path.with_name(path.name + ending).rename(folder / (path.name + ending))


def ids_in(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    try:
        return {id for (id,) in connection.execute("SELECT id FROM execution")}
    finally:
        connection.close()


async def test_what_is_acknowledged_is_in_the_file_that_the_path_names(
    tmp_path: Path, progress: Callable[[str], None]
) -> None:
    chance = random.Random(SEED)
    path = tmp_path / "moved.db"
    client = Client(path)
    submitting = asyncio.create_task(client.run())
    crew = Crew(f"sqlite:///{path}", tmp_path, workers=2, engines=1)
    try:
        for number in range(MOVES):
            await _stay(client, crew, number, chance.uniform(*STAY_SECONDS))
            # What is acknowledged while the names change may be in either file.
            client.moves = -1
            move_away(path, tmp_path / str(number))
            client.moves = number + 1
            progress(f"moved {number + 1} times; {client.refused} refusals")
        await _stay(client, crew, MOVES, 1.0)
        client.finish()
        await submitting
    finally:
        client.finish()
        await asyncio.to_thread(crew.close)
    files = [*(tmp_path / str(number) / path.name for number in range(MOVES)), path]
    assert _lost(client, files) == []
    sys.stdout.write(f"{MOVES} moves, {client.refused} refusals, {_count(client)} acknowledged\n")


async def _stay(client: Client, crew: Crew, number: int, seconds: float) -> None:
    """Until something was acknowledged in this file, and then a while."""
    while not client.acknowledged.get(number) and not client.is_over:
        crew.tend()
        await rest(0.05)
    await rest(seconds)


def _lost(client: Client, files: Sequence[Path]) -> list[str]:
    found: list[str] = []
    for number, file in enumerate(files):
        missing = client.acknowledged.get(number, set()) - ids_in(file)
        found += [f"{id} was acknowledged and is not in file {number}" for id in sorted(missing)]
    return found


def _count(client: Client) -> int:
    return sum(len(ids) for number, ids in client.acknowledged.items() if number >= 0)
