"""Workers of the simulation: they claim, hold, renew and finish as real ones do, or forget to.

The work itself is a wait. Outcomes go through the real finisher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.core.routes import is_served, routes_of
from flowfabric.engine.direct_ends import Followed
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import (
    Completed,
    Delayed,
    Failed,
    Follow,
    Outcome,
    Released,
    hand_back_unread,
)
from flowfabric.errors import LeaseLost, NotFound, Refused, StoreUnavailable
from flowfabric.store.hints import Hint
from flowfabric.testing.simulation.process import Process
from flowfabric.testing.simulation.programs import Program
from flowfabric.testing.simulation.wishes import LANES
from flowfabric.worker.finisher import Finisher

SLOTS = 6
TTLS_MS = (5_000, 10_000, 30_000)
POLL_SECONDS = 2.0
# What a store may answer to somebody who was too late.
TOO_LATE = (LeaseLost, Refused, NotFound)


class Worker:
    """One worker, from its start to its death; `engine` if it shares one with others."""

    def __init__(
        self,
        process: Process,
        program: Program,
        engine: Engine | None = None,
        lanes: Sequence[str] = LANES,
    ) -> None:
        self._process = process
        self._lanes = tuple(lanes)
        self._program = program
        self._tasks = program.tasks
        self._routes = frozenset(routes_of(self._lanes, self._tasks))
        self._world = process.world
        self._chance = process.world.chance
        self._engine = engine or Engine(process.store, clock=process.clock)
        self._finisher = Finisher(self._engine, self._heard, self._may_follow)
        self._doubtful: list[str] = []
        self._busy = 0
        self._woken = asyncio.Event()
        self._ttl_ms = self._chance.choice(TTLS_MS)

    def begin(self) -> None:
        self._world.ledger.programs[self._process.name] = self._program
        self._engine.known.begin()
        self._process.hints.subscribe(self._hear)
        self._process.begin(self._finisher.run())
        self._process.begin(self._run())

    def _hear(self, hint: Hint) -> None:
        if hint.foreign or is_served(hint.ready, self._routes):
            self._woken.set()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            leases = await self._claim() if self._busy < SLOTS else []
            self._begin(leases)
            if not leases:
                await self._wait()

    def _begin(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._busy += 1
            self._process.begin(self._hold(lease))

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _claim(self) -> list[Lease]:
        is_repeated = bool(self._doubtful)
        token = self._doubtful.pop() if self._doubtful else self._token()
        starts = self._chance.random() < 0.9
        while True:
            try:
                leases = await self._engine.claim(
                    self._lanes,
                    self._chance.randint(1, max(SLOTS - self._busy, 1)),
                    tasks=self._tasks,
                    worker=self._process.name,
                    token=token,
                    ttl_ms=self._ttl_ms,
                    start=starts,
                    repeated=is_repeated,
                )
                members = [lease for lease in leases if lease.head.flow]
                if members and self._chance.random() < 0.3:
                    await self._engine.flows.inputs(members)
                return leases
            except StoreUnavailable:
                # Whatever it took ends by itself, unless it asks again.
                if self._chance.random() < 0.5:
                    return []
                is_repeated = True
                await self._world.timeline.rest(0.1)

    async def _hold(self, lease: Lease) -> None:
        try:
            outcome = await self._work(lease)
            if outcome is not None:
                self._finisher.finish(outcome)
        except (*TOO_LATE, StoreUnavailable):
            self._world.ledger.counts["work given up"] += 1
        finally:
            self._busy -= 1
            self._woken.set()

    async def _work(self, lease: Lease) -> Outcome | None:
        chance, dials = self._chance, self._world.dials
        if not lease.started:
            if self._world.happens(dials.forgotten):
                return None
            lease = await self._engine.start(lease)
        if not self._program.reads(lease.payload):
            why = "arguments: of another version"
            return hand_back_unread(lease, self._engine.clock.now_ms(), why)
        left = chance.choice((0.0, 0.1, 1.0, 3.0, 3.0, 20.0)) * chance.random()
        renews = not self._world.happens(dials.unrenewed)
        while left > 0:
            step = min(left, self._ttl_ms / 3000)
            await self._world.timeline.rest(step)
            left -= step
            if renews and left > 0:
                lease = await self._renewed(lease)
        return None if self._world.happens(dials.forgotten) else self._outcome(lease)

    async def _renewed(self, lease: Lease) -> Lease:
        if self._chance.random() < 0.3:
            await self._engine.progress(lease, self._chance.randint(0, 100), "so far")
        try:
            answer = (await self._engine.renew([lease], self._ttl_ms))[0]
        except StoreUnavailable:
            return lease
        if answer.error is not None:
            raise answer.error
        return answer.lease

    def _outcome(self, lease: Lease) -> Outcome:
        luck = self._chance.random()
        if luck < 0.75:
            return Completed(lease, f"{lease.id} {lease.epoch}".encode())
        if luck < 0.9:
            return Failed(lease, Failure("bad luck", fatal=luck > 0.87))
        if luck < 0.95:
            until_ms = self._world.timeline.now_ms() + self._chance.randint(0, 5_000)
            return Delayed(lease, until_ms)
        return Released(lease)

    def _token(self) -> str:
        return f"{self._chance.getrandbits(64):016x}"

    def _may_follow(self, count: int) -> Follow | None:
        limit = min(SLOTS - self._busy, count)
        if limit < 1 or self._chance.random() < 0.2:
            return None
        self._busy += limit
        return Follow(
            lanes=self._lanes,
            tasks=self._tasks,
            limit=limit,
            worker=self._process.name,
            token=self._token(),
            ttl_ms=self._ttl_ms,
        )

    def _go_on(self, followed: Followed, follow: Follow) -> None:
        self._busy -= follow.limit
        self._world.ledger.counts["handed over"] += len(followed.leases)
        self._begin(followed.leases)
        # Whatever else is held for it ends by itself, unless it asks.
        if followed.is_unanswered and self._chance.random() < 0.5:
            self._doubtful.append(follow.token)
        self._woken.set()

    def _heard(
        self, outcomes: Sequence[Outcome], followed: Followed, follow: Follow | None
    ) -> None:
        if follow is not None:
            self._go_on(followed, follow)
        ledger = self._world.ledger
        for outcome, answer in zip(outcomes, followed.answers, strict=True):
            head = outcome.lease.head
            if isinstance(outcome, Completed) and answer.error is None:
                ledger.confirmed(head.id, head.replay_count, head.attempt)
