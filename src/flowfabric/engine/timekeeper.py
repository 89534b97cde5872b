"""Every timer of every execution: what is due is decided again and applied.

It sleeps until the next due time or a hint. Rows that cannot be handled move forward in time, so
that they keep nothing behind them from being served. Rows that its filter does not name are left
as they are, and looked past.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from flowfabric.core.documents import AnyDocument
from flowfabric.core.ids import ExecutionId, partition_of, stored_execution_id
from flowfabric.core.model import DueBatch, Execution, Malformed
from flowfabric.core.registry import KIND
from flowfabric.core.timers import Duty, on_due, poisoned
from flowfabric.core.transition import Applied, Rejected, Transition
from flowfabric.engine import telemetry
from flowfabric.engine.conflict import persistently
from flowfabric.engine.isolation import isolated, log_failed
from flowfabric.engine.loop import AGAIN, Loop
from flowfabric.engine.registry import remove_silent
from flowfabric.engine.sweeping import Scope, within
from flowfabric.engine.telemetry import Telemetry
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.hints import Hint
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.timekeeper")

BATCH = 500
NET_SECONDS = 15.0
LOOK_FURTHER = 4


class Sweep(msgspec.Struct, frozen=True):
    """What one round did: duties done, rows that failed, and when the next timer passes."""

    processed: int
    errors: int
    duties: dict[Duty, int]
    again: bool
    next_ms: int | None


class Timekeeper:
    """The loop over `due`. Any number of them may run on one store: guards keep them apart."""

    def __init__(
        self,
        store: Store,
        clock: FollowingClock,
        *,
        batch: int = BATCH,
        counts: Telemetry | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.counts = counts or Telemetry()
        self.filter = scope
        self._store = store
        self._clock = clock
        self._batch = batch
        self._next_ms: int | None = None
        self.loop = Loop("timekeeper", self._round, every_seconds=NET_SECONDS)

    def hear(self, hint: Hint) -> None:
        """Wake for a timer that is sooner than the one waited for."""
        sooner = hint.due_ms is not None and (self._next_ms is None or hint.due_ms < self._next_ms)
        if sooner or hint.foreign:
            self.loop.wake()

    async def _round(self) -> float:
        self._next_ms = None
        sweep = await self.run_once()
        if sweep.again:
            return AGAIN
        self._next_ms = sweep.next_ms
        if sweep.next_ms is None:
            return NET_SECONDS
        return max((sweep.next_ms - self._clock.now_ms()) / 1000, 0.001)

    async def run_once(self) -> Sweep:
        """One batch of what is due now. A store that does not answer counts as one error."""
        try:
            return await persistently(self._clock, self._sweep)
        except FlowFabricError as error:
            logger.warning("could not read timers", extra={"error": error.code})
            return Sweep(0, 1, {}, again=False, next_ms=self._clock.now_ms() + 1_000)

    async def _sweep(self, _: bool) -> Sweep:
        # A clock that is behind would find nothing due, and nothing would tell it.
        asked_ms = self._clock.now_ms()
        self._clock.follow(await self._store.now(), asked_ms)
        due = await self._look()
        # The answer may have taken a while; what is decided now is decided with the time of now.
        now_ms = self._clock.now_ms()
        duties: Counter[Duty] = Counter()
        transitions: list[Transition] = []
        failed = 0
        decided: dict[str, Duty | None] = {}
        unreadable = {row.id for row in due.rows if isinstance(row, Malformed)}
        for row in due.rows:
            transition, duty, is_bad = _decide(row, now_ms)
            transitions.append(transition)
            decided[transition.id] = duty
            failed += is_bad
        await remove_silent(self._store, self._served(due.documents), now_ms)
        replies, lost = await self._apply(transitions, now_ms)
        rows = {row.id: row for row in due.rows}
        for transition, error in lost:
            failed += 1
            await self._put_off(rows[transition.id], now_ms, error)
        refused = 0
        for reply in replies:
            duty = decided[reply.id]
            refused += not isinstance(reply, Applied) and reply.id not in unreadable
            if isinstance(reply, Applied) and duty is not None:
                duties[duty] += 1
                self.counts.count(telemetry.TIMERS_DONE, duty)
        self.counts.count(telemetry.TIMERS_FAILED, by=failed)
        # A refused row has changed, not gone: its timer may still be due. One that cannot be read
        # may be refused for ever, and must not keep the loop from resting.
        again = len(due.rows) >= self._batch or refused > 0
        return Sweep(duties.total(), failed, dict(duties), again, due.next_ms)

    def _served(self, documents: Sequence[AnyDocument]) -> list[AnyDocument]:
        """Documents have no tags: whoever serves a tag alone serves none of them."""
        if self.filter is None or self.filter.is_everything:
            return list(documents)
        space = self.filter.namespace if self.filter.tag is None else None
        return [each for each in documents if each.namespace == space]

    async def _apply(
        self, transitions: Sequence[Transition], now_ms: int
    ) -> tuple[list[Applied | Rejected], list[tuple[Transition, Exception]]]:
        async def write(some: Sequence[Transition]) -> list[Applied | Rejected]:
            return await self._store.apply(some, now_ms)

        return await isolated(transitions, write)

    async def _put_off(self, row: Execution | Malformed, now_ms: int, error: Exception) -> None:
        """What follows from its timer cannot be written: later again, then never."""
        later, _, _ = _poison(row, now_ms, repr(error))
        _, lost = await self._apply([later], now_ms)
        for _, again in lost:
            log_failed(logger, "could not postpone a timer", again, {"execution": row.id})

    async def _look(self) -> DueBatch:
        """A batch of what is due and served here; behind what is not, the look goes further."""
        limit = self._batch
        while True:
            due = await self._store.due(self._clock.now_ms(), limit, (KIND,))
            mine = await within(self.filter, due.rows, self._store)
            if len(mine) >= self._batch or len(due.rows) < limit:
                return DueBatch(mine[: self._batch], due.next_ms, due.documents)
            limit *= LOOK_FURTHER


def _decide(row: Execution | Malformed, now_ms: int) -> tuple[Transition, Duty | None, bool]:
    if isinstance(row, Malformed):
        return _poison(row, now_ms, row.problem)
    try:
        duty, transition = on_due(row, now_ms)
    except Exception as error:
        return _poison(row, now_ms, repr(error))
    return transition, duty, False


def _poison(
    row: Execution | Malformed, now_ms: int, problem: str
) -> tuple[Transition, Duty | None, bool]:
    transition = poisoned(row, now_ms, problem)
    logger.error(
        "timer of %s failed",
        row.id,
        extra={
            "execution": row.id,
            "partition": _partition(row.id),
            "problem": problem,
            "failures": row.failures + 1,
            "parked": bool(transition.patch["parked"]),
        },
    )
    return transition, None, True


def _partition(id: ExecutionId) -> int | None:
    """The partition of an id; a damaged row may have one that is none."""
    try:
        return partition_of(stored_execution_id(id))
    except InvalidInput:
        return None
