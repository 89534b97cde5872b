"""What goes when nobody needs it any more, and in which portions.

An execution on its own goes when its own time has come. A flow goes as a whole: members, edges,
groups, lines and results leave together, so that nothing is taken from under somebody who waits.
When each may go was decided when it ended; nothing here looks at a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Flow
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.transition import Changeset

PORTION = 500


class Departure(NamedTuple):
    """An execution on its own whose time has come, as it was seen."""

    id: ExecutionId
    rev: int


class FlowDeparture(NamedTuple):
    """A flow whose time has come, as it was seen."""

    id: FlowId
    rev: int


class Departing(msgspec.Struct, frozen=True):
    """What may go now, soonest first."""

    executions: list[Departure]
    flows: list[Flow]


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """What to remove with all that it owns, if it is as it was seen.

    Of a flow with more members than `members` so many are removed, and the flow stays for the next
    time; its `rev` rises.
    """

    now_ms: int
    executions: Sequence[Departure] = ()
    flows: Sequence[FlowDeparture] = ()
    members: int = PORTION


class Purged(msgspec.Struct, frozen=True):
    """`gone`: what is not there any more. `kept`: executions whose idempotency key is alive, and
    until when. `members`: how many members went with their flows or before them."""

    gone: list[str]
    kept: dict[ExecutionId, int]
    members: int = 0


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
