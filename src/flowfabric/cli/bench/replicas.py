"""Several engines on one store: whether they share the work, and what the death of one costs.

The engines are processes of their own; the worker is in this one and dispatches nothing, so that
every step of a chain is some engine's doing.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from flowfabric.app import App
from flowfabric.cli.bench.others import READY
from flowfabric.cli.bench.replica import Load, Place, Report
from flowfabric.cli.bench.targets import Target, require_shared
from flowfabric.client.flow_handle import FlowHandle
from flowfabric.core.ids import ExecutionId, parse_execution_id
from flowfabric.errors import Corrupt, FlowFabricError
from flowfabric.node import Node
from flowfabric.task import Task
from flowfabric.worker.worker import Worker

SLOTS = 500
PATIENCE_SECONDS = 120.0
# Whoever takes nothing cannot die with it: then all is done once more.
TRIES = 5

Process = subprocess.Popen[str]


class Replicas(msgspec.Struct, frozen=True):
    """`takeover_ms`: the longest that any member waited to be released while an engine died."""

    dispatches: int
    dispatches_of_one: int
    takeover_ms: int


class NobodyDied(Exception):
    """The engine that was to die with flows in its hands never had any."""


class Floor:
    """An app whose worker is here and whose engines are elsewhere."""

    def __init__(self, url: str, load: Load) -> None:
        self.app = App(url, namespace=f"bench-{secrets.token_hex(4)}")
        self.load = load

        @self.app.task
        async def step(number: int) -> int:
            return number + 1

        self.step: Task[..., int] = step

    async def work(self) -> list[list[ExecutionId]]:
        """Run the chains to their ends; answers the members of each in their order."""
        worker = Worker(
            self.app.engine,
            {self.step.name: self.step.handler},
            name="bench",
            lanes=["default"],
            slots=SLOTS,
        )
        working = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                made = await asyncio.gather(*(self._chain() for _ in range(self.load.flows)))
                results = await asyncio.gather(*(run.result(nodes[-1]) for run, nodes in made))
                # The engines hear of the last ends as well.
                await asyncio.gather(*(_counted(run) for run, _ in made))
        finally:
            worker.stop()
            await working
        if set(results) != {self.load.nodes}:
            raise Corrupt("the results do not match the chains that were started")
        return [[parse_execution_id(node.id) for node in nodes] for _, nodes in made]

    async def _chain(self) -> tuple[FlowHandle, list[Node[int]]]:
        graph = self.app.graph("chain")
        nodes = [graph.add(self.step, 0)]
        for _ in range(self.load.nodes - 1):
            nodes.append(graph.add(self.step, nodes[-1]))
        return await graph.submit(), nodes

    async def longest_wait_ms(self, chains: Sequence[Sequence[ExecutionId]]) -> int:
        """From the end of a member to the start of the next one."""
        waits: list[int] = []
        for chain in chains:
            ended_ms: int | None = None
            for id in chain:
                seen = await self.app.engine.read.describe(id)
                if seen is None or seen.started_ms is None or seen.ended_ms is None:
                    raise Corrupt(f"{id} has not run")
                waits.append(0 if ended_ms is None else seen.started_ms - ended_ms)
                ended_ms = seen.ended_ms
        return max(waits)


async def _counted(run: FlowHandle) -> None:
    while (seen := (await run.status()).flow).ended < seen.total:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.01)


async def run(target: Target, *, engines: int, load: Load) -> Replicas:
    require_shared(target)
    alone, _ = await _measure(target.url, load, engines=1)
    together, _ = await _measure(target.url, load, engines=engines)
    for _ in range(TRIES):
        with suppress(NobodyDied):
            _, takeover_ms = await _measure(target.url, load, engines=engines, is_one_mortal=True)
            return Replicas(together, alone, takeover_ms)
    raise FlowFabricError("no engine was busy enough to be killed at work", hint="raise --flows")


async def _measure(
    url: str, load: Load, *, engines: int, is_one_mortal: bool = False
) -> tuple[int, int]:
    """How many rounds the engines made, and the longest wait of a member."""
    floor = Floor(url, load)
    await floor.app.connect()
    places = [Place(url, floor.app.engine.namespace) for _ in range(engines)]
    if is_one_mortal:
        places[0] = msgspec.structs.replace(places[0], is_mortal=True)
    with ExitStack() as stack:
        processes = [stack.enter_context(_process(place)) for place in places]
        await asyncio.gather(*(asyncio.to_thread(_await_ready, each) for each in processes))
        try:
            chains = await floor.work()
            longest_ms = await floor.longest_wait_ms(chains)
        finally:
            await floor.app.close()
        if is_one_mortal and processes[0].poll() is None:
            raise NobodyDied
        left = processes[is_one_mortal:]
        reports = await asyncio.gather(*(asyncio.to_thread(_ended, each) for each in left))
    return sum(report.dispatches for report in reports), longest_ms


@contextmanager
def _process(place: Place) -> Iterator[Process]:
    process = subprocess.Popen(
        [sys.executable, "-m", "flowfabric.cli.bench.replica"],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            if process.stdin is not None:
                process.stdin.write(f"{msgspec.json.encode(place).decode()}\n")
                process.stdin.flush()
            yield process
        finally:
            process.kill()


def _await_ready(process: Process) -> None:
    if process.stdout is None or process.stdout.readline().strip() != READY:
        raise _fallen(process)


def _ended(process: Process) -> Report:
    """Its input ends, and it says what it did."""
    with suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.close()
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise _fallen(process)
    return msgspec.json.decode(line, type=Report)


def _fallen(process: Process) -> FlowFabricError:
    said = process.stderr.read() if process.stderr is not None else ""
    last = said.strip().splitlines()[-1:] or ["it printed nothing"]
    return FlowFabricError(f"an engine process failed: {last[0]}")
