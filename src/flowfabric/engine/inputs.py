"""Reading what members are handed: two calls to the store for any number of leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flowfabric.core.flow.inputs import Passed, passed, passes
from flowfabric.core.flow.model import Edge, Flow, Group
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Lease, Want
from flowfabric.store.protocol import Store


async def inputs(
    store: Store, leases: Sequence[Lease], on_seen: Callable[[Iterable[Flow]], None]
) -> dict[ExecutionId, list[Passed]]:
    """By member what its upstreams pass to it; nothing is asked about solo executions.

    `on_seen` hears of their flows as soon as they are read.
    """
    by_flow: dict[str, list[ExecutionId]] = {}
    for lease in leases:
        if lease.head.flow:
            by_flow.setdefault(lease.head.flow, []).append(lease.id)
    if not by_flow:
        return {}
    views = await store.graph(
        [Sight(flow=FlowId(flow), entering=ids) for flow, ids in by_flow.items()]
    )
    on_seen(view.flow for view in views if view.flow is not None)
    results = await _results(
        store, {edge.upstream for view in views for edge in view.edges if passes(edge)}
    )
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
