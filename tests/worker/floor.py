"""Floor: an engine with a clock moved by hand, handlers, and workers that a test starts and stops.

No test lives here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Feed, Lease, Query
from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.engine.reading import Snapshot
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.store import Store
from flowfabric.testing.build import LANE, TTL_MS, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.worker.handler import Handler
from flowfabric.worker.worker import Worker

F = TypeVar("F", bound=Callable[..., object])

# Far beyond what anything here takes: only a test that would hang for ever meets it.
PATIENCE_SECONDS = 30.0


class Floor:
    """One store, one clock, any number of workers."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.clock = clock
        self.engine = Engine(store, clock=clock)
        self.timekeeper = Timekeeper(store, self.engine.clock)
        self.handlers: dict[str, Handler] = {}
        self._numbers = count()
        self._names = count(1)

    def task(self, function: F) -> F:
        """Register a handler under the function's name."""
        name = str(getattr(function, "__name__", "task"))
        self.handlers[name] = Handler(name, function)
        return function

    async def submit(self, kind: str, *args: object, policy: str = "") -> ExecutionId:
        payload = self.handlers[kind].encode_call(args, {})
        wanted = order(next(self._numbers), kind=kind, payload=payload, policy=policy)
        made = (await self.engine.submit([wanted]))[0]
        assert made.created
        return made.id

    async def submit_many(self, kind: str, calls: int) -> list[ExecutionId]:
        return [await self.submit(kind) for _ in range(calls)]

    def worker(self, *, slots: int = 10, drain_seconds: float = 30.0) -> Worker:
        return Worker(
            self.engine,
            self.handlers,
            name=f"worker-{next(self._names)}",
            lanes=[LANE],
            slots=slots,
            ttl_ms=TTL_MS,
            drain_seconds=drain_seconds,
        )

    @asynccontextmanager
    async def working(self, worker: Worker | None = None) -> AsyncIterator[Worker]:
        """A worker that runs while the block does, and is drained when it is left."""
        worker = worker or self.worker()
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            yield worker
            worker.stop()

    async def claim(self, limit: int = 100) -> list[Lease]:
        """Take work in the test's own name; every claim has a token of its own."""
        token = f"token-{next(self._names)}"
        return await self.engine.claim(
            [LANE], limit, tasks=tuple(self.handlers), worker="somebody", token=token, ttl_ms=TTL_MS
        )

    async def status(self, id: ExecutionId) -> Snapshot:
        found = await self.engine.read.describe(id)
        assert found is not None
        return found

    async def kinds(self, id: ExecutionId) -> list[str]:
        return [event.kind for event in await self.engine.read.events(Feed(execution=id))]

    async def count(self, state: State) -> int:
        found = await self.engine.read.find(Query(states=(state,), limit=1_000))
        return len(found.items)

    async def until(self, state: State, count: int) -> None:
        """Until so many executions are in this state."""
        await eventually(lambda: self._has(state, count))

    async def _has(self, state: State, count: int) -> bool:
        return await self.count(state) >= count


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so; what it waits for happens by itself."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0)
