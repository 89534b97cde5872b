"""A thread with an event loop and connections of its own, for callers of other event loops.

A worker renews its leases from a thread, because a task may block the worker's event loop. Carried
into that loop the renewals would wait with it, so they get a loop that nothing can block.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TypeVar

from flowfabric.store.postgres.address import Address
from flowfabric.store.postgres.connections import Pool, Work
from flowfabric.store.trips import Trips

T = TypeVar("T")


class Annex:
    def __init__(self, address: Address, trips: Trips) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="flowfabric-postgres", daemon=True
        )
        self._thread.start()
        self._pool = asyncio.run_coroutine_threadsafe(
            self._make_pool(address, trips), self._loop
        ).result()

    async def _make_pool(self, address: Address, trips: Trips) -> Pool:
        return Pool(address, trips)

    async def read(self, work: Work[T]) -> T:
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._pool.read(work), self._loop)
        )

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._pool.write(work, urgent=urgent), self._loop)
        )

    def close(self) -> None:
        """Let what has begun end, then end the thread. Blocks: not for an event loop."""
        asyncio.run_coroutine_threadsafe(self._pool.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
