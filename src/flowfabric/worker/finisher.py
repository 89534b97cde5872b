"""Gathers outcomes and finishes them in few calls.

The first one goes out at once; while a call is under way others gather for the next. An outcome
is kept and tried again while the store is away; whether it still counts when the store is back is
the guard's business. Meanwhile there is no room for more, so that the worker claims nothing.

What ends many flows goes out in portions, of which a second is decided here while the store still
writes the first. Outcomes of one flow, and those of none, are never in two calls at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.direct_ends import Followed
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Finished, Follow, Outcome
from flowfabric.errors import StoreMismatch, StoreUnavailable
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.finisher")

PAUSE_SECONDS = (0.1, 5.0)
WAITING_LIMIT = 10 * BATCH_LIMIT
FLIGHTS = 2
FLOWS_IN_FLIGHT = 100

OnFinished = Callable[[Sequence[Outcome], Followed, Follow | None], None]
MayFollow = Callable[[int], Follow | None]


class Finisher:
    """`run` stores what `finish` was given; `on_finished` hears what became of each batch.

    `may_follow` answers how the worker would hold up to so many members that ends set free.
    """

    def __init__(self, engine: Engine, on_finished: OnFinished, may_follow: MayFollow) -> None:
        self._engine = engine
        self._on_finished = on_finished
        self._may_follow = may_follow
        self._waiting: list[Outcome] = []
        self._flying: list[set[str]] = []
        self._flights: asyncio.TaskGroup | None = None
        self._is_starting = False
        self._changed = asyncio.Event()
        self._is_stuck = False
        self._give_up: float | None = None

    @property
    def has_room(self) -> bool:
        """Whether the store keeps up, so that more work may be taken."""
        return not self._is_stuck and len(self._waiting) < WAITING_LIMIT

    def finish(self, outcome: Outcome) -> None:
        self._waiting.append(outcome)
        self._launch()

    def close(self, seconds: float) -> None:
        """Let `run` return once everything is stored, or could not be for so long."""
        self._give_up = asyncio.get_running_loop().time() + seconds
        self._changed.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as flights:
            self._flights = flights
            try:
                self._launch()
                while self._waiting or self._flying or self._give_up is None:
                    self._changed.clear()
                    await self._changed.wait()
            finally:
                # What is said from now on comes too late.
                self._flights = None

    def _launch(self) -> None:
        """Begin another call, if there may be one: it takes what has gathered when it starts."""
        is_room = not self._is_starting and len(self._flying) < FLIGHTS
        if self._flights is not None and self._waiting and is_room:
            self._is_starting = True
            self._flights.create_task(self._fly())

    def _next(self) -> list[Outcome]:
        """Those that go out together now: of few flows, and of none that is under way."""
        busy = set[str]().union(*self._flying)
        flows: set[str] = set()
        batch: list[Outcome] = []
        rest: list[Outcome] = []
        for outcome in self._waiting:
            flow = outcome.lease.head.flow
            is_free = flow in flows or (flow not in busy and len(flows) < FLOWS_IN_FLIGHT)
            if is_free and len(batch) < BATCH_LIMIT:
                flows.add(flow)
                batch.append(outcome)
            else:
                rest.append(outcome)
        self._waiting = rest
        return batch

    async def _fly(self) -> None:
        self._is_starting = False
        batch = self._next()
        if not batch:
            return
        flows = {outcome.lease.head.flow for outcome in batch}
        self._flying.append(flows)
        self._launch()
        follow = self._may_follow(len(batch)) if flows != {""} else None
        try:
            self._on_finished(batch, await self._store(batch, follow), follow)
        finally:
            self._flying.remove(flows)
            self._changed.set()
        self._launch()

    async def _store(self, outcomes: Sequence[Outcome], follow: Follow | None) -> Followed:
        try:
            return await self._store_all(outcomes, follow)
        except StoreMismatch as error:
            lost = [_unstored(outcome, error) for outcome in outcomes]
            return Followed(lost, [], follow is not None)
        except Exception as error:
            # Not the store's trouble but that of one of them: it must not take others with it.
            logger.exception("could not store outcomes", extra={"outcomes": len(outcomes)})
            if len(outcomes) == 1:
                return Followed([_unstored(outcomes[0], error)], [], follow is not None)
        each = [await self._store([one], None) for one in outcomes]
        answers = [answer for one in each for answer in one.answers]
        return Followed(answers, [], follow is not None)

    async def _store_all(self, outcomes: Sequence[Outcome], follow: Follow | None) -> Followed:
        pause, most = PAUSE_SECONDS
        is_unanswered = False
        while True:
            ask = None if is_unanswered else follow
            try:
                answers, leases, is_doubtful = await self._engine.finish_and_follow(outcomes, ask)
            except (StoreUnavailable, OSError) as error:
                is_unanswered = follow is not None
                logger.warning(
                    "could not store outcomes, trying again: %s",
                    error,
                    extra={"outcomes": len(outcomes)},
                )
                if self._is_too_late():
                    lost = [_unstored(outcome, error) for outcome in outcomes]
                    return Followed(lost, [], is_unanswered)
                self._is_stuck = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
            else:
                self._is_stuck = False
                return Followed(answers, leases, is_unanswered or is_doubtful)

    def _is_too_late(self) -> bool:
        return self._give_up is not None and asyncio.get_running_loop().time() >= self._give_up


def _unstored(outcome: Outcome, error: Exception) -> Finished:
    """Nobody will hear of it: its lease runs out, and the work is done again."""
    lost = StoreUnavailable(f"could not store the outcome: {error}")
    return Finished(id=outcome.lease.id, state=None, error=lost)
