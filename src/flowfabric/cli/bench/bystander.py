"""Another client of a store, in a process of its own, while something big is done to it.

`python -m flowfabric.cli.bench.bystander` reads the URL as one line from its standard input, takes
a lease, says `ready` and renews it over and over; at the next line it says how long the longest of
these calls took, in milliseconds.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowfabric.cli.bench.others import READY, other
from flowfabric.core.ids import execution_id, uuid7
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import Lease
from flowfabric.engine.engine import Engine
from flowfabric.store import open_store

LANE = "bench-bystander"
TASK = "noop"
TTL_MS = 30_000
PAUSE_SECONDS = 0.001
WARM_UP = 50
_RANDOM_BITS = 74


@asynccontextmanager
async def bystander(url: str) -> AsyncIterator[list[float]]:
    """The longest wait of somebody else's call meanwhile is in the list, once this is over."""
    longest_ms: list[float] = []
    async with other("flowfabric.cli.bench.bystander", url) as client:
        yield longest_ms
        longest_ms.append(float(await client.ask("stop")))


async def watch(url: str) -> float:
    engine = Engine(open_store(url), namespace=f"bench-{secrets.token_hex(4)}")
    await engine.open()
    try:
        lease = await _lease(engine)
        for _ in range(WARM_UP):
            await engine.renew([lease], TTL_MS)
        print(READY, flush=True)
        told = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        longest = 0.0
        while not told.done():
            began = time.perf_counter()
            (answer,) = await engine.renew([lease], TTL_MS)
            longest = max(longest, time.perf_counter() - began)
            if answer.error is not None:
                raise answer.error
            await asyncio.sleep(PAUSE_SECONDS)
        await engine.complete(lease, b"null")
    finally:
        await engine.close()
    return longest * 1000


async def _lease(engine: Engine) -> Lease:
    unique = uuid7(engine.clock.now_ms(), secrets.randbits(_RANDOM_BITS))
    id = execution_id(secrets.randbelow(engine.counts.flow), unique)
    order = Order(id=id, namespace=engine.namespace, lane=LANE, kind=TASK, payload=b"{}")
    await engine.submit([order])
    token = secrets.token_hex(16)
    (lease,) = await engine.claim(
        [LANE], 1, tasks=[TASK], worker="bystander", token=token, ttl_ms=TTL_MS, only=id
    )
    return lease


def main() -> None:
    url = sys.stdin.readline().strip()
    print(asyncio.run(watch(url)), flush=True)


if __name__ == "__main__":
    main()
