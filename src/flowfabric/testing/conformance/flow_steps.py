"""Steps that the tests of flows take. No test lives here."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.graph import Drawn, Plan, draw
from flowfabric.core.flow.model import Edge, Flow, Group, Line
from flowfabric.core.flow.views import Members, Pending, Sight, Turn, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution, Value
from flowfabric.core.transition import Changeset
from flowfabric.store.protocol import Store
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import Contents, contents
from flowfabric.testing.flows import COUNTS, FLOW

ALL = 1_000


class FlowContents(NamedTuple):
    """Everything of one flow: two of them are equal if nothing was written."""

    flow: Flow | None
    members: list[Execution]
    edges: list[Edge]
    groups: list[Group]
    lines: list[Line]
    rest: Contents


def drawn(plan: Plan, clock: VirtualClock) -> Drawn:
    return draw(plan, clock.now_ms(), COUNTS)


def whole(made: Drawn) -> Changeset:
    return Changeset(
        new_flows=[made.flow], members=made.members, edges=made.edges, groups=made.groups
    )


async def put_flow(store: Store, clock: VirtualClock, plan: Plan) -> Drawn:
    made = drawn(plan, clock)
    assert await store.commit(whole(made), clock.now_ms())
    return made


async def look(store: Store, sight: Sight) -> View:
    return (await store.graph([sight]))[0]


async def everything(store: Store, flow: FlowId = FLOW) -> FlowContents:
    page = Members(limit=ALL)
    view = await look(store, Sight(flow=flow, members=page, lines=True, whole=True))
    groups = (await look(store, Sight(flow=flow, groups=view.members))).groups
    return FlowContents(
        view.flow,
        [view.heads[id] for id in view.members if id in view.heads],
        view.edges,
        sorted(groups, key=attrgetter("downstream", "name")),
        view.lines,
        await contents(store),
    )


async def flow_of(store: Store, id: FlowId = FLOW) -> Flow:
    flow = (await look(store, Sight(flow=id))).flow
    assert flow is not None
    return flow


async def patch(store: Store, clock: VirtualClock, **columns: Value) -> Flow:
    """Write columns of the flow as it is now."""
    flow = await flow_of(store)
    changes = Changeset(flows=[FlowPatch(FLOW, flow.rev, columns)])
    assert await store.commit(changes, clock.now_ms())
    return await flow_of(store)


async def add_lines(store: Store, clock: VirtualClock, *lines: Line) -> None:
    flow = await flow_of(store, lines[0].flow)
    changes = Changeset(flows=[FlowPatch(flow.id, flow.rev, {})], lines=lines)
    assert await store.commit(changes, clock.now_ms())


async def take_flows(
    store: Store,
    clock: VirtualClock,
    *,
    limit: int = 10,
    lease_ms: int = 1_000,
    only: tuple[FlowId, ...] = (),
    after: str = "",
    lines: int = 500,
) -> list[Pending]:
    now_ms = clock.now_ms()
    turn = Turn(
        limit=limit,
        now_ms=now_ms,
        until_ms=now_ms + lease_ms,
        only=only,
        after=after,
        lines=lines,
    )
    return [each for each in await store.pending(turn) if isinstance(each, Pending)]


def ids(pending: list[Pending]) -> list[FlowId]:
    return [each.flow.id for each in pending]


def heads_of(view: View) -> set[ExecutionId]:
    return set(view.heads)
