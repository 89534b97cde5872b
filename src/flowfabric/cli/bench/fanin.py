"""Fan-ins: how long a join waits for its release after the last of its members has ended.

Apart, members are ended by processes that dispatch nothing, and dispatched by another one that ends
nothing: every end has to be heard of. The times are those of the log, so the store's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from flowfabric.cli.bench.flows import WARM_UP, Bench, percentiles
from flowfabric.cli.bench.others import other
from flowfabric.cli.bench.replica import Place
from flowfabric.cli.bench.targets import Target, require_shared
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.model import Feed
from flowfabric.errors import Corrupt

HANDS = 2
SUBMITTED = {"submitted"}
STARTED = {"claimed"}


class Fanin(msgspec.Struct, frozen=True):
    p50_ms: float
    p99_ms: float


async def run(target: Target, width: int, repeat: int, *, is_apart: bool) -> Fanin:
    bench = Bench(target.url)
    async with _apart(target, bench) if is_apart else bench.app.running():
        waits = [await _wait_ms(bench, width) for _ in range(repeat + WARM_UP)]
    found = percentiles(waits[WARM_UP:])
    return Fanin(found.p50, found.p99)


@asynccontextmanager
async def _apart(target: Target, bench: Bench) -> AsyncIterator[None]:
    """The client here, one process that dispatches, and some that end members."""
    require_shared(target)
    tasks = (bench.step.name, bench.total.name)
    where = Place(target.url, bench.app.engine.namespace, tasks=tasks)
    place = msgspec.json.encode(where).decode()
    await bench.app.connect()
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(other("flowfabric.cli.bench.replica", place))
            for _ in range(HANDS):
                await stack.enter_async_context(other("flowfabric.cli.bench.member_hand", place))
            yield
    finally:
        await bench.app.close()


async def _wait_ms(bench: Bench, width: int) -> float:
    """From the end of the last member to the release of the join."""
    graph = bench.app.graph("fan-in")
    members = [graph.add(bench.step, 0) for _ in range(width)]
    last = graph.add(bench.total, members)
    run = await graph.submit()
    await run.result(last)
    ended_ms = [await _first_ms(bench, node.id, SUBMITTED | STARTED) for node in members]
    released_ms = await _first_ms(bench, last.id, SUBMITTED)
    # The clocks of two processes may differ by a little.
    return max(released_ms - max(ended_ms), 0)


async def _first_ms(bench: Bench, id: str, besides: AbstractSet[str]) -> int:
    """The time of its first line in the log that is of another kind."""
    for event in await bench.app.engine.read.events(Feed(execution=parse_execution_id(id))):
        if event.kind not in besides:
            return event.at_ms
    raise Corrupt(f"{id} was not released")
