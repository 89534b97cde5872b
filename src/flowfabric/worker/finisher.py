"""Gathers outcomes and finishes them in few calls.

An outcome is kept and tried again while the store is away; whether it still counts when the store
is back is the guard's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.batcher import Batcher
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Finished, Outcome
from flowfabric.errors import StoreUnavailable

logger = logging.getLogger("flowfabric.finisher")

PAUSE_SECONDS = (0.1, 5.0)


class Finisher:
    """`finish` answers when the outcome is stored or refused."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batcher: Batcher[Outcome, Finished] = Batcher(self._run, limit=BATCH_LIMIT)

    def finish(self, outcome: Outcome) -> asyncio.Future[Finished]:
        return self._batcher.submit(outcome)

    async def drain(self) -> None:
        await self._batcher.drain()

    async def _run(self, outcomes: Sequence[Outcome]) -> list[Finished | Exception]:
        pause, most = PAUSE_SECONDS
        while True:
            try:
                return list(await self._engine.finish(outcomes))
            except StoreUnavailable as error:
                logger.warning(
                    "outcomes could not be stored yet",
                    extra={"error": error.code, "outcomes": len(outcomes)},
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, most)
