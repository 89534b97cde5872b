"""One of the processes that fight over the same few executions.

`python -m flowfabric.cli.bench.contender` reads what to do as one line from its standard input,
says `ready`, waits for a second line, works, writes its journal, and says how often a guard
refused it. It chooses at random and mostly blindly, so that it is refused often.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import sys
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from flowfabric.cli.bench.judge import Did, Entry, result_of
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Lease
from flowfabric.core.requests import newest_token
from flowfabric.core.transition import Applied, Changeset, Rejected, Transition
from flowfabric.engine.engine import Engine
from flowfabric.errors import FlowFabricError, StoreUnavailable
from flowfabric.store import Store, open_store
from flowfabric.testing.faults import FaultyStore

LANE = "bench-contend"
TASK = "noop"
TTL_MS = 30_000
AT_ONCE = 4
CLAIM_LIMIT = 3
PRIORITIES = 10

READY = "ready"


class Orders(msgspec.Struct, frozen=True):
    """What a contender has to do. The URL may hold a password, so it is not an argument."""

    url: str
    namespace: str
    seed: int
    verbs: int
    ids: list[ExecutionId]
    journal: str


class Report(msgspec.Struct, frozen=True):
    conflicts: int


class RefereedStore(FaultyStore):
    """Counts the guarded writes that came too late, and knows which requests wrote something."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.conflicts = 0
        self._written: set[str] = set()

    def has_written(self, request: str) -> bool:
        """Whether a write of this request was acknowledged: one that finds nothing to do is
        answered without any."""
        return request in self._written

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        answers = await super().apply(transitions, now_ms, urgent=urgent)
        self.conflicts += sum(isinstance(answer, Rejected) for answer in answers)
        return answers

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        done = await super().commit(changes, now_ms)
        self.conflicts += not done
        if done:
            kept = (str(each.patch.get("requests", "")) for each in changes.transitions)
            self._written.update(newest_token(requests) for requests in kept)
        return done


class Requested(Protocol):
    """A verb of an operator, with all but the token of its request."""

    def __call__(self, *, request: str) -> Awaitable[object]: ...


class Contender:
    """Does so many verbs, several at a time; `entries` is what it was told."""

    def __init__(
        self, store: RefereedStore, engine: Engine, ids: Sequence[ExecutionId], seed: int
    ) -> None:
        self.entries: list[Entry] = []
        self._store = store
        self._engine = engine
        self._ids = ids
        self._chance = random.Random(seed)  # noqa: S311
        self._name = f"contender-{seed}"
        self._held: list[Lease] = []

    async def run(self, verbs: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(self._several(verbs // AT_ONCE + (number < verbs % AT_ONCE)))

    async def _several(self, verbs: int) -> None:
        for _ in range(verbs):
            try:
                await self._verb()
            except StoreUnavailable:
                raise
            except FlowFabricError:
                # Somebody was faster, or the choice was blind: nothing was written.
                continue

    async def _verb(self) -> None:
        luck = self._chance.random()
        id = self._chance.choice(self._ids)
        if self._held and luck < 0.25:
            await self._complete(self._take())
        elif self._held and luck < 0.4:
            await self._renew([self._take() for _ in range(min(len(self._held), CLAIM_LIMIT))])
        elif luck < 0.6:
            await self._claim(self._chance.randint(1, CLAIM_LIMIT))
        elif luck < 0.75:
            await self._wrote(Did.REPLAYED, id, partial(self._engine.replay, id))
        elif luck < 0.9:
            priority = self._chance.randrange(PRIORITIES)
            await self._wrote(Did.PRIORITY, id, partial(self._engine.change_priority, id, priority))
        else:
            await self._wrote(Did.CANCELLED, id, partial(self._engine.cancel, id))

    def _take(self) -> Lease:
        """Out of the bag while something is said about it: nobody else here may say more."""
        return self._held.pop(self._chance.randrange(len(self._held)))

    async def _wrote(self, did: Did, id: ExecutionId, call: Requested) -> None:
        sent_s, request = time.monotonic(), secrets.token_hex(8)
        await call(request=request)
        if self._store.has_written(request):
            self.entries.append(Entry(did, id, sent_s, time.monotonic()))

    async def _claim(self, limit: int) -> None:
        sent_s, token = time.monotonic(), secrets.token_hex(16)
        leases = await self._engine.claim(
            [LANE], limit, tasks=[TASK], worker=self._name, token=token, ttl_ms=TTL_MS
        )
        self._held += leases
        self._note(Did.CLAIMED, leases, sent_s)

    async def _renew(self, leases: Sequence[Lease]) -> None:
        sent_s = time.monotonic()
        answers = await self._engine.renew(leases, TTL_MS)
        kept = [answer.lease for answer in answers if answer.error is None]
        self._held += kept
        self._note(Did.RENEWED, kept, sent_s)

    async def _complete(self, lease: Lease) -> None:
        sent_s = time.monotonic()
        await self._engine.complete(lease, result_of(lease.id, lease.epoch))
        self._note(Did.COMPLETED, [lease], sent_s)

    def _note(self, did: Did, leases: Sequence[Lease], sent_s: float) -> None:
        done_s = time.monotonic()
        for lease in leases:
            token = lease.head.lease_token
            self.entries.append(Entry(did, lease.id, sent_s, done_s, lease.epoch, token))


async def work(orders: Orders) -> tuple[list[Entry], Report]:
    store = RefereedStore(open_store(orders.url))
    engine = Engine(store, namespace=orders.namespace)
    await engine.open()
    try:
        contender = Contender(store, engine, orders.ids, orders.seed)
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await contender.run(orders.verbs)
    finally:
        await engine.close()
    return contender.entries, Report(store.conflicts)


def main() -> None:
    orders = msgspec.json.decode(sys.stdin.readline(), type=Orders)
    entries, report = asyncio.run(work(orders))
    Path(orders.journal).write_bytes(msgspec.json.encode(entries))
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
