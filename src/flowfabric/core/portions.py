"""In which portions a store lets go of what may go, and what is closed before.

When each may go was decided when it ended; nothing here looks at a policy.
"""

from __future__ import annotations

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.retention import PORTION, Departing, FlowDeparture, Purge
from flowfabric.core.transition import Changeset


def portions(departing: Departing, now_ms: int) -> tuple[list[Purge], list[Changeset]]:
    """Purges of at most a portion each, and flows that are closed first.

    A flow that goes in several portions is closed before the first one: nobody may see half of
    it, and nobody may bring a member of it back to life.
    """
    whole = [flow for flow in departing.flows if flow.total <= PORTION or not flow.is_open]
    closing = [
        Changeset(flows=[FlowPatch(flow.id, flow.rev, {"is_open": False})])
        for flow in departing.flows
        if flow not in whole
    ]
    purges: list[list[FlowDeparture]] = [[]]
    taken = len(departing.executions)
    for flow in whole:
        if taken and taken + flow.total > PORTION:
            purges.append([])
            taken = 0
        purges[-1].append(FlowDeparture(flow.id, flow.rev))
        taken += flow.total
    return [
        Purge(now_ms=now_ms, executions=departing.executions if not place else (), flows=flows)
        for place, flows in enumerate(purges)
    ], closing
