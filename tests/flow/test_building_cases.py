"""Edges drawn twice, results along edges, losers of a wide race, members with deadlines."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.inputs import Passed
from flowfabric.core.flow.model import START, EdgeState, GroupKey, Join, LineKind, OnSatisfied
from flowfabric.core.model import Want
from flowfabric.core.states import PublicState
from flowfabric.errors import (
    FlowAlreadyTerminal,
    InvalidGraph,
    InvalidInput,
    StaleGraphRevision,
)
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.conformance.flow_steps import everything
from flowfabric.testing.flows import FLOW, links, member, order, plan
from tests.flow.desk import FlowDesk

WIDE = list(range(1_000, 1_100))
WORDS = ("completed", "cancelled", "waiting")


@pytest.mark.case("FL-017", "FL-018")
async def test_an_edge_counts_once_and_from_the_moment_it_is_drawn(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    draw = desk.engine.flows.build.link
    (edge,) = links("a>b")
    grown = await draw(FLOW, edge)
    assert grown.group is not None
    assert (grown.edges, grown.group.n) == (1, 1)
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING
    assert await desk.state("b") == "blocked_dependencies"
    before = await desk.flow()
    again = await draw(FLOW, edge)
    assert again == msgspec.structs.replace(grown, changed=False)
    with pytest.raises(InvalidGraph) as raised:
        await draw(FLOW, msgspec.structs.replace(edge, argument="other"))
    assert raised.value.code == "dependency_already_exists"
    assert (await desk.group("b")).n == 1
    assert await desk.flow() == before
    await desk.engine.flows.build.seal(FLOW, member("b"))
    await desk.ended("a")
    assert (await desk.edge("a", "b")).state is EdgeState.SATISFIED


@pytest.mark.case("FL-028", "FL-029")
async def test_a_result_is_passed_at_the_claim_and_the_stored_input_stays(desk: FlowDesk) -> None:
    given = [order(name, payload=f'"{name} itself"'.encode()) for name in "abc"]
    edges = [Link(member("a"), member("b"), argument="result"), *links("a>c")]
    await desk.draw(msgspec.structs.replace(plan("abc", edges), orders=given))
    await desk.ended("a")
    assert {(await desk.edge("a", name)).state for name in "bc"} == {EdgeState.SATISFIED}
    leases = [await desk.start(name) for name in "bc"]
    passed = await desk.engine.flows.inputs(leases)
    assert passed == {
        member("b"): [Passed("result", [b'"a"'], is_list=False)],
        member("c"): [],
    }
    stored = await desk.store.load(Want(ids=[member("b"), member("c")], payload=True))
    assert [each.payload for each in stored if each] == [b'"b itself"', b'"c itself"']
    assert [lease.payload for lease in leases] == [b'"b itself"', b'"c itself"']


@pytest.mark.case("FL-058")
async def test_a_hundred_upstreams_lose_in_the_commit_after_the_decision(desk: FlowDesk) -> None:
    one = Policy(Join.QUORUM, 1, OnSatisfied.CANCEL_REMAINING)
    edges = [Link(member(name), member("x")) for name in WIDE]
    await desk.draw(plan([*WIDE, "x"], edges, policies={"x": one}))
    await desk.end(WIDE[0])
    states: list[dict[str, int]] = []

    async def look() -> None:
        rows = (await desk.engine.flows.picture(FLOW)).members
        states.append({name: [str(row.state) for row in rows].count(name) for name in WORDS})

    hook = Fault(Verb.COMMIT_EACH, 1, Kind.DELAY, times=3, hook=look)
    racing = FlowDesk(FaultyStore(desk.store, [hook]), desk.clock)
    await racing.dispatch()
    await look()
    assert [(each["completed"], each["cancelled"]) for each in states[:4]] == [
        (1, 0),  # before the decision
        (1, 0),  # before the cancels
        (1, 99),
        (1, 99),
    ]
    assert await desk.state("x") == "waiting"


@pytest.mark.case("LC-025")
async def test_a_member_with_a_deadline_is_worked_on_as_anything_else(desk: FlowDesk) -> None:
    late_ms = desk.clock.now_ms() + 60_000
    wanted = msgspec.structs.replace(order("a"), deadline_ms=late_ms)
    await desk.draw(msgspec.structs.replace(plan("a"), orders=[wanted]))
    lease = await desk.start("a")
    await desk.engine.progress(lease, 50, "half")
    await desk.engine.complete(lease, b"1")
    shown = await desk.snapshot(member("a"))
    assert (shown.public_state, shown.total_attempt_count) == (PublicState.COMPLETED, 1)
    await desk.dispatch()
    assert await desk.counters() == {"completed": 1}


@pytest.mark.case("TO-010")
async def test_a_member_that_expires_unclaimed_tells_its_flow(desk: FlowDesk) -> None:
    soon_ms = desk.clock.now_ms() + 1_000
    orders = [msgspec.structs.replace(order("a"), deadline_ms=soon_ms), order("b")]
    await desk.draw(msgspec.structs.replace(plan("ab", "a>b"), orders=orders))
    desk.clock.advance(1_000)
    await desk.sweep()
    (line,) = await desk.lines()
    assert (line.kind, line.execution, line.flow, line.about) == (
        LineKind.ENDED,
        member("a"),
        FLOW,
        "expired",
    )
    await desk.dispatch()
    assert await desk.states("ab") == {"a": "expired", "b": "skipped"}


async def test_new_members_wait_from_their_first_moment(desk: FlowDesk) -> None:
    await desk.draw(plan("a"))
    new = Addition(orders=[order("b"), order("c")], links=links("a>b b>c"))
    grown = await desk.engine.flows.build.add(FLOW, new, expected_revision=1)
    assert (grown.members, grown.edges, grown.graph_revision) == (3, 2, 5)
    assert await desk.states("bc") == dict.fromkeys("bc", "blocked_dependencies")
    assert "dependencies_added" not in await desk.history(member("b"))
    again = await desk.engine.flows.build.add(FLOW, new)
    assert (again.changed, again.graph_revision) == (False, 5)
    await desk.ended("a")
    await desk.ended("b")
    await desk.ended("c")
    assert await desk.counters() == {"completed": 3}


async def test_new_members_may_wait_for_what_has_ended(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    await desk.ended("a")
    await desk.ended("b", outcome="failed")
    first = Policy(Join.ANY_OF, 1, OnSatisfied.LET_RUN)
    new = Addition(
        orders=[order(name) for name in "xyz"],
        links=links("a>x b>y a>z b>z"),
        policies={GroupKey(member("z"), START): first},
    )
    await desk.engine.flows.build.add(FLOW, new)
    assert await desk.states("xyz") == {
        "x": "waiting",
        "y": "blocked_dependencies",
        "z": "waiting",
    }
    await desk.dispatch()
    assert await desk.state("y") == "skipped"
    assert (await desk.edge("a", "z")).attempt == 0
    assert await desk.counters() == {"completed": 1, "failed": 1, "skipped": 1}
    assert await desk.lines() == []


@pytest.mark.parametrize("store_kind", ["memory"])
@pytest.mark.parametrize(
    ("edges", "code"),
    [
        ("x>a", "invalid_dependency"),
        ("x>x", "self_referencing_edge"),
        ("n>x", "execution_not_in_flow"),
        ("x>y y>x", "cycle_detected"),
        ("a>x a>x", "dependency_already_exists"),
    ],
)
async def test_new_members_that_make_no_flow_are_refused_as_a_whole(
    desk: FlowDesk, edges: str, code: str
) -> None:
    await desk.draw(plan("a"))
    before = await everything(desk.store)
    new = Addition(orders=[order("x"), order("y")], links=links(edges))
    with pytest.raises(InvalidGraph) as raised:
        await desk.engine.flows.build.add(FLOW, new)
    assert raised.value.code == code
    assert await everything(desk.store) == before


async def test_new_members_come_to_an_open_flow_of_the_revision_that_is_known(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("a"))
    new = Addition(orders=[order("x")])
    add = desk.engine.flows.build.add
    with pytest.raises(StaleGraphRevision):
        await add(FLOW, new, expected_revision=7)
    with pytest.raises(InvalidInput, match="already exists"):
        await add(FLOW, Addition(orders=[order("a"), order("x")]))
    with pytest.raises(InvalidInput, match="in portions"):
        await add(FLOW, Addition(orders=[order(number) for number in range(1_000, 1_600)]))
    await desk.engine.flows.cancel(FLOW)
    with pytest.raises(FlowAlreadyTerminal):
        await add(FLOW, new)
    assert (await desk.flow()).total == 1


async def test_counters_are_exact_for_who_asks_for_it(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b"))
    await desk.end("a")
    await desk.end("c", outcome="failed")
    assert (await desk.flow()).ended == 0
    flow = await desk.engine.flows.counted(FLOW)
    assert (flow.completed, flow.failed) == (1, 1)
    assert await desk.state("b") == "waiting"
