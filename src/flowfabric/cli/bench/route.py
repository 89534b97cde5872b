"""What a claim costs by how many tasks it serves, and what idling costs beside others' work."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Sequence

import msgspec

from flowfabric.app import App
from flowfabric.cli.bench.idle import SETTLE_SECONDS
from flowfabric.engine.engine import Engine
from flowfabric.errors import Corrupt
from flowfabric.task import Task

ONE, MANY = "bench-one", "bench-many"
TASKS = 200
CLAIMS = 20
BROAD, NARROW = 100, 10

_TTL_MS = 600_000


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """By case. `one` task of a lane; `broad`: all of 200, 100 taken at a time, as with one;
    `narrow`: one of 200 behind the work of the others, 10 at a time. Rows and milliseconds are of
    one claim; `idle_trips_per_s` is of a worker that can run nothing of what is ready."""

    claims: dict[str, int]
    rows_examined: dict[str, float]
    ms: dict[str, float]
    broad_ratio: float
    idle_trips_per_s: float


class _Case:
    """Claims of one kind, and what they took."""

    def __init__(self, engine: Engine, lane: str, tasks: Sequence[str], limit: int) -> None:
        self._engine = engine
        self._lane = lane
        self._tasks = tasks
        self._limit = limit
        self._times: list[float] = []
        self._examined = 0

    async def claim(self) -> None:
        trips = self._engine.store.trips
        before, began = trips.examined, time.perf_counter()
        leases = await self._engine.claim(
            [self._lane],
            self._limit,
            tasks=self._tasks,
            worker="bench",
            token=secrets.token_hex(16),
            ttl_ms=_TTL_MS,
        )
        self._times.append((time.perf_counter() - began) * 1000)
        self._examined += trips.examined - before
        if len(leases) != self._limit:
            raise Corrupt(f"{len(leases)} of {self._limit} ready executions were claimed")

    def anew(self) -> _Case:
        return _Case(self._engine, self._lane, self._tasks, self._limit)

    @property
    def claims(self) -> int:
        return len(self._times)

    @property
    def ms(self) -> float:
        return statistics.median(self._times)

    @property
    def rows_examined(self) -> float:
        return self._examined / self.claims


async def run(url: str, waiting: int, idle_seconds: float) -> Route:
    """`waiting`: how much work of 200 tasks there is at first, of each as much."""
    namespace = f"bench-{secrets.token_hex(4)}"
    app = App(url, namespace=namespace)
    one = _task(app, "one", ONE)
    many = [_task(app, f"task-{number}", MANY) for number in range(TASKS)]
    await app.connect()
    await app.start_many(one.bind() for _ in range((CLAIMS + 1) * BROAD))
    await app.start_many(many[number % TASKS].bind() for number in range(waiting))
    names = [task.name for task in many]
    cases = {
        "one": _Case(app.engine, ONE, [one.name], BROAD),
        "broad": _Case(app.engine, MANY, names, BROAD),
        "narrow": _Case(app.engine, MANY, names[-1:], NARROW),
    }
    for case in cases.values():
        # The first of a kind prepares its statements.
        await case.claim()
    cases |= {name: case.anew() for name, case in cases.items()}
    for _ in range(CLAIMS):
        await cases["one"].claim()
        await cases["broad"].claim()
    while cases["narrow"].claims * NARROW < waiting // TASKS // 4:
        await cases["narrow"].claim()
    idle = await _idle(url, namespace, idle_seconds)
    await app.close()
    return Route(
        claims={name: case.claims for name, case in cases.items()},
        rows_examined={name: case.rows_examined for name, case in cases.items()},
        ms={name: case.ms for name, case in cases.items()},
        broad_ratio=cases["broad"].ms / cases["one"].ms,
        idle_trips_per_s=idle,
    )


def _task(app: App, name: str, lane: str) -> Task[..., None]:
    @app.task(name=name, lane=lane)
    async def work() -> None: ...

    return work


async def _idle(url: str, namespace: str, seconds: float) -> float:
    """Waits for the store of a worker that serves the lane and knows none of its tasks."""
    app = App(url, namespace=namespace)
    _task(app, "another", MANY)
    async with app.running(lanes=[MANY]):
        await asyncio.sleep(SETTLE_SECONDS)
        before, began = app.engine.store.trips.count, time.perf_counter()
        await asyncio.sleep(seconds)
        passed = time.perf_counter() - began
        return app.engine.store.trips.count.since(before).round_trips / passed
