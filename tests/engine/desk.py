"""Desk: an engine with its timekeeper and a clock, and the steps that most tests take.

It writes only through the public verbs. No test lives here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure, Order
from flowfabric.core.model import Attempt, Event, Execution, Feed, Lease, Want
from flowfabric.core.refusal import not_found
from flowfabric.core.registry import WorkerRecord
from flowfabric.engine.engine import Engine
from flowfabric.engine.reading import Snapshot
from flowfabric.engine.registry import Registration
from flowfabric.engine.timekeeper import Sweep, Timekeeper
from flowfabric.store import Store
from flowfabric.testing.build import KIND, LANE, TTL_MS, WORKER, order
from flowfabric.testing.clock import VirtualClock

BROKEN = Failure("broke", "handler_error")


class Desk:
    """One engine on one store. Every claim has a token of its own."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.engine = Engine(store, clock=clock)
        self.timekeeper = Timekeeper(store, self.engine.clock)
        self._tokens = count(1)

    def another(self) -> Desk:
        """A second engine on the same store, as another process would have."""
        desk = Desk(self.store, self.clock)
        desk._tokens = count(1_000)
        return desk

    async def employ(
        self,
        *,
        lanes: tuple[str, ...] = (LANE,),
        tasks: tuple[str, ...] = ("greet",),
        name: str = WORKER,
    ) -> Registration:
        """A worker that says that it lives, and does nothing else."""
        registration = self.engine.registry.register(name)
        await registration.beat(
            WorkerRecord(
                name=name,
                namespace=self.engine.namespace,
                host="here",
                pid=1,
                version="0",
                lanes=lanes,
                tasks=tasks,
                slots=1,
                busy=0,
                started_ms=self.clock.now_ms(),
                seen_ms=self.clock.now_ms(),
            )
        )
        return registration

    async def submit(self, wanted: Order | None = None) -> ExecutionId:
        made = (await self.engine.submit([wanted or order()]))[0]
        assert made.error is None
        assert made.created
        return made.id

    async def claim(
        self,
        limit: int = 1,
        *,
        only: ExecutionId | None = None,
        worker: str = WORKER,
        ttl_ms: int = TTL_MS,
        start: bool = True,
        lanes: tuple[str, ...] = (LANE,),
        tasks: tuple[str, ...] = (KIND,),
    ) -> list[Lease]:
        return await self.engine.claim(
            lanes,
            limit,
            tasks=tasks,
            worker=worker,
            token=f"token-{next(self._tokens)}",
            ttl_ms=ttl_ms,
            start=start,
            only=only,
        )

    async def take(
        self, id: ExecutionId, *, worker: str = WORKER, ttl_ms: int = TTL_MS, start: bool = True
    ) -> Lease:
        """Claim this one; it must be there to be claimed."""
        leases = await self.claim(only=id, worker=worker, ttl_ms=ttl_ms, start=start)
        assert [lease.id for lease in leases] == [id]
        return leases[0]

    async def running(self, wanted: Order | None = None, *, worker: str = WORKER) -> Lease:
        return await self.take(await self.submit(wanted), worker=worker)

    async def completed(self, wanted: Order | None = None, result: bytes = b"1") -> ExecutionId:
        lease = await self.running(wanted)
        await self.engine.complete(lease, result)
        return lease.id

    async def silent(self, lease: Lease) -> None:
        """The worker of this lease is not heard of again."""
        self.clock.set(max(lease.until_ms, self.clock.now_ms()))
        await self.sweep()

    async def sweep(self) -> Sweep:
        return await self.timekeeper.run_once()

    async def head(self, id: ExecutionId) -> Execution:
        """The row as it is stored."""
        loaded = (await self.store.load(Want(ids=[id])))[0]
        if loaded is None:
            raise not_found(id)
        return loaded.head

    async def snapshot(self, id: ExecutionId) -> Snapshot:
        found = await self.engine.read.describe(id)
        assert found is not None
        return found

    async def vector(self, id: ExecutionId) -> str:
        """The seven public dimensions, written as the catalogue writes them."""
        return "/".join((await self.snapshot(id)).vector)

    async def attempts(self, id: ExecutionId) -> list[Attempt]:
        return await self.engine.read.attempts(id)

    async def events(self, id: ExecutionId) -> list[Event]:
        return await self.engine.read.events(Feed(execution=id))

    async def history(self, id: ExecutionId) -> list[str]:
        return [event.kind for event in await self.events(id)]

    async def is_timed(self, id: ExecutionId, at_ms: int) -> bool:
        """Whether its timer has passed at this instant."""
        return id in {row.id for row in (await self.store.due(at_ms, 1_000)).rows}


def forged(lease: Lease, **columns: object) -> Lease:
    """The lease as somebody would show it who does not hold it."""
    return Lease(msgspec.structs.replace(lease.head, **columns), lease.payload)


Say = Callable[[Desk, Lease], Awaitable[object]]


async def _renew(desk: Desk, lease: Lease) -> None:
    renewed = (await desk.engine.renew([lease], TTL_MS))[0]
    if renewed.error is not None:
        raise renewed.error


# Everything that a worker can say about its lease.
VERBS: dict[str, Say] = {
    "renew": _renew,
    "progress": lambda desk, lease: desk.engine.progress(lease, 50),
    "complete": lambda desk, lease: desk.engine.complete(lease, b"1"),
    "fail": lambda desk, lease: desk.engine.fail(lease, BROKEN),
    "delay": lambda desk, lease: desk.engine.delay(lease, desk.clock.now_ms() + 1_000),
    "release": lambda desk, lease: desk.engine.release(lease),
}
