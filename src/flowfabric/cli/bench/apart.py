"""The cycle between two processes: the client here, the worker with its engine in another.

Every step has to be heard of: by the worker that there is work, by the client that it is done.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import NamedTuple

import msgspec

from flowfabric.cli.bench.cycle import WARM_UP, Percentiles, Plan
from flowfabric.cli.bench.flows import Bench, percentiles, worker_apart
from flowfabric.cli.bench.preload import preload
from flowfabric.cli.bench.targets import Target
from flowfabric.errors import Corrupt


class Apart(msgspec.Struct, frozen=True):
    end_to_end_per_s: float
    round_trip_ms: Percentiles


class _Round(NamedTuple):
    per_s: float
    trip: Percentiles


async def run(target: Target, plan: Plan) -> Apart:
    bench = Bench(target.url)
    async with worker_apart(target, bench):
        if plan.preload:
            await preload(bench.app, plan.preload)
        await _round_trip(bench, WARM_UP)
        rounds = [
            _Round(
                trip=await _round_trip(bench, plan.round_trips), per_s=await _rate(bench, plan.n)
            )
            for _ in range(plan.repeat)
        ]
    return Apart(
        median([one.per_s for one in rounds]),
        Percentiles(
            median([one.trip.p50 for one in rounds]),
            median([one.trip.p95 for one in rounds]),
            median([one.trip.p99 for one in rounds]),
        ),
    )


async def _round_trip(bench: Bench, samples: int) -> Percentiles:
    """One at a time: started here, and its result in hand."""
    spans: list[float] = []
    for number in range(samples):
        began = time.perf_counter()
        await (await bench.step.start(number)).result()
        spans.append((time.perf_counter() - began) * 1000)
    return percentiles(spans)


async def _rate(bench: Bench, n: int) -> float:
    """Submitted here while the worker works there, until the last result is in hand."""
    began = time.perf_counter()
    handles = await bench.app.start_many(bench.step.bind(number) for number in range(n))
    results = await asyncio.gather(*(handle.result() for handle in handles))
    if results != list(range(1, n + 1)):
        raise Corrupt("the results do not match the executions that were started")
    return n / (time.perf_counter() - began)
