"""Flows measured through the public API: chains, a fan-out, a race."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from statistics import median

import msgspec

from flowfabric.app import App
from flowfabric.cli.bench.cycle import SLOTS, Percentiles
from flowfabric.cli.bench.others import other
from flowfabric.cli.bench.replica import Load, Place
from flowfabric.cli.bench.targets import Target, require_shared
from flowfabric.client.flow_handle import FlowHandle
from flowfabric.errors import Corrupt, ExecutionCancelled
from flowfabric.node import Node
from flowfabric.task import Task

WARM_UP = 3


class Chain(msgspec.Struct, frozen=True):
    flows_per_s: float


class Fanout(msgspec.Struct, frozen=True):
    fanout_ms: Percentiles


class Siblings(msgspec.Struct, frozen=True):
    cancel_ms: Percentiles


class Bench:
    """An app of its own namespace with the few tasks that the graphs are made of."""

    def __init__(self, url: str, namespace: str = "") -> None:
        namespace = namespace or f"bench-{secrets.token_hex(4)}"
        self.app = App(url, namespace=namespace, concurrency=SLOTS)
        self.gate = asyncio.Event()
        self.decided: list[float] = []

        @self.app.task
        async def step(number: int) -> int:
            return number + 1

        @self.app.task
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        @self.app.task
        async def stuck(number: int) -> int:
            await asyncio.Event().wait()
            return number

        @self.app.task
        async def quick(number: int) -> int:
            await self.gate.wait()
            self.decided.append(time.perf_counter())
            return number

        self.step: Task[..., int] = step
        self.total: Task[..., int] = total
        self.stuck: Task[..., int] = stuck
        self.quick: Task[..., int] = quick

    async def chain(self, nodes: int) -> tuple[FlowHandle, Node[int]]:
        graph = self.app.graph("chain")
        node = graph.add(self.step, 0)
        for _ in range(nodes - 1):
            node = graph.add(self.step, node)
        return await graph.submit(), node


async def chain(target: Target, load: Load, repeat: int, *, is_apart: bool = False) -> Chain:
    """Flows per second, all submitted at once, each member handing its result to the next."""
    bench = Bench(target.url)
    nodes, flows = load.nodes, load.flows
    rates: list[float] = []
    async with worker_apart(target, bench) if is_apart else bench.app.running():
        await _chains(bench, nodes, WARM_UP)
        for _ in range(repeat):
            began = time.perf_counter()
            await _chains(bench, nodes, flows)
            rates.append(flows / (time.perf_counter() - began))
    return Chain(median(rates))


@asynccontextmanager
async def worker_apart(target: Target, bench: Bench) -> AsyncIterator[None]:
    """The client here, the worker with its engine in a process of its own."""
    require_shared(target)
    place = Place(target.url, bench.app.engine.namespace)
    async with other("flowfabric.cli.bench.hand", msgspec.json.encode(place).decode()):
        await bench.app.connect()
        try:
            yield
        finally:
            await bench.app.close()


async def _chains(bench: Bench, nodes: int, flows: int) -> None:
    made = await asyncio.gather(*(bench.chain(nodes) for _ in range(flows)))
    results = await asyncio.gather(*(run.result(node) for run, node in made))
    if results != [nodes] * flows:
        raise Corrupt("the results do not match the chains that were started")


async def fanout(url: str, width: int, samples: int) -> Fanout:
    """One to many to one, from the submit to the last result."""
    bench = Bench(url)

    async def once() -> None:
        graph = bench.app.graph("fanout")
        first = graph.add(bench.step, 0)
        middle = [graph.add(bench.step, first) for _ in range(width)]
        last = graph.add(bench.total, middle)
        run = await graph.submit()
        if await run.result(last) != 2 * width:
            raise Corrupt("the sum does not match the members")

    async with bench.app.running():
        return Fanout(await _timed(once, samples))


async def siblings(url: str, width: int, samples: int) -> Siblings:
    """From the success that decides a race to the last of the others cancelled."""
    bench = Bench(url)
    async with bench.app.running():
        spans = [await _race(bench, width) for _ in range(samples + WARM_UP)]
    return Siblings(percentiles(spans[WARM_UP:]))


async def _race(bench: Bench, width: int) -> float:
    bench.gate.clear()
    bench.decided.clear()
    graph = bench.app.graph("race")
    losers = [graph.add(bench.stuck, number) for number in range(width - 1)]
    winner = graph.add(bench.quick, 0)
    graph.add(bench.step, graph.any_of(winner, *losers))
    run = await graph.submit()
    bench.gate.set()
    await asyncio.gather(*(_cancelled(run, node) for node in losers))
    return (time.perf_counter() - bench.decided[0]) * 1000


async def _cancelled(run: FlowHandle, node: Node[int]) -> None:
    try:
        await run.result(node)
    except ExecutionCancelled:
        return
    raise Corrupt("a member that lost the race was not cancelled")


async def _timed(once: Callable[[], Awaitable[None]], samples: int) -> Percentiles:
    spans: list[float] = []
    for _ in range(samples + WARM_UP):
        began = time.perf_counter()
        await once()
        spans.append((time.perf_counter() - began) * 1000)
    return percentiles(spans[WARM_UP:])


def percentiles(spans: Sequence[float]) -> Percentiles:
    ordered = sorted(spans)
    places = [min(len(ordered) * percent // 100, len(ordered) - 1) for percent in (50, 95, 99)]
    return Percentiles(*(ordered[place] for place in places))
