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

from flowfabric.core.ids import execution_id, uuid7
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import Lease
from flowfabric.engine.engine import Engine
from flowfabric.errors import FlowFabricError
from flowfabric.store import open_store

LANE = "bench-bystander"
TTL_MS = 30_000
PAUSE_SECONDS = 0.001
WARM_UP = 50
READY = b"ready"
_RANDOM_BITS = 74


@asynccontextmanager
async def bystander(url: str) -> AsyncIterator[list[float]]:
    """The longest wait of somebody else's call meanwhile is in the list, once this is over."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowfabric.cli.bench.bystander"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    longest_ms: list[float] = []
    try:
        if await _said(process, url) != READY:
            raise await _fallen(process)
        yield longest_ms
        answer = await _said(process, "stop")
        if not answer:
            raise await _fallen(process)
        longest_ms.append(float(answer))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _said(process: asyncio.subprocess.Process, line: str) -> bytes:
    """What it answers to this line. The URL may hold a password, so it is not an argument."""
    if process.stdin is None or process.stdout is None:
        return b""
    process.stdin.write(f"{line}\n".encode())
    return (await process.stdout.readline()).strip()


async def _fallen(process: asyncio.subprocess.Process) -> FlowFabricError:
    said = b"" if process.stderr is None else await process.stderr.read()
    last = said.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    return FlowFabricError(f"the other client fell: {last[0]}")


async def watch(url: str) -> float:
    engine = Engine(open_store(url), namespace=f"bench-{secrets.token_hex(4)}")
    await engine.open()
    try:
        lease = await _lease(engine)
        for _ in range(WARM_UP):
            await engine.renew([lease], TTL_MS)
        print(READY.decode(), flush=True)
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
    order = Order(id=id, namespace=engine.namespace, lane=LANE, kind="noop", payload=b"{}")
    await engine.submit([order])
    token = secrets.token_hex(16)
    (lease,) = await engine.claim(
        [LANE], 1, worker="bystander", token=token, ttl_ms=TTL_MS, only=id
    )
    return lease


def main() -> None:
    url = sys.stdin.readline().strip()
    print(asyncio.run(watch(url)), flush=True)


if __name__ == "__main__":
    main()
