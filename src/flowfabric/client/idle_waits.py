"""Warns once about each execution that is waited for while no live worker serves it."""

from __future__ import annotations

from collections.abc import Collection

from flowfabric.core.ids import ExecutionId
from flowfabric.engine.engine import Engine
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.client")

PATIENCE_MS = 5_000
LOOK_AT = 500


class IdleWaits:
    """The reader of the log calls `look` now and then; waiting itself costs nothing more."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before: set[ExecutionId] = set()
        self._before_ms = 0
        self._told: set[ExecutionId] = set()

    async def look(self, waiting: Collection[ExecutionId]) -> None:
        """Executions that were waited for at the last look, a while ago, and still are."""
        now_ms = self._engine.clock.now_ms()
        if now_ms - self._before_ms < PATIENCE_MS:
            return
        self._told &= set(waiting)
        late = [id for id in waiting if id in self._before and id not in self._told][:LOOK_AT]
        self._before, self._before_ms = set(waiting), now_ms
        if late:
            self._told.update(late)
            await self._tell(late)

    async def _tell(self, late: list[ExecutionId]) -> None:
        try:
            found = await self._engine.read.unserved(late)
        except FlowFabricError as error:
            logger.debug("could not read the worker registry: %r", error)
            return
        for why, ids in found.items():
            others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
            logger.warning("waiting for %s%s: %s", ids[0], others, why, extra={"execution": ids[0]})
