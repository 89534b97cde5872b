"""Writes the summary of every flow that is not settled, and sets its counters right.

What is shown is counted when it is asked for, and the last summary is written with the last end;
this is the auditor of both. It never touches the state that says whether a flow takes members.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowfabric.core.flow.audit import recount
from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.summary import encode_summary, stored_summary, summarize, unknown_states
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.model import Value
from flowfabric.core.transition import Changeset
from flowfabric.engine.intervals import SECONDS
from flowfabric.engine.isolation import isolated, log_failed
from flowfabric.engine.sweeping import Scope, Swept
from flowfabric.engine.unsettled import unsettled_flows
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

logger = logger_of("flowfabric.flow_projector")

NAME = "flow_projector"
PAGE = 100


class FlowProjector:
    """Its `filter` is shown and not applied: members of every tenant are counted."""

    name = NAME
    interval_seconds = SECONDS[NAME]

    def __init__(self, store: Store, clock: FollowingClock, *, scope: Scope | None = None) -> None:
        self.filter = scope
        self.cursor = ""
        self._store = store
        self._clock = clock

    async def run_once(self) -> Swept:
        """One page. `processed` counts the flows whose summary was written."""
        try:
            self._clock.follow(await self._store.now())
            found, self.cursor, lost = await unsettled_flows(self._store, self.cursor, PAGE)
            views, unseen = await isolated(found, self._look)
        except FlowFabricError as error:
            logger.warning("could not read flows", extra={"error": error.code})
            return Swept(errors=1)
        for flow, problem in unseen:
            lost += 1
            log_failed(logger, "could not read a flow", problem, {"flow": flow.id})
        now_ms = self._clock.now_ms()
        processed = 0
        for view in views:
            try:
                is_written = await self._project(view, now_ms)
                processed += is_written
            except Exception as error:
                lost += 1
                about = {"flow": view.flow.id if view.flow else ""}
                log_failed(logger, "could not write the summary of a flow", error, about)
        return Swept(processed, lost, again=bool(self.cursor))

    async def _look(self, flows: Sequence[Flow]) -> list[View]:
        sights = [Sight(flow=flow.id, tally=True, lines=True) for flow in flows]
        return await self._store.graph(sights)

    async def _project(self, view: View, now_ms: int) -> bool:
        """Whether there was anything new to write; a flow without members has no summary."""
        flow = view.flow
        if flow is None or not view.tally:
            return False
        patch = _changed(flow, view, now_ms)
        if not patch:
            return False
        patch["updated_ms"] = now_ms
        # Somebody was faster: then it has changed, and the next cycle looks again.
        return await self._store.commit(
            Changeset(flows=[FlowPatch(flow.id, flow.rev, patch)]), now_ms
        )


def _changed(flow: Flow, view: View, now_ms: int) -> dict[str, Value]:
    repaired = recount(flow, view.tally, view.lines, now_ms)
    if repaired:
        logger.error(
            "repaired the counters of flow %s",
            flow.id,
            extra={"flow": flow.id, "repaired": sorted(repaired)},
        )
    if strange := unknown_states(view.tally):
        logger.error(
            "members of flow %s have unknown states",
            flow.id,
            extra={"flow": flow.id, "states": strange},
        )
    summary = summarize(view.tally, now_ms)
    known = stored_summary(flow)
    if known is not None:
        known = msgspec.structs.replace(known, last_summary_update_at=now_ms)
    if summary != known:
        repaired |= {"summary": encode_summary(summary)}
    return repaired
