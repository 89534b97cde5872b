"""Removes what has ended long enough ago, whole flows at a time, until nothing more is due.

When something may go was decided when it ended. A flow that was staged and never opened goes here
too: whoever submitted it was gone before it was whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Value, Want, Writer
from flowfabric.core.portions import portions
from flowfabric.core.retention import PORTION, Departing, Departure, Purge, Purged
from flowfabric.core.transition import Changeset, Seen, Transition
from flowfabric.engine import telemetry
from flowfabric.engine.conflict import persistently
from flowfabric.engine.isolation import isolated, log_failed
from flowfabric.engine.sweeping import Scope, Swept, includes, within
from flowfabric.engine.telemetry import Telemetry
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of
from flowfabric.store import upkeep
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store
from flowfabric.store.upkeep import Checkpointable

logger = logger_of("flowfabric.retention_trimmer")

NAME = "retention_trimmer"
PUT_OFF_MS = 3_600_000


class RetentionTrimmer:
    """`processed` counts executions and flows that went; members count as executions."""

    name = NAME

    def __init__(
        self,
        store: Store,
        clock: FollowingClock,
        *,
        counts: Telemetry | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.counts = counts or Telemetry()
        self.filter = scope
        self.cursor = ""
        self._store = store
        self._clock = clock

    async def run_once(self) -> Swept:
        """One portion of what may go; `again` while there may be more."""
        try:
            swept = await persistently(self._clock, self._sweep)
            await self._checkpoint()
            return swept
        except FlowFabricError as error:
            logger.warning("purge failed", extra={"error": error.code})
            return Swept(errors=1)

    async def _checkpoint(self) -> None:
        """What is written and what was removed leaves the log, also when nobody writes any more."""
        if isinstance(self._store, Checkpointable):
            left = await self._store.checkpoint()
            if left >= upkeep.LOG_ALARM_BYTES:
                logger.error(
                    "the write-ahead log holds %d MB that cannot be moved into the file: a program "
                    "reads an old state of it",
                    left // 1_000_000,
                    extra={"log_bytes": left},
                )

    async def _sweep(self, _: bool) -> Swept:
        asked_ms = self._clock.now_ms()
        found = await self._store.departing(asked_ms, PORTION)
        is_full = PORTION in (len(found.executions), len(found.flows))
        mine = await self._mine(found)
        purges, closing = portions(mine, asked_ms)
        now_ms = self._clock.now_ms()
        if now_ms < asked_ms:
            return Swept(again=True)
        closed, unclosed = await isolated(closing, self._close)
        for changes, error in unclosed:
            about = {"flow": changes.flows[0].id}
            log_failed(logger, "could not close a flow before its purge", error, about)
        answers: list[Purged] = []
        errors = len(unclosed)
        for purge in purges:
            removed, lost = await isolated(_each(purge), self._purge)
            answers += removed
            errors += len(lost)
            for each, error in lost:
                await self._put_off(each, error)
        gone = {id for answer in answers for id in answer.gone}
        went = len(gone) + sum(answer.members for answer in answers)
        is_left = any(flow.id not in gone for flow in mine.flows)
        self.counts.count(telemetry.PURGED, by=went)
        paged = any(answer.left for answer in answers)
        moved = went > 0 or paged or any(closed)
        return Swept(processed=went, errors=errors, again=moved and (is_full or is_left or paged))

    async def _close(self, closing: Sequence[Changeset]) -> list[bool]:
        return await self._store.commit_each(closing, self._clock.now_ms())

    async def _mine(self, found: Departing) -> Departing:
        """Only what this engine is to serve; without a filter nothing is read for it."""
        scope = self.filter
        if scope is None or scope.is_everything:
            return found
        ids = [each.id for each in found.executions]
        loaded = await self._store.load(Want(ids=ids)) if ids else []
        heads = [each.head for each in loaded if each is not None]
        served = {row.id for row in await within(scope, [*heads], self._store)}
        flows = [flow for flow in found.flows if includes(scope, flow)]
        return Departing([each for each in found.executions if each.id in served], flows)

    async def _purge(self, some: Sequence[Purge]) -> list[Purged]:
        """Nothing, if a clock that was ahead has been set right since these were found due."""
        now_ms = self._clock.now_ms()
        if now_ms < some[0].now_ms:
            return []
        executions = [departure for each in some for departure in each.executions]
        flows = [departure for each in some for departure in each.flows]
        answer = await self._store.purge(Purge(now_ms=now_ms, executions=executions, flows=flows))
        if answer.kept:
            await self._keep(executions, answer.kept)
        return [answer]

    async def _put_off(self, one: Purge, error: Exception) -> None:
        """What cannot be removed is not the first to be removed again and again."""
        name: str = (one.executions or one.flows)[0].id
        log_failed(logger, "purge of a record failed", error, {"record": name})
        until_ms = self._clock.now_ms() + PUT_OFF_MS
        try:
            for flow in one.flows:
                later: dict[str, Value] = {"purge_ms": until_ms}
                changes = Changeset(flows=[FlowPatch(flow.id, flow.rev, later)])
                await self._store.commit(changes, self._clock.now_ms())
            await self._keep(one.executions, {each.id: until_ms for each in one.executions})
        except Exception as again:
            log_failed(logger, "could not postpone the purge of a record", again, {"record": name})

    async def _keep(self, seen: Sequence[Departure], kept: dict[ExecutionId, int]) -> None:
        """Their keys are alive: who submits the same again is to find them."""
        if not kept:
            return
        loaded = await self._store.load(Want(ids=list(kept)))
        revs = dict(seen)
        later = [
            _keep_until(each.head.id, Seen(each.head.rev, each.head.state), kept[each.head.id])
            for each in loaded
            if each is not None and each.head.rev == revs[each.head.id]
        ]
        await self._store.apply(later, self._clock.now_ms())


def _each(purge: Purge) -> list[Purge]:
    """The same, one by one."""
    alone = [Purge(now_ms=purge.now_ms, executions=[each]) for each in purge.executions]
    return [*alone, *(Purge(now_ms=purge.now_ms, flows=[each]) for each in purge.flows)]


def _keep_until(id: ExecutionId, seen: Seen, until_ms: int) -> Transition:
    patch: dict[str, Value] = {"purge_ms": until_ms}
    return Transition(id, seen, Writer.TIMEKEEPER, patch)
