"""Lanes as people see them: whether each takes and hands out work, and what is ready in it."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from flowfabric.core.model import Lane, Queue
from flowfabric.core.routes import lane_of
from flowfabric.core.states import LaneState
from flowfabric.store.damage import unreadable_lane
from flowfabric.store.protocol import Store

PAGE = 1_000
# Ready executions of one route that are counted; what is deeper says that there are more.
DEPTH = 10_000


class LaneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One lane. `ready`: executions that a worker could take now, or more of them if `is_more`;
    `oldest_ms`: when the oldest of these was submitted."""

    name: str
    state: LaneState
    ready: int = 0
    is_more: bool = False
    oldest_ms: int | None = None


async def lane_records(store: Store, namespace: str) -> list[LaneRecord]:
    """In the order of their names; a lane that has work and was never set is active."""
    states = {lane.name: lane.state for lane in await _lanes(store)}
    queues: defaultdict[str, list[Queue]] = defaultdict(list)
    for queue in await _queues(store, namespace):
        queues[lane_of(queue.route)].append(queue)
    return [
        _record(name, states.get(name, LaneState.ACTIVE), queues[name])
        for name in sorted(states.keys() | queues.keys())
    ]


def _record(name: str, state: LaneState, queues: list[Queue]) -> LaneRecord:
    return LaneRecord(
        name=name,
        state=state,
        ready=sum(queue.ready for queue in queues),
        is_more=any(queue.is_more for queue in queues),
        oldest_ms=min((queue.oldest_ms for queue in queues), default=None),
    )


async def _lanes(store: Store) -> list[Lane]:
    found: list[Lane] = []
    while page := await store.lanes(found[-1].name if found else "", PAGE):
        for lane in page:
            if lane.problem:
                raise unreadable_lane(lane)
        found += page
        if len(page) < PAGE:
            break
    return found


async def _queues(store: Store, namespace: str) -> list[Queue]:
    found: list[Queue] = []
    while page := await store.queues(namespace, found[-1].route if found else "", PAGE, DEPTH):
        found += page
        if len(page) < PAGE:
            break
    return found
