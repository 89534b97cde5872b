"""Edges drawn twice, results along edges, losers of a wide race, members with deadlines."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.inputs import Passed
from flowfabric.core.flow.model import EdgeState, Join, LineKind, OnSatisfied
from flowfabric.core.model import Want
from flowfabric.core.states import PublicState
from flowfabric.errors import InvalidGraph
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
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
    with pytest.raises(InvalidGraph) as raised:
        await draw(FLOW, edge)
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
