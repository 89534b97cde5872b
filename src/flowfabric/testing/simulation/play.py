"""One seed from its beginning to its end: trouble, then peace, and an account of everything.

The same seed and number of steps is the same history, call by call; its digest says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import msgspec

from flowfabric.core.states import TERMINAL, LaneState, Reason
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow_staging import UNOPENED_MS
from flowfabric.errors import NotFound, Refused
from flowfabric.testing.simulation.clients import Client
from flowfabric.testing.simulation.engines import begin_engine
from flowfabric.testing.simulation.ledger import Broken
from flowfabric.testing.simulation.process import Process
from flowfabric.testing.simulation.rollout import Rollout
from flowfabric.testing.simulation.timeline import Timeline
from flowfabric.testing.simulation.wishes import HOME, LANES, Wishes
from flowfabric.testing.simulation.workers import Worker
from flowfabric.testing.simulation.world import Alarm, World

ENGINES, WORKERS, CLIENTS = 2, 2, 2
REST_SECONDS = 5.0
PEACE_SECONDS = 1_800.0
COMES_BACK_SECONDS = 10.0
WORKING = ("worker", "app")


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed did, and why it failed if it did."""

    seed: int
    steps: int
    seconds: int
    digest: str
    verbs: dict[str, int]
    faults: dict[str, int]
    counts: dict[str, int]
    problem: str = ""
    last: list[str] = []

    @property
    def is_well(self) -> bool:
        return not self.problem


def play(seed: int, steps: int) -> Played:
    """Trouble for so many store calls, then peace until nothing is left to do."""
    with asyncio.Runner(loop_factory=Timeline) as runner:
        return runner.run(_play(seed, steps))


async def _play(seed: int, steps: int) -> Played:
    timeline = asyncio.get_running_loop()
    if not isinstance(timeline, Timeline):
        raise TypeError("a simulation runs in its own time")
    # Pauses between rivals come from the common generator.
    common, random_before = random, random.getstate()
    common.seed(seed)
    world = World(seed, timeline)
    stage = Stage(world, steps)
    with _listening(world):
        problem = await _until_over(world, stage)
        await world.close()
    random.setstate(random_before)
    return Played(
        seed=seed,
        steps=world.steps,
        seconds=int(timeline.time()),
        digest=world.digest,
        verbs=dict(world.verbs),
        faults=dict(world.faults),
        counts=dict(world.ledger.counts),
        problem=problem,
        last=list(world.last),
    )


async def _until_over(world: World, stage: Stage) -> str:
    story = world.timeline.create_task(stage.run())
    over = world.timeline.create_task(world.over.wait())
    await asyncio.wait([story, over], return_when=asyncio.FIRST_COMPLETED)
    error = world.problem
    if error is None and story.done():
        error = story.exception()
    for task in (story, over):
        task.cancel()
    await asyncio.gather(story, over, return_exceptions=True)
    return "" if error is None else _told(error)


def _told(error: BaseException) -> str:
    cause = f"\nbecause of {error.__cause__!r}" if error.__cause__ else ""
    return f"{type(error).__name__}: {error}{cause}"


@contextmanager
def _listening(world: World) -> Iterator[None]:
    logger = logging.getLogger("flowfabric")
    alarm, was = Alarm(world), (logger.propagate, logger.level)
    logger.addHandler(alarm)
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(alarm)
        logger.propagate = was[0]
        logger.setLevel(was[1])


class Stage:
    """Who is there, and what happens when."""

    def __init__(self, world: World, steps: int) -> None:
        self._world = world
        self._steps = steps
        self._wishes = Wishes(world)
        self._rollout = Rollout(world, WORKING)
        self._lives: Counter[str] = Counter()
        self._is_open = True

    async def run(self) -> None:
        for number in range(ENGINES):
            self._enter(f"engine-{number}", begin_engine)
        for number in range(WORKERS):
            self._enter(f"worker-{number}", partial(self._begin_worker, number))
        self._enter("app-0", self._begin_app)
        for number in range(CLIENTS):
            self._enter(f"client-{number}", self._begin_client)
        self._world.begin(self._rollout.run())
        await self._world.has_done(self._steps)
        await self._make_peace()
        await self._until(self._is_over, "is not over")
        await self._world.judge_all()
        await self._world.judge_promises()
        await self._until(self._is_empty_of_opened, "is left behind")
        self._world.timeline.skip(UNOPENED_MS / 1000)
        await self._until(self._is_empty, "is left behind")
        await self._require_nothing_left()
        self._require_nothing_lost()

    def _begin_worker(self, number: int, process: Process) -> None:
        Worker(process, self._rollout.share(number, WORKERS)).begin()

    def _begin_client(self, process: Process) -> None:
        Client(process, self._wishes).begin()

    def _begin_app(self, process: Process) -> None:
        """Everything in one process: what is submitted here may be worked on without a look. In
        peace it keeps to its own lane, so that each worker has to do its share."""
        engine = Engine(process.store, clock=process.clock)
        begin_engine(process, engine.known)
        lanes = (*LANES, HOME) if self._is_open else (HOME,)
        Worker(process, self._rollout.program(), engine, lanes).begin()
        Client(process, Wishes(self._world, (HOME,)), engine).begin()

    def _enter(self, role: str, begin: Callable[[Process], None]) -> None:
        """A process begins to live; when it dies, another takes its place after a while."""
        if not self._is_open and role.startswith("client"):
            return
        self._lives[role] += 1
        name = f"{role}-{self._lives[role]}"
        process = Process(self._world, name, partial(self._come_back, role, begin))
        self._world.processes[name] = process
        begin(process)

    def _come_back(self, role: str, begin: Callable[[Process], None]) -> None:
        seconds = self._world.chance.random() * COMES_BACK_SECONDS
        self._world.timeline.call_later(seconds, self._enter, role, begin)

    async def _make_peace(self) -> None:
        world = self._world
        world.calm_down()
        self._is_open = False
        self._rollout.finish()
        for process in list(world.processes.values()):
            if process.name.startswith("client"):
                process.end()
        operator = Process(world, "operator", lambda: None)
        world.processes[operator.name] = operator
        engine = Engine(operator.store, clock=operator.clock)
        for lane in (*LANES, HOME):
            await engine.set_lane(lane, LaneState.ACTIVE)
        for row in list(world.store.rows.values()):
            if row.paused:
                with suppress(Refused, NotFound):
                    paused, request = Reason.PAUSED_BY_OPERATOR, world.request()
                    await engine.unblock(row.id, paused, request=request)
        self._world.begin(self._give_up_waiting(engine))

    async def _give_up_waiting(self, engine: Engine) -> None:
        """What was replayed and waits for a replay of its upstream that nobody means to ask for."""
        while True:
            await self._world.timeline.rest(REST_SECONDS)
            for id in self._world.store.waiting_for_replays():
                with suppress(Refused, NotFound):
                    why = "nobody replays what it waits for"
                    await engine.cancel(id, why, request=self._world.request())

    async def _until(self, problems: Callable[[], list[str]], otherwise: str) -> None:
        end = self._world.timeline.time() + PEACE_SECONDS
        while problems():
            if self._world.timeline.time() > end:
                raise Broken("\n".join(f"{said} {otherwise}" for said in problems()))
            await self._world.timeline.rest(REST_SECONDS)

    def _is_over(self) -> list[str]:
        """Executions that have not ended, and flows that are not settled."""
        store = self._world.store
        open_rows = [
            f"{row.id} ({row.state}, due {row.due_ms}, flow {row.flow})"
            for row in store.rows.values()
            if row.state not in TERMINAL and not self._is_staged(row.flow)
        ]
        flows = [flow for id in store.flow_ids if (flow := store.flow_of(id)) is not None]
        unsettled = [flow for flow in flows if flow.is_open and not flow.settled]
        # Not all of the record: the tokens of requests in it are drawn by chance.
        flows_said = [
            f"flow {flow.id} ({flow.state}, {flow.ended} of {flow.total} ended, due {flow.due_ms})"
            for flow in unsettled
        ]
        return [*open_rows, *flows_said]

    def _is_staged(self, flow: str) -> bool:
        store = self._world.store
        found = [id for id in store.flow_ids if id == flow]
        return any((seen := store.flow_of(id)) is not None and not seen.is_open for id in found)

    def _is_empty_of_opened(self) -> list[str]:
        """What has ended is kept for minutes here; what was staged and never opened, an hour."""
        store = self._world.store
        rows = [row.id for row in store.rows.values() if not self._is_staged(row.flow)]
        return [*rows, *(id for id in store.flow_ids if not self._is_staged(id))]

    def _is_empty(self) -> list[str]:
        store = self._world.store
        return [*store.rows, *store.flow_ids]

    async def _require_nothing_left(self) -> None:
        """Nothing that an execution or a flow owned outlives it."""
        sizes = await self._world.store.sizes()
        left = [f"{each.rows} of {each.name}" for each in sizes if each.rows]
        if any(not said.endswith("lane") for said in left):
            raise Broken(f"left behind: {left}")

    def _require_nothing_lost(self) -> None:
        ledger = self._world.ledger
        lost = [str(id) for id in ledger.executions if not self._world.is_kept(id)]
        lost += [f"flow {id}" for id in ledger.flows if id not in ledger.gone]
        if lost:
            raise Broken(f"acknowledged, and lost: {lost}")
