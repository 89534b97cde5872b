"""Finished executions by the hundred thousand, made with the engine's verbs in large batches."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable

from flowfabric.app import App
from flowfabric.core.ids import RANDOM_BITS, execution_id, uuid7
from flowfabric.core.lifecycle import Order
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed
from flowfabric.errors import Corrupt

LANE = "bench-preload"
STREAMS = 3
STEPS = 10

_TTL_MS = 60_000

Report = Callable[[int], None]


async def preload(app: App, count: int) -> None:
    """Several streams at once, so that one decides while another's batch is written."""
    await app.connect()
    batches = [BATCH_LIMIT] * (count // BATCH_LIMIT)
    if count % BATCH_LIMIT:
        batches.append(count % BATCH_LIMIT)
    report = _reporter(count)
    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(_stream(app.engine, batches, report))


async def _stream(engine: Engine, batches: list[int], report: Report) -> None:
    while batches:
        size = batches.pop()
        await _finish(engine, size)
        report(size)


async def _finish(engine: Engine, size: int) -> None:
    submitted = await engine.submit([_order(engine, number) for number in range(size)])
    leases = await engine.claim(
        [LANE], size, worker="bench", token=secrets.token_hex(16), ttl_ms=_TTL_MS
    )
    finished = await engine.finish([Completed(lease, b"0") for lease in leases])
    errors = [one.error for one in submitted if one.error is not None]
    errors += [one.error for one in finished if one.error is not None]
    if errors:
        raise errors[0]
    if len(finished) != size:
        raise Corrupt(f"only {len(finished)} of {size} executions could be claimed")


def _order(engine: Engine, number: int) -> Order:
    unique = uuid7(engine.clock.now_ms(), secrets.randbits(RANDOM_BITS))
    return Order(
        id=execution_id(number // 100 % engine.counts.flow, unique),
        namespace=engine.namespace,
        lane=LANE,
        kind="noop",
        payload=b'{"number":0}',
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
