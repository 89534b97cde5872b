"""Gathers outcomes and finishes them in few calls.

The first one goes out at once; while a call is under way others gather for the next. An outcome
is kept and tried again while the store is away; whether it still counts when the store is back is
the guard's business. Meanwhile there is no room for more, so that the worker claims nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Finished, Outcome
from flowfabric.errors import StoreUnavailable

logger = logging.getLogger("flowfabric.finisher")

PAUSE_SECONDS = (0.1, 5.0)
WAITING_LIMIT = 10 * BATCH_LIMIT

OnFinished = Callable[[Sequence[Outcome], Sequence[Finished]], None]


class Finisher:
    """`run` stores what `finish` was given; `on_finished` hears what became of each batch."""

    def __init__(self, engine: Engine, on_finished: OnFinished) -> None:
        self._engine = engine
        self._on_finished = on_finished
        self._waiting: list[Outcome] = []
        self._changed = asyncio.Event()
        self._is_stuck = False
        self._give_up: float | None = None

    @property
    def has_room(self) -> bool:
        """Whether the store keeps up, so that more work may be taken."""
        return not self._is_stuck and len(self._waiting) < WAITING_LIMIT

    def finish(self, outcome: Outcome) -> None:
        self._waiting.append(outcome)
        self._changed.set()

    def close(self, seconds: float) -> None:
        """Let `run` return once everything is stored, or could not be for so long."""
        self._give_up = asyncio.get_running_loop().time() + seconds
        self._changed.set()

    async def run(self) -> None:
        while self._waiting or self._give_up is None:
            self._changed.clear()
            batch, self._waiting = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
            if batch:
                self._on_finished(batch, await self._store(batch))
            elif self._give_up is None:
                await self._changed.wait()

    async def _store(self, outcomes: Sequence[Outcome]) -> Sequence[Finished]:
        try:
            return await self._store_all(outcomes)
        except Exception as error:
            # Not the store's trouble but that of one of them: it must not take others with it.
            logger.exception("outcomes could not be stored", extra={"outcomes": len(outcomes)})
            if len(outcomes) == 1:
                return [_unstored(outcomes[0], error)]
        return [answer for one in outcomes for answer in await self._store([one])]

    async def _store_all(self, outcomes: Sequence[Outcome]) -> Sequence[Finished]:
        pause, most = PAUSE_SECONDS
        while True:
            try:
                answers = await self._engine.finish(outcomes)
            except (StoreUnavailable, OSError) as error:
                logger.warning(
                    "outcomes could not be stored yet: %s",
                    error,
                    extra={"outcomes": len(outcomes)},
                )
                if self._is_too_late():
                    return [_unstored(outcome, error) for outcome in outcomes]
                self._is_stuck = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
            else:
                self._is_stuck = False
                return answers

    def _is_too_late(self) -> bool:
        return self._give_up is not None and asyncio.get_running_loop().time() >= self._give_up


def _unstored(outcome: Outcome, error: Exception) -> Finished:
    """Nobody will hear of it: its lease runs out, and the work is done again."""
    lost = StoreUnavailable(f"the outcome could not be stored: {error}")
    return Finished(id=outcome.lease.id, state=None, error=lost)
