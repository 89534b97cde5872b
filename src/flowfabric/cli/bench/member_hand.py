"""Ends whatever is ready, in a process of its own that dispatches nothing.

`python -m flowfabric.cli.bench.member_hand` reads the store and the namespace as one line from its
standard input, says `ready`, and works until it is killed. It speaks to the engine as a worker
does, a few members at a time, so that members of one flow end one after another.
"""

from __future__ import annotations

import asyncio
import secrets
import sys

import msgspec

from flowfabric.cli.bench.others import READY
from flowfabric.cli.bench.replica import Place
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed
from flowfabric.store import open_store

LANE = "default"
AT_A_TIME = 3
TTL_MS = 30_000
PAUSE_SECONDS = 0.005


async def main() -> None:
    place = msgspec.json.decode(await asyncio.to_thread(sys.stdin.readline), type=Place)
    engine = Engine(open_store(place.url), namespace=place.namespace)
    await engine.open()
    print(READY, flush=True)
    while True:
        leases = await engine.claim(
            [LANE],
            AT_A_TIME,
            tasks=place.tasks,
            worker="bench",
            token=secrets.token_hex(16),
            ttl_ms=TTL_MS,
        )
        for lease in leases:
            await engine.finish([Completed(lease, b"1")])
        if not leases:
            await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main())
