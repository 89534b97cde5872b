"""Warns once about each execution that is waited for while no live worker serves it.

One that cannot be taken yet, such as a member of a flow that waits for others, or that a worker
serves now, is looked at again after a while: its upstreams may end, and its workers too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from flowfabric.core.ids import ExecutionId
from flowfabric.engine.engine import Engine
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.client")

PATIENCE_MS = 5_000
# From look to look the pause doubles up to this.
PATIENCE_MAX_MS = 60_000
LOOK_AT = 500


class _Next(NamedTuple):
    """When an execution is looked at, and how long after the look before."""

    at_ms: int
    pause_ms: int


class IdleWaits:
    """The reader of the log calls `look` now and then; waiting itself costs nothing more."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked_ms = 0
        self._next: dict[ExecutionId, _Next] = {}
        self._told: set[ExecutionId] = set()

    async def look(self, waiting: Collection[ExecutionId]) -> None:
        """Look at those that have been waited for long enough since they were looked at."""
        now_ms = self._engine.clock.now_ms()
        if now_ms - self._looked_ms < PATIENCE_MS:
            return
        self._looked_ms = now_ms
        self._told.intersection_update(waiting)
        new = _Next(now_ms + PATIENCE_MS, PATIENCE_MS)
        self._next = {id: self._next.get(id, new) for id in waiting if id not in self._told}
        late = [id for id, each in self._next.items() if each.at_ms <= now_ms][:LOOK_AT]
        if late:
            await self._look_at(late, now_ms)

    async def _look_at(self, late: list[ExecutionId], now_ms: int) -> None:
        for id in late:
            pause_ms = min(2 * self._next[id].pause_ms, PATIENCE_MAX_MS)
            self._next[id] = _Next(now_ms + pause_ms, pause_ms)
        try:
            found = await self._engine.read.unserved(late)
        except FlowFabricError as error:
            logger.debug("could not read the worker registry: %r", error)
            return
        for why, ids in found.items():
            self._told.update(ids)
            others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
            logger.warning("waiting for %s%s: %s", ids[0], others, why, extra={"execution": ids[0]})
