"""Processes killed with SIGKILL in the middle of their work: nothing lost, nothing doubled."""

from __future__ import annotations

import random
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest

from flowfabric.core.model import Execution
from flowfabric.core.states import TERMINAL, State
from flowfabric.engine.engine import Engine
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.store.clock import SKEW_LIMIT_MS, SystemClock
from flowfabric.store.sqlite import SqliteStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.crash import LANE, TTL_MS, Acknowledged, result_of, run_and_kill
from flowfabric.testing.invariants import broken
from flowfabric.testing.picture import Picture, look
from tests.conftest import Size

pytestmark = pytest.mark.lab

HOUR_MS = 3_600_000
ROUNDS = {"small": 3, "long": 50}
PROCESSES = 3


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
    return lost


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
            (LANE,), 500, worker="last", token=f"last-{number}-{clock.now_ms()}", ttl_ms=TTL_MS
        )
        for lease in leases:
            await engine.complete(lease, result_of(lease.id, lease.epoch))
        rows = (await look(engine.store, clock.now_ms())).rows
        unfinished = [row for row in rows if row.state not in TERMINAL]
        if not unfinished:
            return []
        clock.advance(TTL_MS)
    return unfinished


async def test_what_was_acknowledged_survives_kills_at_any_moment(
    tmp_path: Path, size: Size
) -> None:
    path = tmp_path / "crash.db"
    chance = random.Random(2026)
    told = Acknowledged([], [])
    executions = 0
    for number in range(ROUNDS[size]):
        seeds = [chance.getrandbits(31) for _ in range(PROCESSES)]
        lines = [chance.randint(1, 400) for _ in range(PROCESSES)]
        heard = run_and_kill(str(path), seeds, lines=lines)
        told.submitted.extend(heard.submitted)
        told.completed.extend(heard.completed)

        assert integrity(path) == "ok"
        # Past the end of every lease, so that nobody has to wait for them.
        clock = VirtualClock(SystemClock().now_ms() + (number + 1) * HOUR_MS)
        engine = Engine(SqliteStore(str(path), clock=clock), clock=clock)
        await engine.open()
        picture = await look(engine.store, clock.now_ms())
        assert broken(picture, skew_ms=SKEW_LIMIT_MS) == []
        assert unkept(picture, told) == []
        assert doubled(picture) == []
        executions = len(picture.rows)
        assert await finish_all(engine, clock) == []
        await engine.close()
    sys.stdout.write(
        f"{ROUNDS[size]} rounds of {PROCESSES} processes killed: {len(told.submitted)} submits and "
        f"{len(told.completed)} completions acknowledged, {executions} executions, "
        "none lost, none doubled\n"
    )
