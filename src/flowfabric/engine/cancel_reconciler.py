"""Cancelled flows with members that nobody is going to cancel: the line is written again.

The cancels themselves go the dispatcher's road, in portions, with their own back-off.
"""

from __future__ import annotations

from flowfabric.core.flow.audit import owes_cancels
from flowfabric.core.flow.cancel import cancel_line, cancelled_states
from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import Members, Sight
from flowfabric.core.transition import Changeset
from flowfabric.engine.intervals import SECONDS
from flowfabric.engine.isolation import log_failed
from flowfabric.engine.sweeping import Scope, Swept, includes
from flowfabric.engine.unsettled import unsettled_flows
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.cancel_reconciler")

NAME = "cancel_reconciler"
FLOWS = 50
MEMBERS = 500


class CancelReconciler:
    """With a filter, only flows that are known to fit it."""

    name = NAME
    interval_seconds = SECONDS[NAME]

    def __init__(self, store: Store, clock: FollowingClock, *, scope: Scope | None = None) -> None:
        self.filter = scope
        self.cursor = ""
        self._store = store
        self._clock = clock

    async def run_once(self) -> Swept:
        """One page of flows. `processed` counts those whose cancel was taken up again."""
        try:
            found, self.cursor, errors = await unsettled_flows(self._store, self.cursor, FLOWS)
        except FlowFabricError as error:
            logger.warning("could not read flows", extra={"error": error.code})
            return Swept(errors=1)
        processed = 0
        for flow in found:
            if not cancelled_states(flow) or not includes(self.filter, flow):
                continue
            try:
                is_taken_up = await self._take_up(flow)
                processed += is_taken_up
            except Exception as error:
                errors += 1
                about = {"flow": flow.id}
                log_failed(logger, "could not resume the cancel of a flow", error, about)
        return Swept(processed, errors, again=bool(self.cursor))

    async def _take_up(self, flow: Flow) -> bool:
        """Members that may end can be many: those that are owed a cancel may come after them."""
        after = ""
        while True:
            page = Members(states=cancelled_states(flow), after=after, limit=MEMBERS)
            view = (await self._store.graph([Sight(flow=flow.id, members=page, lines=True)]))[0]
            if view.flow is None:
                return False
            if owes_cancels(view.flow, view):
                break
            if len(view.members) < MEMBERS:
                return False
            after = view.members[-1]
        now_ms = self._clock.now_ms()
        changes = Changeset(
            flows=[FlowPatch(view.flow.id, view.flow.rev, {})],
            lines=[cancel_line(view.flow, now_ms)],
        )
        return await self._store.commit(changes, now_ms)
