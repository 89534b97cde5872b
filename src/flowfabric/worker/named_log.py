"""Failures of named members, logged with their names.

A lease does not tell the name of a member. Only when one fails its tags are read, beside the work
of the worker; most ids show that there is no name.
"""

from __future__ import annotations

import asyncio

from flowfabric.core.flow.member_names import may_be_named
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Failed, Finished, Outcome
from flowfabric.errors import FlowFabricError
from flowfabric.worker.log import WorkerLog

CLOSE_SECONDS = 1.0


class NamedLog:
    """One per worker."""

    def __init__(self, engine: Engine, log: WorkerLog) -> None:
        self._engine = engine
        self._log = log
        self._asking: set[asyncio.Task[None]] = set()

    def finished(self, outcome: Outcome, answer: Finished, now_ms: int) -> None:
        head = outcome.lease.head
        if isinstance(outcome, Failed) and head.flow and may_be_named(head.id):
            asking = asyncio.get_running_loop().create_task(self._ask(outcome, answer, now_ms))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        else:
            self._log.finished(outcome, answer, now_ms)

    async def _ask(self, outcome: Outcome, answer: Finished, now_ms: int) -> None:
        id, name = outcome.lease.id, ""
        try:
            name = (await self._engine.read.member_names([id])).get(id, "")
        except FlowFabricError:
            # A store in trouble costs the name, not the line.
            name = ""
        finally:
            self._log.finished(outcome, answer, now_ms, name)

    async def close(self) -> None:
        """Until the last lines are written, with their names if the store tells them in time."""
        asking = list(self._asking)
        if asking:
            await asyncio.wait(asking, timeout=CLOSE_SECONDS)
            for each in asking:
                each.cancel()
            await asyncio.wait(asking)
