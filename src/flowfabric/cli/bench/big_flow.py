"""One big flow: its submit, and with `run` its execution by one worker, through the public API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import NamedTuple, assert_never

import msgspec

from flowfabric.cli.bench.bystander import bystander
from flowfabric.cli.bench.flows import Bench
from flowfabric.cli.bench.machine import peak_rss_mb
from flowfabric.cli.bench.targets import Target
from flowfabric.client.flow_handle import FlowHandle
from flowfabric.errors import Corrupt, InvalidInput
from flowfabric.graph import Graph
from flowfabric.node import Node

GROUP = 50
STALL_SECONDS = 0.002


class Shape(StrEnum):
    """`window`: each member waits for the few before it. `tree`: members are joined in groups, and
    the groups in one last join. `join`: one join of all members."""

    WINDOW = "window"
    TREE = "tree"
    JOIN = "join"


def shape_named(name: str) -> Shape:
    try:
        return Shape(name)
    except ValueError:
        known = ", ".join(Shape)
        raise InvalidInput(
            f"unknown shape {name!r}", field="shape", hint=f"use one of {known}"
        ) from None


class Plan(NamedTuple):
    """How the flow is made. `edges` is about how many a `window` has; the others have one for each
    member and group."""

    members: int
    edges: int = 0
    shape: Shape = Shape.WINDOW


class Submit(msgspec.Struct, frozen=True):
    """`members_per_s`: of the execution alone, if it was asked for."""

    seconds: float
    peak_rss_mb: float | None
    longest_stall_ms: float
    members_per_s: float | msgspec.UnsetType = msgspec.UNSET


class _Made(NamedTuple):
    graph: Graph
    members: int
    last: Node[int]
    result: int


async def submit(target: Target, plan: Plan, *, runs: bool = False) -> Submit:
    """One big graph, and the longest that a call of another client had to wait meanwhile."""
    bench = Bench(target.url)
    made = _draw(bench, plan)
    if not runs:
        await bench.app.connect()
        figures, executing = await _submitted(target, made)
        executing.cancel()
        await asyncio.wait([executing])
        await bench.app.close()
        return figures
    async with bench.app.running():
        # What is opened and prepared at first use is no cost of a member.
        first = _draw(bench, Plan(GROUP, shape=Shape.TREE))
        await _executed(first, await first.graph.submit())
        figures, executing = await _submitted(target, made)
        rate = await executing
    return msgspec.structs.replace(figures, members_per_s=rate)


async def _submitted(target: Target, made: _Made) -> tuple[Submit, asyncio.Task[float]]:
    """The figures of the submit, and the wait for the last result, which begins at its end."""
    # In memory there is no other client but this process.
    others = _own_loop() if target.kind == "memory" else bystander(target.url)
    async with others as longest_ms:
        began = time.perf_counter()
        run = await made.graph.submit()
        seconds = time.perf_counter() - began
        executing = asyncio.create_task(_executed(made, run))
    return Submit(seconds, peak_rss_mb(), longest_ms[0]), executing


async def _executed(made: _Made, run: FlowHandle) -> float:
    """Members per second, from the submit to the last result."""
    began = time.perf_counter()
    result = await run.result(made.last)
    seconds = time.perf_counter() - began
    if result != made.result:
        raise Corrupt("the last result does not match the flow")
    return made.members / seconds


def _draw(bench: Bench, plan: Plan) -> _Made:
    graph = bench.app.graph("big")
    match plan.shape:
        case Shape.WINDOW:
            return _window(bench, graph, plan)
        case Shape.TREE:
            leaves = _leaves(bench, graph, plan.members)
            groups = [
                graph.add(bench.total, leaves[start : start + GROUP])
                for start in range(0, plan.members, GROUP)
            ]
            last = graph.add(bench.total, groups)
            return _Made(graph, plan.members + len(groups) + 1, last, plan.members)
        case Shape.JOIN:
            last = graph.add(bench.total, _leaves(bench, graph, plan.members))
            return _Made(graph, plan.members + 1, last, plan.members)
        case _:
            assert_never(plan.shape)


def _window(bench: Bench, graph: Graph, plan: Plan) -> _Made:
    nodes: list[Node[int]] = []
    each = max(plan.edges // max(plan.members, 1), 1)
    for number in range(plan.members):
        nodes.append(graph.add(bench.step, number, after=nodes[-each:] if number >= each else ()))
    return _Made(graph, plan.members, nodes[-1], plan.members)


def _leaves(bench: Bench, graph: Graph, members: int) -> list[Node[int]]:
    """Each has the result one, so that the last result is how many there are."""
    return [graph.add(bench.step, 0) for _ in range(members)]


@asynccontextmanager
async def _own_loop() -> AsyncIterator[list[float]]:
    """The longest that anything else in this process had to wait."""
    stalls: list[float] = [0.0]
    longest_ms: list[float] = []
    watch = asyncio.create_task(_watch(stalls))
    await asyncio.sleep(0)
    yield longest_ms
    # Who waits all the time is heard only now.
    await asyncio.sleep(2 * STALL_SECONDS)
    watch.cancel()
    await asyncio.wait([watch])
    longest_ms.append(max(stalls))


async def _watch(stalls: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(STALL_SECONDS)
        stalls.append((time.perf_counter() - began - STALL_SECONDS) * 1000)
