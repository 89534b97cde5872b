"""The worker of a bench in a process of its own, as workers are deployed.

`python -m flowfabric.cli.bench.hand` reads the store and the namespace as one line from its
standard input, says `ready`, and works until that input ends.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from flowfabric.cli.bench.flows import Bench
from flowfabric.cli.bench.others import READY
from flowfabric.cli.bench.replica import Place


async def main() -> None:
    place = msgspec.json.decode(await asyncio.to_thread(sys.stdin.readline), type=Place)
    async with Bench(place.url, place.namespace).app.running():
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
