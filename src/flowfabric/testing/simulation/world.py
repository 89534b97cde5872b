"""The world of one seed: its time, its store, its chances, everybody in it, and what is watched.

All chance comes from one generator, in the order in which things happen; the digest of everything
that happened is the same for the same seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import msgspec

from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.errors import StoreUnavailable
from flowfabric.store.clock import SKEW_LIMIT_MS
from flowfabric.store.hints import Hint, Hints
from flowfabric.testing.faults import Verb
from flowfabric.testing.invariants import broken, broken_promises
from flowfabric.testing.picture import Picture, look
from flowfabric.testing.simulation.dials import CALM, CALM_AND_SLOW, STORMY
from flowfabric.testing.simulation.flow_judge import broken_whole, whole_of
from flowfabric.testing.simulation.ledger import Broken, Ledger
from flowfabric.testing.simulation.timeline import Timeline
from flowfabric.testing.simulation.watched import WatchedStore

if TYPE_CHECKING:
    from flowfabric.testing.simulation.process import Process

T = TypeVar("T")

LOOK_EVERY = 500
PROMISE_EVERY = 100
LAST_STEPS = 40


class Air(Hints):
    """What the store has to tell goes through the air: to everybody, late, twice or never."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def publish(self, hint: Hint) -> None:
        if hint != Hint():
            self._world.spread(hint)


class World:
    """Everything that the inhabitants share."""

    def __init__(self, seed: int, timeline: Timeline) -> None:
        self.seed = seed
        self.timeline = timeline
        self.chance = random.Random(seed)
        self.dials = STORMY
        self._is_slow = seed % 2 == 0
        self.ledger = Ledger()
        self.store = WatchedStore(timeline, self.ledger)
        self.store.hints = Air(self)
        self.processes: dict[str, Process] = {}
        self.steps = 0
        self.verbs: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.problem: BaseException | None = None
        self.over = asyncio.Event()
        self.last: deque[str] = deque(maxlen=LAST_STEPS)
        self._digest = hashlib.sha256()
        self._away_until = 0.0
        self._speaker: Process | None = None
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._enough = asyncio.Event()
        self._wanted = 0
        self._requests = count()

    def request(self) -> str:
        """A token for a verb that would otherwise draw one by chance: a seed is one history."""
        return f"request-{next(self._requests)}"

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:16]

    def happens(self, chance: float) -> bool:
        return chance > 0 and self.chance.random() < chance

    def fail(self, problem: BaseException) -> None:
        """The first problem ends the simulation."""
        if self.problem is None:
            self.problem = problem
            self.over.set()

    async def has_done(self, steps: int) -> None:
        """Until the store was called so often."""
        self._wanted = steps
        await self._enough.wait()

    def calm_down(self) -> None:
        """From now on nothing goes wrong any more; who is stopped still has to wake up. With every
        other seed the store is slow from then on, and stays so."""
        self.dials = CALM_AND_SLOW if self._is_slow else CALM
        self._away_until = 0.0

    @property
    def is_calm(self) -> bool:
        return self.dials in (CALM, CALM_AND_SLOW)

    def hit(self, fault: str) -> None:
        self.faults[fault] += 1

    # -- calls ------------------------------------------------------------------------------

    async def carry_out(self, process: Process, verb: Verb, run: Callable[[], Awaitable[T]]) -> T:
        """One call of the store, at one moment, judged."""
        if self._away_until > self.timeline.time():
            raise StoreUnavailable("the store is away")
        if self.happens(self.dials.away):
            self.hit("store away")
            self._away_until = self.timeline.time() + self.chance.random() * (
                self.dials.away_ms / 1000
            )
        self.steps += 1
        if self.steps >= self._wanted:
            self._enough.set()
        self.verbs[verb] += 1
        self._speaker = process
        answer = "raised"
        try:
            told = await run()
            answer = _summary(told)
            return told
        except Broken as error:
            self.fail(error)
            raise
        finally:
            self._speaker = None
            self._trace(process, verb, answer)
            await self._judge()

    def _trace(self, process: Process, verb: Verb, answer: str) -> None:
        at = self.timeline.now_ms()
        line = f"{self.steps} {at} {process.name} {verb} {answer} {self.store.written}"
        self._digest.update(line.encode())
        self.last.append(line)

    async def _judge(self) -> None:
        try:
            for flow in self.store.settle_up():
                await self._judge_flow(flow)
            if self.steps % PROMISE_EVERY == 0:
                await self.judge_promises()
            if self.steps % LOOK_EVERY == 0:
                await self.judge_all()
        except Broken as error:
            self.fail(error)
            raise

    async def _judge_flow(self, id: FlowId) -> None:
        whole = await whole_of(self.store, id)
        said = broken_whole(whole) if whole is not None else []
        if said:
            raise Broken("\n".join(said))

    async def judge_promises(self) -> None:
        said = await broken_promises(self.store, self.timeline.now_ms())
        if said:
            raise Broken("\n".join(said))

    async def judge_all(self) -> None:
        """Everything that can be judged about executions, their timers and their histories."""
        picture = await look(self.store, self.timeline.now_ms() + SKEW_LIMIT_MS)
        said = broken(self._alone(picture), skew_ms=2 * SKEW_LIMIT_MS)
        lost = [id for id in self.ledger.executions if not self.is_kept(id)]
        said += [f"{id}: was acknowledged, and is lost" for id in lost]
        if said:
            raise Broken("\n".join(said))

    def _alone(self, picture: Picture) -> Picture:
        """Executions of no flow: what others write into the history of a member is not judged."""
        rows = {id: each for id, each in picture.loaded.items() if not each.head.flow}
        due = [each.head.due_ms for each in rows.values()]
        later = [at for at in due if at is not None and at > picture.now_ms]
        return msgspec.structs.replace(
            picture,
            loaded={
                id: msgspec.structs.replace(each, attempts=self.store.loaded_of(each.head).attempts)
                for id, each in rows.items()
            },
            timers=[id for id in picture.timers if id in rows],
            overdue=[id for id in picture.overdue if id in rows],
            next_ms=min(later, default=None),
            log=[line for line in picture.log if line.execution in rows],
        )

    def is_kept(self, id: ExecutionId) -> bool:
        return id in self.store.rows or id in self.ledger.gone

    # -- hints ------------------------------------------------------------------------------

    def spread(self, hint: Hint) -> None:
        """Who wrote hears what, others hear that somebody wrote."""
        for process in list(self.processes.values()):
            if process.hints.is_heard:
                told = hint if process is self._speaker else Hint(foreign=True)
                self.tell(process, told)

    def tell(self, process: Process, hint: Hint) -> None:
        dials = self.dials
        if self.happens(dials.hint_lost):
            self.hit("hint lost")
            return
        for _ in range(2 if self.happens(dials.hint_twice) else 1):
            if self.happens(dials.hint_late):
                self.hit("hint late")
                late = self.chance.random() * dials.hint_late_ms / 1000
                self.timeline.call_later(late, process.hear, hint)
            else:
                process.hear(hint)

    # -- tasks that belong to nobody --------------------------------------------------------

    def begin(self, work: Coroutine[object, object, object]) -> None:
        self.keep(self.timeline.create_task(work))

    def keep(self, task: asyncio.Task[T]) -> None:
        """A task that nobody may be waiting for any more."""
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreUnavailable):
            self.fail(error)

    async def close(self) -> None:
        for process in list(self.processes.values()):
            process.end()
        left = [*self._tasks, *(t for p in self.processes.values() for t in p.tasks)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class Alarm(logging.Handler):
    """Errors in the log of the engine: nothing is damaged here, so nothing may need a repair."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, StoreUnavailable):
            problem = Broken(f"{record.name}: {record.getMessage()}")
            problem.__cause__ = error
            self._world.fail(problem)


def _summary(told: object) -> str:
    """Enough of an answer to tell two runs apart."""
    if isinstance(told, Sequence) and not isinstance(told, str):
        return str(len(told))
    return str(told) if isinstance(told, bool | int) else type(told).__name__
