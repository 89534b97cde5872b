"""Flows whose members have just ended here: looked at and worked on at once, without a lease.

What ended is known, so one look shows everything a round needs. The lease only keeps dispatchers
out of each other's way; what keeps the flow right is its `rev`. So this is tried once: whoever
loses against somebody else takes the flow in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowfabric.core.flow.model import LineKind, is_free, reopening_of
from flowfabric.core.flow.views import LINES_LIMIT, Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.engine.rounds import Job
from flowfabric.store.protocol import Store


class Found(NamedTuple):
    """What can be worked on now, and the flows that are to be taken in turn."""

    jobs: list[Job]
    others: list[FlowId]


async def look(store: Store, ended: Mapping[FlowId, Sequence[ExecutionId]], now_ms: int) -> Found:
    wide = [flow for flow, ids in ended.items() if len(ids) > LINES_LIMIT]
    sights = [
        Sight(flow=flow, heads=ids, leaving=ids, due_lines=LINES_LIMIT + 1, now_ms=now_ms)
        for flow, ids in ended.items()
        if len(ids) <= LINES_LIMIT
    ]
    views = await store.graph(sights) if sights else []
    found = Found([], wide)
    for sight, view in zip(sights, views, strict=True):
        if view.flow is None or not view.lines:
            continue
        job = _job(sight, view, now_ms)
        if job is None:
            found.others.append(sight.flow)
        else:
            found.jobs.append(job)
    return found


def _job(sight: Sight, view: View, now_ms: int) -> Job | None:
    """The lines of those that ended here, if nobody else is at the flow and nothing else is due."""
    flow = view.flow
    if flow is None or not is_free(flow, now_ms):
        return None
    ended = set(sight.heads)
    lines = [line for line in view.lines if line.kind is LineKind.ENDED and line.execution in ended]
    if not lines or len(view.lines) > LINES_LIMIT:
        return None
    if reopening_of(view.lines) is not None:
        return None
    return Job(
        flow, lines, now_ms, view=view, is_leased=False, is_all=len(lines) == len(view.lines)
    )
