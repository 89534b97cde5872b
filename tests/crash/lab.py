"""One store through many deaths of the processes that work on it; what must be there after each.

No test lives here.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution
from flowfabric.core.states import TERMINAL, State
from flowfabric.engine.engine import Engine
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.store import open_store
from flowfabric.store.clock import SKEW_LIMIT_MS, SystemClock
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.crash import (
    LANE,
    TASK,
    TTL_MS,
    Acknowledged,
    Victim,
    result_of,
    run_and_kill,
)
from flowfabric.testing.invariants import broken, broken_promises
from flowfabric.testing.picture import Picture, look

HOUR_MS = 3_600_000


def integrity(path: Path) -> str:
    with sqlite3.connect(path) as raw:
        return str(raw.execute("PRAGMA integrity_check").fetchone()[0])


def unkept(picture: Picture, told: Acknowledged) -> list[str]:
    """What was acknowledged and is not there."""
    lost = [f"{id} was submitted" for id in told.submitted if picture.row(id) is None]
    for id, epoch in told.completed:
        end = picture.ends.get(id)
        if end is None or (end.state, end.result) != (State.COMPLETED, result_of(id, epoch)):
            lost.append(f"{id} was completed by epoch {epoch}, and is {end}")
    for id, epoch in told.appended:
        if halves(picture, id)[epoch] != 2:
            lost.append(f"{id} was appended to in epoch {epoch}, and has {halves(picture, id)}")
    found = Counter({each.name: each.rev for each in picture.documents})
    lost += [f"{name} has no revision {rev}" for name, rev in told.documents if found[name] < rev]
    return lost


def halves(picture: Picture, id: ExecutionId) -> Counter[int]:
    """How many entries were written in each epoch: two belong together."""
    return Counter(entry.epoch for entry in picture.entries.get(id, []))


def half_appended(picture: Picture) -> list[str]:
    return [id for id in picture.entries if set(halves(picture, id).values()) - {2}]


def half_written(picture: Picture) -> list[str]:
    """Documents whose words are not those by which they are found: here each has one."""
    times = Counter(document.name for document in picture.documents)
    return [name for name, count in times.items() if count != 2]


def doubled(picture: Picture) -> list[str]:
    """What ran to completion more than once."""
    times = Counter(line.execution for line in picture.log if line.kind == "completed")
    return [id for id, count in times.items() if count > 1]


async def finish_all(engine: Engine, clock: VirtualClock) -> list[Execution]:
    """Work off everything that is left, as the last worker; answers what would not finish."""
    timekeeper = Timekeeper(engine.store, engine.clock)
    unfinished: list[Execution] = []
    for number in range(100):
        while (await timekeeper.run_once()).again:
            pass
        leases = await engine.claim(
            (LANE,),
            500,
            tasks=[TASK],
            worker="last",
            token=f"last-{number}-{clock.now_ms()}",
            ttl_ms=TTL_MS,
        )
        for lease in leases:
            await engine.complete(lease, result_of(lease.id, lease.epoch))
        rows = (await look(engine.store, clock.now_ms())).rows
        unfinished = [row for row in rows if row.state not in TERMINAL]
        if not unfinished:
            return []
        clock.advance(TTL_MS)
    return unfinished


class Lab:
    """One store through many deaths. What was ever acknowledged must be there after each."""

    def __init__(self, url: str, file: Path | None = None) -> None:
        self._url = url
        self._file = file
        self.told = Acknowledged([], [], [], [])
        self.executions = 0
        self._ahead_ms = 0

    async def kill(self, victims: Sequence[Victim]) -> None:
        """One round: they work, they die, and somebody else finds everything in order."""
        heard = await asyncio.to_thread(run_and_kill, self._url, victims, self._ahead_ms)
        self.told.submitted.extend(heard.submitted)
        self.told.completed.extend(heard.completed)
        self.told.documents.extend(heard.documents)
        self.told.appended.extend(heard.appended)
        assert self._file is None or integrity(self._file) == "ok"
        # Past the end of every lease, so that nobody has to wait for them.
        self._ahead_ms += HOUR_MS
        clock = VirtualClock(SystemClock().now_ms() + self._ahead_ms)
        engine = Engine(open_store(self._url, clock=clock), clock=clock)
        await engine.open()
        try:
            await self._check(engine, clock)
            assert await finish_all(engine, clock) == []
            await self._check(engine, clock)
            self._ahead_ms += HOUR_MS
        finally:
            await engine.close()

    async def _check(self, engine: Engine, clock: VirtualClock) -> None:
        picture = await look(engine.store, clock.now_ms())
        assert broken(picture, skew_ms=SKEW_LIMIT_MS) == []
        assert await broken_promises(engine.store, clock.now_ms()) == []
        assert unkept(picture, self.told) == []
        assert doubled(picture) == []
        assert half_written(picture) == []
        assert half_appended(picture) == []
        self.executions = len(picture.rows)

    def __str__(self) -> str:
        return (
            f"{len(self.told.submitted)} submits and {len(self.told.completed)} completions "
            f"acknowledged, {self.executions} executions, none lost, none doubled"
        )
