"""What can be read of flows, edges and members: described, listed, paged."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.graph import Link
from flowfabric.core.flow.model import FlowState
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import FlowId
from flowfabric.core.states import State
from flowfabric.engine.flow_reading import Direction, FlowPage, FlowReading
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.flow.desk import FlowDesk


@pytest.fixture
def read(desk: FlowDesk) -> FlowReading:
    return desk.engine.flows.read


@pytest.mark.case("LI-001")
async def test_what_does_not_exist_is_none(desk: FlowDesk, read: FlowReading) -> None:
    await desk.draw(plan("ab"))
    assert await desk.engine.read.describe(member("x")) is None
    assert await read.describe(flow_id(404)) is None
    assert await read.edge(FLOW, member("a"), member("b")) is None
    assert await read.edge(flow_id(404), member("a"), member("b")) is None


@pytest.mark.case("LI-010", "LI-019")
async def test_a_member_knows_its_flow_by_the_plain_uuid(desk: FlowDesk, read: FlowReading) -> None:
    await desk.draw(plan("a"))
    assert await read.flow_of(member("a")) == FLOW == (await desk.member("a")).flow
    assert ":" not in FLOW
    assert await read.flow_of(await desk.submit()) is None
    assert await read.flow_of(member("x")) is None


@pytest.mark.case("LI-012")
async def test_a_cancelled_flow_says_when_why_and_how(desk: FlowDesk, read: FlowReading) -> None:
    await desk.draw(plan("a"))
    before = await read.describe(FLOW)
    assert before is not None
    assert (before.state, before.cancelled_ms, before.cancel_reason, before.cancel_policy) == (
        FlowState.OPEN,
        None,
        "",
        "",
    )
    desk.clock.advance(7)
    await desk.engine.flows.cancel(FLOW, reason="enough")
    after = await read.describe(FLOW)
    assert after is not None
    assert (after.state, after.cancelled_ms, after.cancel_reason, after.cancel_policy) == (
        FlowState.CANCELLED,
        desk.clock.now_ms(),
        "enough",
        "cancel_all",
    )


@pytest.mark.case("LI-015", "LI-016", "LI-017")
async def test_edges_are_listed_from_both_ends(desk: FlowDesk, read: FlowReading) -> None:
    edges = [Link(member("a"), member("b"), argument="first/0"), Link(member("a"), member("c"))]
    await desk.draw(plan("abcd", edges))
    outgoing = await read.edges(member("a"), Direction.OUTGOING)
    assert {(edge.upstream, edge.downstream) for edge in outgoing} == {
        (member("a"), member("b")),
        (member("a"), member("c")),
    }
    (incoming,) = await read.edges(member("b"), Direction.INCOMING)
    assert (incoming.upstream, incoming.downstream) == (member("a"), member("b"))
    edge = await read.edge(FLOW, member("a"), member("b"))
    assert edge == incoming
    assert edge is not None
    assert edge.argument == "first/0"
    await desk.ended("a")
    assert len(await read.edges(member("a"), Direction.OUTGOING)) == 2
    solo = await desk.submit()
    for direction in Direction:
        for id in (member("d"), solo, member("nobody", flow_id(404))):
            assert await read.edges(id, direction) == []


@pytest.mark.case("LI-024", "LI-025")
async def test_flows_are_listed_a_page_at_a_time(desk: FlowDesk, read: FlowReading) -> None:
    ids = [flow_id(number) for number in range(1, 8)]
    for id in reversed(ids):
        await desk.draw(plan("", flow=id))
    await desk.engine.flows.cancel(ids[2])
    listed: list[FlowId] = []
    states: list[FlowState] = []
    cursor: FlowId | None = FlowId("")
    while cursor is not None:
        page = await read.find(FlowQuery(after=cursor, limit=3))
        assert all(flow.created_ms == desk.clock.now_ms() for flow in page.items)
        assert page.cursor in (None, page.items[-1].id)
        listed += [flow.id for flow in page.items]
        states += [flow.state for flow in page.items]
        cursor = page.cursor
    assert listed == sorted(ids)
    assert states.count(FlowState.CANCELLED) == 1
    assert listed[states.index(FlowState.CANCELLED)] == ids[2]
    assert await read.find(FlowQuery(limit=0)) == FlowPage([], None)


async def test_members_are_listed_by_state_a_page_at_a_time(
    desk: FlowDesk, read: FlowReading
) -> None:
    await desk.draw(plan("abcde"))
    await desk.ended("b", "d")
    first = await read.members(FLOW, states=(State.WAITING,), limit=2)
    assert ([row.id for row in first.items], first.cursor) == (
        [member("a"), member("c")],
        member("c"),
    )
    rest = await read.members(FLOW, states=(State.WAITING,), after=member("c"), limit=2)
    assert ([row.id for row in rest.items], rest.cursor) == ([member("e")], None)
    assert len((await read.members(FLOW)).items) == 5
    assert (await read.members(FLOW, limit=0)).items == []
    assert (await read.members(flow_id(404))).items == []
