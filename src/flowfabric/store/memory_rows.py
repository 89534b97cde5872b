"""What the memory store asks of all its rows: which fit, which may go, whose turn a duty is.

Nothing here locks; the store calls it under its lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flowfabric.core.ids import partition_of
from flowfabric.core.model import Execution, Query, Shift
from flowfabric.core.retention import Departure
from flowfabric.core.transition import shift_taken


def fits(row: Execution, query: Query, tags: Mapping[str, str]) -> bool:
    return (
        (query.after is None or row.id > query.after)
        and query.namespace in (None, row.namespace)
        and query.partition in (None, partition_of(row.id))
        and query.lane in (None, row.lane)
        and query.kind in (None, row.kind)
        and (not query.states or row.state in query.states)
        and query.tags.items() <= tags.items()
    )


def departing(rows: Iterable[Execution], now_ms: int, limit: int) -> list[Departure]:
    due = sorted(
        (row.purge_ms, row.id, row.rev)
        for row in rows
        if row.purge_ms is not None and row.purge_ms <= now_ms
    )
    return [Departure(id, rev) for _, id, rev in due[:limit]]


def take_shifts(shifts: dict[str, Shift], asks: Sequence[Shift], now_ms: int) -> list[Shift]:
    """Take those that are free; answers all there are."""
    for ask in asks:
        taken = shift_taken(shifts.get(ask.name), ask, now_ms)
        if taken is not None:
            shifts[ask.name] = taken
    return [shifts[name] for name in sorted(shifts)]
