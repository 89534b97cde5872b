"""The cycle: submit, claim, run a task that does nothing, complete, hear the result.

Through the public API, with one worker in this process. Three measurements: a lone round trip on
an idle system, submitting and working at the same time, and one after the other.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import NamedTuple

import msgspec

from flowfabric.app import App
from flowfabric.cli.bench import limit
from flowfabric.cli.bench.machine import peak_rss_mb
from flowfabric.cli.bench.preload import preload
from flowfabric.cli.bench.targets import Target, drop_beside
from flowfabric.client.handle import Handle
from flowfabric.errors import Corrupt
from flowfabric.task import Task

WARM_UP = 50
# A task that does nothing is over at once: more slots mean larger batches, not more at a time.
SLOTS = 500
ROUND_TRIPS = 300
LIMIT_N = 5_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure."""

    n: int
    preload: int = 0
    repeat: int = 1
    round_trips: int = ROUND_TRIPS


class Percentiles(msgspec.Struct, frozen=True):
    p50: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed; `ratio_to_empty` is there only with a preload."""

    end_to_end_per_s: float
    enqueue_per_s: float
    drain_per_s: float
    round_trip_ms: Percentiles
    cpu_s_per_1000: float
    peak_rss_mb: float | None
    share_of_limit: float | None
    ratio_to_empty: float | msgspec.UnsetType = msgspec.UNSET


class Bench(NamedTuple):
    """An app of its own namespace, so that nothing else on the store is touched."""

    app: App
    noop: Task[..., int]


class EndToEnd(NamedTuple):
    per_s: float
    cpu_s_per_1000: float


def open_bench(url: str) -> Bench:
    app = App(url, namespace=f"bench-{secrets.token_hex(4)}", concurrency=SLOTS)

    @app.task
    async def noop(number: int) -> int:
        return number

    return Bench(app, noop)


async def run(target: Target, plan: Plan) -> Figures:
    bench = open_bench(target.url)
    if plan.preload:
        await preload(bench.app, plan.preload)
    async with _empty(target, plan) as empty:
        rounds = [await _round(bench, empty, target, plan) for _ in range(plan.repeat)]
    return Figures(
        end_to_end_per_s=median([one.end_to_end_per_s for one in rounds]),
        enqueue_per_s=median([one.enqueue_per_s for one in rounds]),
        drain_per_s=median([one.drain_per_s for one in rounds]),
        round_trip_ms=Percentiles(
            median([one.round_trip_ms.p50 for one in rounds]),
            median([one.round_trip_ms.p95 for one in rounds]),
            median([one.round_trip_ms.p99 for one in rounds]),
        ),
        cpu_s_per_1000=median([one.cpu_s_per_1000 for one in rounds]),
        peak_rss_mb=peak_rss_mb(),
        share_of_limit=_median_of_known([one.share_of_limit for one in rounds]),
        ratio_to_empty=_median_of_set([one.ratio_to_empty for one in rounds]),
    )


@asynccontextmanager
async def _empty(target: Target, plan: Plan) -> AsyncIterator[Bench | None]:
    """What the store is compared with, gone afterwards: under a name that nobody else has."""
    if not plan.preload:
        yield None
        return
    url = target.beside(f"empty-{secrets.token_hex(4)}")
    bench = open_bench(url)
    try:
        yield bench
    finally:
        await bench.app.close()
        await drop_beside(url)


async def _round(bench: Bench, empty: Bench | None, target: Target, plan: Plan) -> Figures:
    round_trips = await round_trip_ms(bench, plan.round_trips)
    at_empty = await end_to_end(empty, plan.n) if empty else None
    both = await end_to_end(bench, plan.n)
    enqueue_per_s, drain_per_s = await enqueue_and_drain(bench, plan.n)
    raw_per_s = await limit.run(target, min(plan.n, LIMIT_N)) if limit.has_limit(target) else None
    return Figures(
        end_to_end_per_s=both.per_s,
        enqueue_per_s=enqueue_per_s,
        drain_per_s=drain_per_s,
        round_trip_ms=round_trips,
        cpu_s_per_1000=both.cpu_s_per_1000,
        peak_rss_mb=None,
        share_of_limit=both.per_s / raw_per_s if raw_per_s else None,
        ratio_to_empty=at_empty.per_s / both.per_s if at_empty else msgspec.UNSET,
    )


async def round_trip_ms(bench: Bench, samples: int) -> Percentiles:
    """One at a time: started, and its result in hand."""
    spans: list[float] = []
    async with bench.app.running():
        for number in range(WARM_UP + samples):
            began = time.perf_counter()
            handle = await bench.noop.start(number)
            await handle.result()
            spans.append((time.perf_counter() - began) * 1000)
    ordered = sorted(spans[WARM_UP:])
    return Percentiles(_at(ordered, 50), _at(ordered, 95), _at(ordered, 99))


async def end_to_end(bench: Bench, n: int) -> EndToEnd:
    """Submitted while the worker works, until the last result is in hand."""
    async with bench.app.running():
        await _check(await _submit(bench, WARM_UP), range(WARM_UP))
        began, cpu_began = time.perf_counter(), time.process_time()
        await _check(await _submit(bench, n), range(n))
        seconds = time.perf_counter() - began
        cpu_seconds = time.process_time() - cpu_began
    return EndToEnd(n / seconds, cpu_seconds / n * 1000)


async def enqueue_and_drain(bench: Bench, n: int) -> tuple[float, float]:
    """All submitted before there is a worker; then a worker, until the last result is in hand."""
    await bench.app.connect()
    began = time.perf_counter()
    handles = await _submit(bench, n)
    enqueued = time.perf_counter()
    async with bench.app.running():
        await _check(handles, range(n))
        drained = time.perf_counter()
    return n / (enqueued - began), n / (drained - enqueued)


async def _submit(bench: Bench, n: int) -> list[Handle[int]]:
    return await bench.app.start_many(bench.noop.bind(number) for number in range(n))


async def _check(handles: Sequence[Handle[int]], expected: Sequence[int]) -> None:
    results = await asyncio.gather(*(handle.result() for handle in handles))
    if results != list(expected):
        raise Corrupt("the results do not match the executions that were started")


def _at(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def _median_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _median_of_set(
    values: Sequence[float | msgspec.UnsetType],
) -> float | msgspec.UnsetType:
    known = [value for value in values if isinstance(value, float)]
    return median(known) if known else msgspec.UNSET
