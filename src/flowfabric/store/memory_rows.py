"""What the memory store asks of all its rows: which fit, which may go, whose turn a duty is.

Nothing here locks; the store calls it under its lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized

from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.core.model import Execution, Query, Queue, Shift
from flowfabric.core.retention import Departure
from flowfabric.core.states import CLAIMABLE
from flowfabric.core.transition import shift_taken


def fits(row: Execution, query: Query, tags: Mapping[str, str]) -> bool:
    return (
        (query.after is None or row.id > query.after)
        and query.namespace in (None, row.namespace)
        and query.partition in (None, partition_of(row.id))
        and query.lane in (None, row.lane)
        and query.kind in (None, row.kind)
        and (not query.states or row.state in query.states)
        and query.flow in (None, row.flow)
        and (query.since_ms is None or row.created_ms >= query.since_ms)
        and query.tags.items() <= tags.items()
    )


def fitting(
    rows: Mapping[ExecutionId, Execution],
    query: Query,
    tags: Mapping[ExecutionId, Mapping[str, str]],
    is_open: Callable[[str], bool],
) -> list[Execution]:
    """Those that fit, by id; members of a flow that is not open yet are not there."""
    found = [
        row for row in rows.values() if fits(row, query, tags.get(row.id, {})) and is_open(row.flow)
    ]
    return sorted(found, key=lambda row: row.id)


def queues(
    rows: Iterable[Execution], namespace: str, after: str, limit: int, *, depth: int
) -> list[Queue]:
    ready: dict[str, list[int]] = {}
    for row in rows:
        if row.namespace == namespace and row.state in CLAIMABLE and row.route > after:
            ready.setdefault(row.route, []).append(row.created_ms)
    return [
        Queue(route, min(len(made), depth), min(made), len(made) > depth)
        for route, made in heapq.nsmallest(limit, ready.items())
    ]


def total(things: Mapping[ExecutionId, Sized]) -> int:
    """How much all executions have of something together."""
    return sum(map(len, things.values()))


def departing(rows: Iterable[Execution], now_ms: int, limit: int) -> list[Departure]:
    due = sorted(
        (row.purge_ms, row.id, row.rev)
        for row in rows
        if row.purge_ms is not None and row.purge_ms <= now_ms
    )
    return [Departure(id, rev) for _, id, rev in due[:limit]]


def keys_alive(
    keys: Iterable[tuple[ExecutionId, str, int]], ids: Collection[ExecutionId], now_ms: int
) -> dict[ExecutionId, int]:
    """Which of these executions a key still belongs to, and until when."""
    return {id: until for id, _, until in keys if id in ids and until > now_ms}


def take_shifts(shifts: dict[str, Shift], asks: Sequence[Shift], now_ms: int) -> list[Shift]:
    """Take those that are free; answers all there are."""
    for ask in asks:
        taken = shift_taken(shifts.get(ask.name), ask, now_ms)
        if taken is not None:
            shifts[ask.name] = taken
    return [shifts[name] for name in sorted(shifts)]
