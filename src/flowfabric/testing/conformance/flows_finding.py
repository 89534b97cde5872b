"""Listing flows: which fit, in which order, a page at a time."""

from __future__ import annotations

import msgspec

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import FlowState
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import FlowId
from flowfabric.core.model import Value
from flowfabric.core.transition import Changeset
from flowfabric.store.protocol import Store
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import drawn
from flowfabric.testing.flows import FLOW, flow_id, plan


async def put(store: Store, clock: VirtualClock, id: FlowId, **columns: Value) -> FlowId:
    flow = msgspec.structs.replace(drawn(plan("", flow=id), clock).flow, **columns)
    assert await store.commit(Changeset(new_flows=[flow]), clock.now_ms())
    return id


async def found(store: Store, query: FlowQuery) -> list[FlowId]:
    return [flow.id for flow in await store.find_flows(query)]


async def test_flows_are_listed_by_id_a_page_at_a_time(store: Store, clock: VirtualClock) -> None:
    ids = sorted([await put(store, clock, flow_id(number)) for number in range(20)])
    listed: list[FlowId] = []
    while page := await found(store, FlowQuery(after=listed[-1] if listed else "", limit=7)):
        assert len(page) <= 7
        listed += page
    assert listed == ids
    assert await found(store, FlowQuery(limit=0)) == []
    assert await found(store, FlowQuery(after=ids[-1])) == []


async def test_a_flow_is_listed_as_it_is(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, FLOW, completed=3, cancel_reason="why not", deadline_ms=5)
    (flow,) = await store.find_flows(FlowQuery())
    expected = drawn(plan(""), clock).flow
    changed: dict[str, Value] = {"completed": 3, "cancel_reason": "why not", "deadline_ms": 5}
    assert flow == msgspec.structs.replace(expected, **changed)


async def test_flows_are_chosen_by_every_condition_together(
    store: Store, clock: VirtualClock
) -> None:
    a = await put(store, clock, flow_id(1), namespace="x", name="etl")
    b = await put(store, clock, flow_id(2), namespace="x", name="other")
    c = await put(store, clock, flow_id(3), namespace="y", name="etl")
    patch = {"state": FlowState.CANCELLED}
    assert await store.commit(Changeset(flows=[FlowPatch(b, 1, patch)]), clock.now_ms())
    assert await found(store, FlowQuery()) == [a, b, c]
    assert await found(store, FlowQuery(namespace="x")) == [a, b]
    assert await found(store, FlowQuery(name="etl")) == [a, c]
    assert await found(store, FlowQuery(namespace="y", name="etl")) == [c]
    assert await found(store, FlowQuery(states=(FlowState.CANCELLED,))) == [b]
    assert await found(store, FlowQuery(states=(FlowState.OPEN,), name="etl", limit=1)) == [a]
    assert await found(store, FlowQuery(states=tuple(FlowState))) == [a, b, c]
    assert await found(store, FlowQuery(namespace="nobody")) == []


async def test_flows_that_are_settled_can_be_left_out(store: Store, clock: VirtualClock) -> None:
    done = await put(store, clock, flow_id(1), settled=True)
    busy = await put(store, clock, flow_id(2), name="etl")
    assert await found(store, FlowQuery()) == [done, busy]
    assert await found(store, FlowQuery(unsettled=True)) == [busy]
    assert await found(store, FlowQuery(unsettled=True, name="other")) == []
    again = Changeset(flows=[FlowPatch(done, 1, {"settled": False})])
    assert await store.commit(again, clock.now_ms())
    assert await found(store, FlowQuery(unsettled=True)) == [done, busy]


async def test_a_flow_that_is_being_submitted_is_not_listed(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, FLOW, is_open=False)
    assert await found(store, FlowQuery()) == []
    assert await found(store, FlowQuery(unsettled=True)) == []
    opened = Changeset(flows=[FlowPatch(FLOW, 1, {"is_open": True})])
    assert await store.commit(opened, clock.now_ms())
    assert await found(store, FlowQuery()) == [FLOW]
