"""Stores the lines that running attempts have logged, those of all attempts in one call.

A short attempt needs no call of its own: its lines go with its outcome. A long one is a second
behind while the store answers, so that people can watch it; a killed worker loses that second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Lease
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Outcome, with_entries
from flowfabric.loggers import logger_of
from flowfabric.worker.attempt_log import AttemptLog

logger = logger_of("flowfabric.worker")

STORE_SECONDS = 1.0


class LineKeeper:
    """One per worker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[tuple[ExecutionId, int], AttemptLog] = {}
        self._storing: asyncio.Task[None] | None = None

    def log_of(self, lease: Lease, loop: asyncio.AbstractEventLoop) -> AttemptLog:
        """For an attempt that runs in this loop; `with_lines` ends it."""
        log = AttemptLog(lease, self._engine.clock.now_ms, _in_loop(loop, self._store_soon))
        self._open[lease.id, lease.epoch] = log
        return log

    def with_lines(self, outcome: Outcome) -> Outcome:
        """The outcome of an attempt together with what it logged last."""
        log = self.forget(outcome.lease)
        entries = log.entries if log is not None else ()
        return with_entries(outcome, entries) if entries else outcome

    def forget(self, lease: Lease) -> AttemptLog | None:
        return self._open.pop((lease.id, lease.epoch), None)

    def _store_soon(self) -> None:
        if self._storing is None:
            self._storing = asyncio.get_running_loop().create_task(self._store())

    async def _store(self) -> None:
        try:
            await asyncio.sleep(STORE_SECONDS)
            await self.store_all()
        finally:
            self._storing = None
        if any(log.entries for log in self._open.values()):
            self._store_soon()

    async def store_all(self) -> None:
        """All that has gathered. Without an answer, later once more, or with the outcome."""
        found = [(log, log.entries) for log in self._open.values()]
        batch = [(log, entries) for log, entries in found if entries]
        if not batch:
            return
        try:
            answers = await self._engine.append([(log.lease, e) for log, e in batch])
        except Exception as error:
            # Lines are for people: whatever is wrong with them must not stop the work.
            logger.warning("could not store log lines, trying again: %r", error)
            return
        for (log, entries), is_written in zip(batch, answers, strict=True):
            log.stored(entries)
            if not is_written:
                # Its lease is over: whatever it logs from now on is of no attempt.
                self.forget(log.lease)

    async def close(self) -> None:
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.wait([self._storing])


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> Callable[[], None]:
    """The call, made in the event loop, from whatever thread."""

    def soon() -> None:
        # A thread may outlive the loop of its worker.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    return soon
