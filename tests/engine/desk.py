"""Desk: an engine with its timekeeper and a clock, and the steps that most tests take.

It writes only through the public verbs. No test lives here.
"""

from __future__ import annotations

from itertools import count
from typing import cast

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure, Order
from flowfabric.core.model import Attempt, Event, Execution, Feed, Lease
from flowfabric.engine.engine import Engine
from flowfabric.engine.reading import Snapshot
from flowfabric.engine.timekeeper import Sweep, Timekeeper
from flowfabric.errors import StoreUnavailable
from flowfabric.store import Store
from flowfabric.testing.build import LANE, TTL_MS, WORKER, order
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
    ) -> list[Lease]:
        return await self.engine.claim(
            lanes,
            limit,
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
        return (await self.engine.read.load(id)).head

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


class Trouble:
    """A store whose verb fails a few times, before it does anything or after it did it."""

    def __init__(self, store: Store, verb: str, *, times: int = 1, after: bool = False) -> None:
        self.calls = 0
        self._store = store
        self._verb = verb
        self._times = times
        self._after = after

    def __getattr__(self, name: str) -> object:
        return self._fail if name == self._verb else getattr(self._store, name)

    async def _fail(self, *args: object, **kwargs: object) -> object:
        self.calls += 1
        is_bad = self.calls <= self._times
        if is_bad and not self._after:
            raise StoreUnavailable("nothing was written")
        answer: object = await getattr(self._store, self._verb)(*args, **kwargs)
        if is_bad:
            raise StoreUnavailable("the reply was lost")
        return answer

    def as_store(self) -> Store:
        return cast(Store, self)
