"""Reading what members are handed: two calls to the store for any number of leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flowfabric.core.flow.inputs import Passed, passed, passes
from flowfabric.core.flow.model import MISSING, Edge, Flow, Group
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Lease, Want
from flowfabric.engine.looking import require_whole
from flowfabric.errors import Corrupt
from flowfabric.store.damage import unreadable
from flowfabric.store.protocol import Store

# Whoever runs keeps its flow from being removed.
NEVER_GOING_MS = 0

Inputs = dict[ExecutionId, list[Passed] | Corrupt]


async def inputs(
    store: Store, leases: Sequence[Lease], on_seen: Callable[[Iterable[Flow]], None]
) -> Inputs:
    """By member what its upstreams pass to it; nothing is asked about solo executions.

    `on_seen` hears of their flows as soon as they are read. What cannot be read is told to those
    members alone that need it.
    """
    try:
        return {**await _inputs(store, leases, on_seen)}
    except Corrupt as error:
        if len(leases) == 1:
            return {leases[0].id: error}
    middle = len(leases) // 2
    halves = (leases[:middle], leases[middle:])
    first, second = [await inputs(store, half, on_seen) for half in halves]
    return first | second


async def _inputs(
    store: Store, leases: Sequence[Lease], on_seen: Callable[[Iterable[Flow]], None]
) -> dict[ExecutionId, list[Passed]]:
    by_flow: dict[str, list[ExecutionId]] = {}
    for lease in leases:
        if lease.head.flow:
            by_flow.setdefault(lease.head.flow, []).append(lease.id)
    if not by_flow:
        return {}
    sights = [Sight(flow=FlowId(flow), entering=ids) for flow, ids in by_flow.items()]
    views = await store.graph(sights)
    for sight, view in zip(sights, views, strict=True):
        require_whole(sight, view, NEVER_GOING_MS)
    on_seen(view.flow for view in views if view.flow is not None)
    needed = [edge for view in views for edge in view.edges if passes(edge)]
    results = await _results(store, {edge.upstream for edge in needed})
    for edge in needed:
        if (edge.upstream, edge.attempt) not in results:
            raise unreadable(edge.upstream, f"attempt {edge.attempt}: {MISSING}")
    found: dict[ExecutionId, list[Passed]] = {}
    for view in views:
        entering: dict[ExecutionId, list[Edge]] = {}
        for edge in view.edges:
            handing = entering.setdefault(edge.downstream, [])
            if passes(edge):
                handing.append(edge)
        groups: dict[ExecutionId, dict[str, Group]] = {}
        for group in view.groups:
            groups.setdefault(group.downstream, {})[group.name] = group
        for id, edges in entering.items():
            found[id] = passed(edges, groups.get(id, {}), results)
    return found


async def _results(
    store: Store, upstreams: set[ExecutionId]
) -> dict[tuple[ExecutionId, int], bytes | None]:
    if not upstreams:
        return {}
    loaded = await store.load(Want(ids=sorted(upstreams), attempts=True))
    return {
        (attempt.execution, attempt.attempt): attempt.result
        for each in loaded
        if each is not None
        for attempt in each.attempts
    }
