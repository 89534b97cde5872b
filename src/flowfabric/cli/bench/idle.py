"""The cost of doing nothing: one engine and one worker that wait for work which does not come."""

from __future__ import annotations

import asyncio
import time

import msgspec

from flowfabric.cli.bench.cycle import open_bench
from flowfabric.cli.bench.targets import Target

# Long enough for every pause that grows while nothing happens to have grown.
SETTLE_SECONDS = 5.0


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Per second: waits for the store. Of one core: processor time of this process."""

    round_trips_per_s: float
    cpu_percent: float


async def run(target: Target, seconds: float, *, settle_seconds: float = SETTLE_SECONDS) -> Idle:
    bench = open_bench(target.url)
    async with bench.app.running():
        await (await bench.noop.start(0)).result()
        await asyncio.sleep(settle_seconds)
        trips = bench.app.engine.store.trips
        before, cpu_before, began = trips.count, time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        passed = time.perf_counter() - began
        return Idle(
            round_trips_per_s=trips.count.since(before).round_trips / passed,
            cpu_percent=(time.process_time() - cpu_before) / passed * 100,
        )
