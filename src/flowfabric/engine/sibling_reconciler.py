"""The safety net under sibling cancels: finishes what a crash left half done, and cancels nobody.

Live groups belong to the dispatcher; whatever still has somebody to cancel is left alone.
"""

from __future__ import annotations

import msgspec

from flowfabric.core.flow.model import Flow, GroupKey, Line, LineKind, Unreadable
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.siblings import Action, group_name, owed_by, reconcile
from flowfabric.core.flow.views import Sight, Turn, View, name_of
from flowfabric.core.ids import ExecutionId, stored_execution_id
from flowfabric.engine import telemetry
from flowfabric.engine.intervals import SECONDS
from flowfabric.engine.isolation import log_failed
from flowfabric.engine.sweeping import Scope
from flowfabric.engine.telemetry import Telemetry
from flowfabric.errors import Corrupt, FlowFabricError, InvalidInput
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.sibling_reconciler")

NAME = "edge_cancel_reconciler"
FLOWS = 50


class Reconciled(msgspec.Struct, frozen=True):
    """What one cycle did; a `no_op` is neither processed nor an error."""

    processed: int = 0
    errors: int = 0


class SiblingReconciler:
    """Its `filter` is shown and does not restrict what is reconciled."""

    name = NAME
    interval_seconds = SECONDS[NAME]

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
        self._store = store
        self._clock = clock
        self.cursor = ""

    async def run_once(self) -> Reconciled:
        """One cycle over flows with open lines, from where the last one ended."""
        now_ms = self._clock.now_ms()
        # A lease that is over at once: to look at a flow is not to take it from anybody.
        turn = Turn(limit=FLOWS, now_ms=now_ms, until_ms=0, after=self.cursor)
        try:
            found = await self._store.pending(turn)
        except FlowFabricError as error:
            logger.warning("could not read outbox entries", extra={"error": error.code})
            return Reconciled(errors=1)
        self.cursor = name_of(found[-1]) if found else ""
        processed = errors = 0
        for each in found:
            if isinstance(each, Unreadable):
                logger.warning("a flow cannot be read", extra={"flow": each.name})
                errors += 1
                continue
            for line in each.lines:
                if line.kind is LineKind.CANCEL_SIBLINGS:
                    action = await self._guarded(each.flow, line)
                    errors += action is None
                    processed += action in (Action.SREMMED_STALE, Action.COMPLETED_DRAIN)
        return Reconciled(processed, errors)

    async def _guarded(self, flow: Flow, line: Line) -> Action | None:
        try:
            action = await self._reconcile(flow, line)
        except Exception as error:
            about = {"flow": flow.id, "line": line.id}
            log_failed(logger, "could not reconcile the losers of a join", error, about)
            return None
        if action is not None:
            self.counts.count(telemetry.SIBLINGS_RECONCILED, action)
        return action

    async def _reconcile(self, flow: Flow, line: Line) -> Action | None:
        try:
            downstream = stored_execution_id(line.execution)
        except InvalidInput as error:
            await self._remove(flow, line)
            logger.warning("removed a malformed outbox entry", extra={"line": line.id})
            raise error
        view = (await self._store.graph([Sight(flow=flow.id, groups=[downstream], lines=True)]))[0]
        if view.flow is None:
            return Action.NO_OP
        work = Round(view.flow, self._clock.now_ms())
        work.look(view)
        _require_readable(view, group_name(line))
        group = work.group(GroupKey(downstream, line.about))
        owed = [ExecutionId(id) for id in owed_by(group)] if group else []
        if owed:
            heads = (await self._store.graph([Sight(flow=flow.id, heads=owed)]))[0]
            _require_readable(heads, *owed)
            work.look(heads)
        there = next((each for each in view.lines if each.id == line.id), None)
        action = reconcile(work, there, group)
        if action is Action.NO_OP:
            return action
        changes = work.changeset(busy_until_ms=view.flow.busy_until_ms)
        # Somebody was faster: then it is his, and the next cycle looks again.
        done = await self._store.commit(changes, work.now_ms)
        return action if done else Action.NO_OP

    async def _remove(self, flow: Flow, line: Line) -> None:
        view = (await self._store.graph([Sight(flow=flow.id)]))[0]
        if view.flow is not None:
            work = Round(view.flow, self._clock.now_ms())
            work.finish(line)
            await self._store.commit(
                work.changeset(busy_until_ms=view.flow.busy_until_ms), work.now_ms
            )


def _require_readable(view: View, *names: str) -> None:
    """What is there and cannot be read must not pass for gone."""
    for lost in view.unreadable:
        if lost.name in names:
            raise Corrupt(f"{lost.kind} {lost.name}: {lost.problem}")
