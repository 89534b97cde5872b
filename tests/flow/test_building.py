"""Flows built step by step: members, edges, revisions, policies, seals, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import (
    NOT_PINNED,
    EdgeKind,
    EdgeState,
    GroupState,
    Join,
    OnSatisfied,
)
from flowfabric.core.ids import ExecutionId, flow_partition
from flowfabric.core.states import Reason, State
from flowfabric.errors import (
    AlreadyInFlow,
    ExecutionNotEligible,
    ExecutionNotFound,
    FlowAlreadyTerminal,
    InvalidGraph,
    InvalidInput,
    StaleGraphRevision,
)
from flowfabric.testing.flows import COUNTS, FLOW, flow_id, links, member, order, plan
from tests.flow.desk import FlowDesk

RACE = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)


async def solo(desk: FlowDesk, name: str) -> ExecutionId:
    return await desk.submit(order(name))


async def members(desk: FlowDesk, names: str) -> None:
    await desk.draw(plan(""))
    for name in names:
        await desk.engine.flows.build.join(FLOW, await solo(desk, name))


@pytest.mark.case("FL-001", "FL-002")
async def test_a_flow_is_made_once(desk: FlowDesk) -> None:
    await desk.draw(plan(""))
    flow = await desk.flow()
    assert (flow.state, flow.graph_revision, flow.total, flow.edges) == ("open", 0, 0, 0)
    assert flow.updated_ms == flow.created_ms
    desk.clock.advance(5)
    again = await desk.engine.flows.submit(plan(""))
    assert (again.id, again.created) == (FLOW, False)
    assert await desk.flow() == flow


@pytest.mark.case("FL-003", "FL-005")
async def test_members_join_one_after_the_other(desk: FlowDesk) -> None:
    await desk.draw(plan(""))
    for count, name in enumerate("abc", 1):
        grown = await desk.engine.flows.build.join(FLOW, await solo(desk, name))
        assert grown.members == count
        assert (await desk.member(name)).flow == FLOW
        assert member(name) in await desk.engine.flows.members(FLOW)
    flow = await desk.flow()
    assert (flow.total, flow.graph_revision) == (3, 3)
    again = await desk.engine.flows.build.join(FLOW, member("a"))
    assert (again.changed, again.members) == (False, 3)
    assert await desk.flow() == flow


@pytest.mark.case("FL-007")
async def test_what_does_not_exist_cannot_join(desk: FlowDesk) -> None:
    await desk.draw(plan(""))
    before = await desk.flow()
    with pytest.raises(ExecutionNotFound):
        await desk.engine.flows.build.join(FLOW, member("a"))
    assert await desk.flow() == before
    assert await desk.engine.flows.members(FLOW) == []
    assert await desk.engine.read.describe(member("a")) is None


@pytest.mark.case("FL-009")
async def test_two_join_at_once(desk: FlowDesk) -> None:
    await desk.draw(plan(""))
    ids = [await solo(desk, name) for name in "ab"]
    await asyncio.gather(*(desk.engine.flows.build.join(FLOW, id) for id in ids))
    assert (await desk.flow()).total == 2
    assert await desk.engine.flows.members(FLOW) == ids
    assert {(await desk.member(name)).flow for name in "ab"} == {FLOW}


@pytest.mark.case("FL-010")
async def test_a_cancelled_flow_takes_nobody(desk: FlowDesk) -> None:
    await desk.draw(plan(""))
    await desk.engine.flows.cancel(FLOW)
    id = await solo(desk, "a")
    with pytest.raises(FlowAlreadyTerminal) as raised:
        await desk.engine.flows.build.join(FLOW, id)
    assert raised.value.code == "flow_already_terminal"
    assert (await desk.member("a")).flow == ""


async def test_a_member_of_another_flow_is_refused(desk: FlowDesk) -> None:
    await members(desk, "a")
    row = await desk.member("a")
    here = flow_partition(FLOW, COUNTS)
    flows = (flow_id(number) for number in range(2, 50_000))
    other = next(each for each in flows if flow_partition(each, COUNTS) == here)
    await desk.draw(plan("", flow=other))
    with pytest.raises(AlreadyInFlow):
        await desk.engine.flows.build.join(other, row.id)


@pytest.mark.case("FL-013", "FL-014", "FL-019")
async def test_edges_are_drawn_by_revision_and_never_in_a_circle(desk: FlowDesk) -> None:
    await members(desk, "abc")
    draw = desk.engine.flows.build.link
    (ab, bc, ca) = links("a>b b>c c>a")
    assert (await draw(FLOW, ab, expected_revision=3)).graph_revision == 4
    grown = await draw(FLOW, bc, expected_revision=4)
    assert (grown.graph_revision, grown.edges) == (5, 2)
    with pytest.raises(InvalidGraph) as raised:
        await draw(FLOW, ca, expected_revision=5)
    assert raised.value.code == "cycle_detected"
    flow = await desk.flow()
    assert (flow.graph_revision, flow.edges) == (5, 2)
    edge = await desk.edge("a", "b")
    assert (edge.kind, edge.argument, edge.state, edge.creator, edge.flow) == (
        EdgeKind.SUCCESS_ONLY,
        "",
        EdgeState.PENDING,
        "engine",
        FLOW,
    )
    assert edge.created_ms == desk.clock.now_ms()
    assert (edge.upstream, edge.downstream) == (member("a"), member("b"))
    assert (await desk.group("b")).join == "all_of"


@pytest.mark.case("FL-044")
@pytest.mark.parametrize("k", [0, -1])
async def test_a_quorum_of_nobody_is_refused_before_it_is_set(desk: FlowDesk, k: int) -> None:
    await members(desk, "abx")
    before = await desk.flow()
    quorum = Policy(Join.QUORUM, k, OnSatisfied.LET_RUN)
    with pytest.raises(InvalidInput, match="at least 1") as raised:
        await desk.engine.flows.build.set_policy(FLOW, member("x"), quorum)
    assert raised.value.code == "invalid_input"
    assert await desk.flow() == before


@pytest.mark.case("FL-015")
async def test_a_stale_revision_is_refused(desk: FlowDesk) -> None:
    await members(desk, "ab")
    with pytest.raises(StaleGraphRevision) as raised:
        await desk.engine.flows.build.link(FLOW, links("a>b")[0], expected_revision=99)
    assert (raised.value.code, raised.value.retryable) == ("stale_graph_revision", True)
    assert await desk.edges() == {}


@pytest.mark.parametrize(
    ("edge", "code"),
    [
        ("a>a", "self_referencing_edge"),
        ("a>z", "execution_not_in_flow"),
        ("a>b", "dependency_already_exists"),
    ],
)
async def test_edges_that_cannot_be_are_refused_by_name(
    desk: FlowDesk, edge: str, code: str
) -> None:
    await members(desk, "ab")
    await desk.engine.flows.build.link(FLOW, links("a>b")[0])
    before = await desk.flow()
    with pytest.raises(InvalidGraph) as raised:
        await desk.engine.flows.build.link(FLOW, links(edge, kind=EdgeKind.COMPLETION)[0])
    assert raised.value.code == code
    assert await desk.flow() == before


@pytest.mark.case("FL-016")
async def test_who_waits_is_held_from_the_first_edge_on(desk: FlowDesk) -> None:
    await members(desk, "abc")
    for count, new in enumerate(links("a>c b>c"), 1):
        grown = await desk.engine.flows.build.link(FLOW, new)
        assert grown.group is not None
        assert grown.group.running == count
        assert await desk.vector(member("c")) == (
            "runnable/unowned/blocked_by_dependencies/waiting_for_children/none/"
            "pending_first_attempt/waiting_children"
        )
    assert {lease.id for lease in await desk.claim(10)} == {member("a"), member("b")}


async def test_a_group_waits_for_its_seal(desk: FlowDesk) -> None:
    await members(desk, "abc")
    build = desk.engine.flows.build
    await build.link(FLOW, links("a>c")[0])
    await desk.ended("a")
    assert await desk.state("c") is State.BLOCKED_DEPENDENCIES
    await build.link(FLOW, links("b>c")[0])
    await build.seal(FLOW, member("c"))
    assert await desk.state("c") is State.BLOCKED_DEPENDENCIES
    await desk.ended("b")
    assert await desk.state("c") is State.WAITING


@pytest.mark.parametrize("is_dispatched", [True, False])
@pytest.mark.parametrize(("outcome", "state"), [("success", "waiting"), ("failed", "skipped")])
async def test_an_edge_from_what_has_ended_is_resolved_at_once(
    desk: FlowDesk, is_dispatched: bool, outcome: str, state: str
) -> None:
    await members(desk, "ab")
    await desk.end("a", outcome=outcome)
    if is_dispatched:
        await desk.dispatch()
    build = desk.engine.flows.build
    await build.link(FLOW, links("a>b")[0])
    await build.seal(FLOW, member("b"))
    assert str(await desk.state("b")) == state
    assert (await desk.edge("a", "b")).state is not EdgeState.PENDING
    await desk.dispatch()
    group = await desk.group("b")
    assert group.succeeded + group.failed == group.n == 1
    assert (await desk.flow()).ended == (1 if outcome == "success" else 2)


async def test_only_as_many_results_are_passed_as_the_group_needs(desk: FlowDesk) -> None:
    """Of upstreams that have ended before their edges are drawn."""
    await members(desk, "abcx")
    build = desk.engine.flows.build
    await build.set_policy(FLOW, member("x"), Policy(Join.ANY_OF, 1, OnSatisfied.LET_RUN))
    await desk.ended("a", outcome="failed")
    await desk.ended("b", "c")
    for new in links("a>x b>x c>x"):
        await build.link(FLOW, new)
    found = {name: await desk.edge(name, "x") for name in "abc"}
    assert {name: (edge.state, edge.attempt) for name, edge in found.items()} == {
        "a": (EdgeState.IMPOSSIBLE, NOT_PINNED),
        "b": (EdgeState.SATISFIED, 0),
        "c": (EdgeState.SATISFIED, NOT_PINNED),
    }


async def test_what_had_ended_before_it_joined_is_counted(desk: FlowDesk) -> None:
    await desk.draw(plan(""))
    id = await desk.completed(order("a"))
    await desk.engine.flows.build.join(FLOW, id)
    await desk.dispatch()
    assert await desk.counters() == {"completed": 1}


@pytest.mark.parametrize("start", [True, False])
async def test_what_is_held_joins_when_it_has_ended(desk: FlowDesk, start: bool) -> None:
    """The lease of its holder does not know of the flow, which would never hear of the end."""
    await desk.draw(plan(""))
    lease = await desk.take(await solo(desk, "a"), start=start)
    with pytest.raises(ExecutionNotEligible):
        await desk.engine.flows.build.join(FLOW, lease.id)
    if not start:
        lease = await desk.engine.start(lease)
    await desk.engine.complete(lease, b"1")
    await desk.engine.flows.build.join(FLOW, lease.id)
    await desk.dispatch()
    assert await desk.counters() == {"completed": 1}
    assert (await desk.head(lease.id)).purge_ms is None


@pytest.mark.case("FL-045")
async def test_a_policy_is_set_once_and_before_the_edges(desk: FlowDesk) -> None:
    await members(desk, "ab")
    build = desk.engine.flows.build
    first = Policy(Join.ANY_OF, 1, OnSatisfied.LET_RUN)
    assert await build.set_policy(FLOW, member("b"), first)
    assert not await build.set_policy(FLOW, member("b"), first)
    await build.link(FLOW, links("a>b")[0])
    with pytest.raises(InvalidInput):
        await build.set_policy(FLOW, member("b"), Policy())
    group = await desk.group("b")
    assert (group.join, group.n, group.state) == ("any_of", 1, GroupState.PENDING)


async def test_a_pause_is_not_lifted_by_an_upstream(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.engine.block(member("b"), Reason.PAUSED_BY_OPERATOR)
    await desk.ended("a")
    row = await desk.member("b")
    assert (row.state, row.deps_open) == (State.BLOCKED_OPERATOR, False)
    await desk.engine.unblock(member("b"))
    assert await desk.state("b") is State.WAITING


async def test_a_pause_that_is_lifted_does_not_let_it_run_before_its_upstreams(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.engine.block(member("b"), Reason.PAUSED_BY_OPERATOR)
    await desk.engine.unblock(member("b"))
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES


async def test_a_seal_that_decides_cancels_those_that_nobody_needs(desk: FlowDesk) -> None:
    await desk.draw(plan("abcxy", "c>y"))
    build = desk.engine.flows.build
    await build.set_policy(FLOW, member("x"), RACE)
    for name in "abc":
        await build.link(FLOW, Link(member(name), member("x")))
    await desk.ended("a")
    grown = await build.seal(FLOW, member("x"))
    assert grown.group is not None
    assert (grown.group.state, grown.group.owed) == (GroupState.SATISFIED, member("b"))
    await desk.dispatch()
    assert await desk.states("bcx") == {"b": "cancelled", "c": "waiting", "x": "waiting"}


async def test_an_edge_that_decides_cancels_those_that_nobody_needs(desk: FlowDesk) -> None:
    await desk.draw(plan("abx", "b>x", policies={"x": RACE}))
    await desk.ended("a")
    await desk.engine.flows.build.link(FLOW, Link(member("a"), member("x")))
    await desk.dispatch()
    assert await desk.states("bx") == {"b": "cancelled", "x": "waiting"}
    assert await desk.lines() == []
