"""Renews all leases of this process in one call, from a thread of its own.

A task that blocks the event loop must not cost every other task its lease, so this does not run
there. A lease that is lost, or that could not be renewed in time, is reported once; the worker
then stops the user's code.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Lease
from flowfabric.engine.engine import Engine
from flowfabric.errors import FlowFabricError, LeaseExpired
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.keeper")

SAFETY_SECONDS = 0.5
RETRY_SECONDS = 0.5

OnLost = Callable[[Lease, FlowFabricError], None]


class Keeper:
    """Holds the leases that the worker has, until it is told to drop them."""

    def __init__(self, engine: Engine, ttl_ms: int, on_lost: OnLost) -> None:
        self._engine = engine
        self._ttl_ms = ttl_ms
        self._on_lost = on_lost
        self._held: dict[ExecutionId, tuple[Lease, float]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flowfabric-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def hold(self, leases: Iterable[Lease]) -> None:
        # A lease ends by the store's clock, however long its answer took to get here.
        ahead = time.monotonic() - self._engine.clock.now_ms() / 1000
        with self._lock:
            self._held |= {
                lease.head.id: (lease, lease.until_ms / 1000 + ahead) for lease in leases
            }

    def drop(self, leases: Iterable[Lease]) -> None:
        with self._lock:
            for lease in leases:
                held = self._held.get(lease.head.id)
                if held is not None and held[0].head.epoch == lease.head.epoch:
                    del self._held[lease.head.id]

    def _run(self) -> None:
        pause = self._ttl_ms / 3000
        with asyncio.Runner() as runner:
            while not self._stop.wait(pause):
                renewed = runner.run(self.renew_all())
                pause = self._ttl_ms / 3000 if renewed else RETRY_SECONDS

    async def renew_all(self) -> bool:
        """One round; False when the store did not answer and it should be tried again soon."""
        with self._lock:
            held = list(self._held.values())
        if not held:
            return True
        started = time.monotonic()
        patience = max(min(until for _, until in held) - SAFETY_SECONDS - started, RETRY_SECONDS)
        try:
            async with asyncio.timeout(patience):
                answers = await self._engine.renew([lease for lease, _ in held], self._ttl_ms)
        except Exception as error:
            # This thread must outlive whatever happens: without it every lease would be lost.
            logger.warning("could not renew leases: %r", error, extra={"leases": len(held)})
            self._give_up_overdue()
            return False
        for answer in answers:
            if answer.error is not None:
                self._lose(answer.lease, answer.error)
            else:
                self._extend(answer.lease, started)
        return True

    def _extend(self, lease: Lease, started: float) -> None:
        with self._lock:
            held = self._held.get(lease.id)
            if held is not None and held[0].epoch == lease.epoch:
                self._held[lease.id] = (lease, started + self._ttl_ms / 1000)

    def _give_up_overdue(self) -> None:
        """Stop before the store thinks the lease is over: nobody may work beside its successor."""
        limit = time.monotonic() + SAFETY_SECONDS
        with self._lock:
            overdue = [lease for lease, until in self._held.values() if until < limit]
        for lease in overdue:
            self._lose(lease, LeaseExpired(f"the lease of {lease.id} could not be renewed"))

    def _lose(self, lease: Lease, error: FlowFabricError) -> None:
        self.drop([lease])
        self._on_lost(lease, error)
