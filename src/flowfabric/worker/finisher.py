"""Gathers outcomes and finishes them in few calls.

The first one goes out at once; while a call is under way others gather for the next. An outcome
is kept and tried again while the store is away; whether it still counts when the store is back is
the guard's business.
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

OnFinished = Callable[[Sequence[Outcome], Sequence[Finished]], None]


class Finisher:
    """`run` stores what `finish` was given; `on_finished` hears what became of each batch."""

    def __init__(self, engine: Engine, on_finished: OnFinished) -> None:
        self._engine = engine
        self._on_finished = on_finished
        self._waiting: list[Outcome] = []
        self._changed = asyncio.Event()
        self._is_closing = False

    def finish(self, outcome: Outcome) -> None:
        self._waiting.append(outcome)
        self._changed.set()

    def close(self) -> None:
        """Let `run` return once everything is stored."""
        self._is_closing = True
        self._changed.set()

    async def run(self) -> None:
        while self._waiting or not self._is_closing:
            self._changed.clear()
            batch, self._waiting = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
            if batch:
                self._on_finished(batch, await self._store(batch))
            elif not self._is_closing:
                await self._changed.wait()

    async def _store(self, outcomes: Sequence[Outcome]) -> Sequence[Finished]:
        pause, most = PAUSE_SECONDS
        while True:
            try:
                return await self._engine.finish(outcomes)
            except StoreUnavailable as error:
                logger.warning(
                    "outcomes could not be stored yet",
                    extra={"error": error.code, "outcomes": len(outcomes)},
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
