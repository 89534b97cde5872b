"""Finished executions by the hundred thousand, made with the engine's verbs in large batches."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Iterable

from flowfabric.app import App
from flowfabric.core.ids import RANDOM_BITS, execution_id, uuid7
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import Lease
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed
from flowfabric.errors import Corrupt

LANE = "bench-preload"
TASK = "noop"
STREAMS = 3
STEPS = 10
TRIES = 1_000

_TTL_MS = 60_000

Report = Callable[[int], None]


async def preload(app: App, count: int, *, policy: str = "") -> None:
    """Several streams at once, so that one decides while another's batch is written."""
    await app.connect()
    batches = [BATCH_LIMIT] * (count // BATCH_LIMIT)
    if count % BATCH_LIMIT:
        batches.append(count % BATCH_LIMIT)
    report = _reporter(count)
    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(_stream(app.engine, batches, report, policy))


async def _stream(engine: Engine, batches: list[int], report: Report, policy: str) -> None:
    while batches:
        size = batches.pop()
        await _finish(engine, size, policy)
        report(size)


async def _finish(engine: Engine, size: int, policy: str) -> None:
    leases = await submit_and_take(engine, size, policy=policy)
    finished = await engine.finish([Completed(lease, b"0") for lease in leases])
    _raise_first([one.error for one in finished])


async def submit_and_take(
    engine: Engine, size: int, *, policy: str = "", together: int = 100
) -> list[Lease]:
    """As many executions, `together` of them in each partition, held by this process alone."""
    orders = [_order(engine, number // together, policy) for number in range(size)]
    submitted = await engine.submit(orders)
    leases = await _take(engine, size)
    _raise_first([one.error for one in submitted])
    return leases


def _raise_first(errors: Iterable[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


async def _take(engine: Engine, size: int) -> list[Lease]:
    """As many as were submitted; what another stream is just taking is passed over at first."""
    leases: list[Lease] = []
    for _ in range(TRIES):
        token = secrets.token_hex(16)
        more = await engine.claim(
            [LANE],
            size - len(leases),
            tasks=[TASK],
            worker="bench",
            token=token,
            ttl_ms=_TTL_MS,
        )
        leases += more
        if len(leases) == size:
            return leases
    raise Corrupt(f"only {len(leases)} of {size} executions could be claimed")


def _order(engine: Engine, partition: int, policy: str) -> Order:
    unique = uuid7(engine.clock.now_ms(), secrets.randbits(RANDOM_BITS))
    return Order(
        id=execution_id(partition % engine.counts.flow, unique),
        namespace=engine.namespace,
        lane=LANE,
        kind=TASK,
        payload=b'{"number":0}',
        policy=policy,
    )


def _reporter(count: int) -> Report:
    """A tenth at a time, to standard error: standard output is for the figures."""
    done = 0

    def report(size: int) -> None:
        nonlocal done
        before, done = done, done + size
        if before * STEPS // count != done * STEPS // count:
            print(f"preloaded {done:,} of {count:,}", file=sys.stderr, flush=True)

    return report
