"""any_of and quorum: when they fire, who is cancelled, what is counted afterwards."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.dispatch import Advanced
from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import EdgeKind, GroupState, Join, LineKind, OnSatisfied
from flowfabric.core.states import State
from flowfabric.engine.dependency_reconciler import DependencyReconciler
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.engine.sibling_reconciler import SiblingReconciler
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, chain, flow_id, links, member, plan
from tests.flow.desk import FlowDesk
from tests.flow.watched import Watched

CANCEL, LET_RUN = OnSatisfied.CANCEL_REMAINING, OnSatisfied.LET_RUN
SATISFIED = "sibling_quorum_satisfied"


def fan(names: str, policy: Policy) -> Plan:
    return plan([*names, "x"], " ".join(f"{n}>x" for n in names), policies={"x": policy})


async def dispatch_once(desk: FlowDesk) -> None:
    """Act on the lines that are there and die, with the flow taken and its next lines open."""
    for line in await desk.lines():
        if line.kind is LineKind.ENDED:
            taken = await desk.dispatcher._take([FLOW])
            for job in taken:
                job.lines = [each for each in job.lines if each.id == line.id]
            assert await desk.dispatcher._commit(taken) == [True]


@pytest.mark.case("FL-083")
async def test_a_race_that_was_built_step_by_step_queues_the_cancels_of_its_losers(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("abcx"))
    build = desk.engine.flows.build
    assert await build.set_policy(FLOW, member("x"), Policy(Join.ANY_OF, 1, CANCEL))
    for link in links("a>x b>x c>x"):
        await build.link(FLOW, link)
    await build.seal(FLOW, member("x"))
    await desk.end("a")
    (ended,) = await desk.lines()
    seen: list[tuple[dict[str, str], list[str]]] = []

    async def look() -> None:
        kinds = [line.kind.value for line in await desk.lines()]
        seen.append((await desk.states("bcx"), kinds))

    # Before the commit that decides, and before the one that cancels.
    watched = FaultyStore(desk.store, [Fault(Verb.COMMIT_EACH, 1, Kind.DELAY, times=2, hook=look)])
    dispatched = await FlowDesk(watched, desk.clock).dispatcher.dispatch(ended)
    assert dispatched == Advanced(1)
    assert seen == [
        ({"b": "waiting", "c": "waiting", "x": "blocked_dependencies"}, ["ended"]),
        ({"b": "waiting", "c": "waiting", "x": "waiting"}, ["cancel_siblings"]),
    ]
    assert await desk.states("bcx") == {"b": "cancelled", "c": "cancelled", "x": "waiting"}


@pytest.mark.case("FL-037")
async def test_the_first_success_fires_and_flags_and_cancels_nobody_yet(desk: FlowDesk) -> None:
    await desk.draw(fan("abc", Policy(Join.ANY_OF, 1, CANCEL)))
    await desk.end("a")
    await dispatch_once(desk)
    group = await desk.group("x")
    assert await desk.state("x") is State.WAITING
    assert (group.state, group.cancel_owed, group.cancel_reason) == (
        GroupState.SATISFIED,
        True,
        SATISFIED,
    )
    assert group.owed.split("\n") == [member("b"), member("c")]
    assert await desk.states("bc") == {"b": "waiting", "c": "waiting"}
    assert [line.kind for line in await desk.lines()] == [LineKind.CANCEL_SIBLINGS]


@pytest.mark.case("FL-052")
async def test_siblings_are_cancelled_and_the_flag_goes(desk: FlowDesk) -> None:
    await desk.draw(fan("abc", Policy(Join.ANY_OF, 1, CANCEL)))
    running = await desk.start("b")
    await desk.ended("a")
    assert await desk.states("abcx") == {
        "a": "completed",
        "b": "cancelled",
        "c": "cancelled",
        "x": "waiting",
    }
    heads = [await desk.member(name) for name in "bc"]
    assert {head.outcome_detail for head in heads} == {SATISFIED}
    assert heads[0].epoch == running.epoch + 1
    group = await desk.group("x")
    assert (group.cancel_owed, group.owed, group.cancel_reason) == (False, "", SATISFIED)
    assert (group.succeeded, group.failed, group.n) == (1, 2, 3)
    assert await desk.lines() == []


@pytest.mark.case("FL-038", "FL-055")
@pytest.mark.parametrize(
    "policy", [Policy(Join.ANY_OF, 1, LET_RUN), Policy(Join.QUORUM, 1, LET_RUN)]
)
async def test_let_run_cancels_nobody(desk: FlowDesk, policy: Policy) -> None:
    await desk.draw(fan("abc", policy))
    await desk.ended("a")
    group = await desk.group("x")
    assert (group.state, group.cancel_owed, group.owed) == (GroupState.SATISFIED, False, "")
    nets: list[SiblingReconciler | DependencyReconciler] = [
        SiblingReconciler(desk.store, desk.engine.clock),
        DependencyReconciler(desk.store, desk.engine.clock, desk.dispatcher),
    ]
    for _ in range(2):
        for net in nets:
            done = await net.run_once()
            assert (done.processed, done.errors) == (0, 0)
        await desk.dispatch()
        desk.clock.advance(10_000)
    assert await desk.states("bcx") == {"b": "waiting", "c": "waiting", "x": "waiting"}
    assert await desk.lines() == []
    await desk.ended("b")
    late = await desk.group("x")
    assert (late.state, late.succeeded, late.decided_ms) == (
        GroupState.SATISFIED,
        2,
        group.decided_ms,
    )


@pytest.mark.case("FL-039", "FL-053")
async def test_a_quorum_fires_at_its_number_and_cancels_the_rest(desk: FlowDesk) -> None:
    await desk.draw(fan("abcde", Policy(Join.QUORUM, 3, CANCEL)))
    await desk.ended("a", "b")
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES
    await desk.end("c")
    await dispatch_once(desk)
    assert await desk.state("x") is State.WAITING
    group = await desk.group("x")
    assert (group.state, group.cancel_owed) == (GroupState.SATISFIED, True)
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    for name in "de":
        head = await desk.member(name)
        assert (head.state, head.outcome_detail) == (State.CANCELLED, SATISFIED)


@pytest.mark.case("FL-040")
async def test_a_quorum_that_lets_run(desk: FlowDesk) -> None:
    await desk.draw(fan("abcde", Policy(Join.QUORUM, 3, LET_RUN)))
    await desk.ended("a", "b", "c")
    assert await desk.state("x") is State.WAITING
    assert not (await desk.group("x")).cancel_owed
    assert await desk.states("de") == {"d": "waiting", "e": "waiting"}


async def test_a_quorum_that_cannot_be_reached_skips_and_cancels_the_rest(desk: FlowDesk) -> None:
    await desk.draw(fan("abcde", Policy(Join.QUORUM, 3, CANCEL)))
    await desk.ended("a", "b", outcome="failed")
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES
    await desk.ended("c", outcome="failed")
    assert await desk.state("x") is State.SKIPPED
    group = await desk.group("x")
    assert (group.state, group.cancel_reason) == (
        GroupState.IMPOSSIBLE,
        "sibling_quorum_impossible",
    )
    assert await desk.states("de") == {"d": "cancelled", "e": "cancelled"}
    assert (await desk.history(member("x"))).count("skipped") == 1


async def test_a_loser_that_another_group_needs_goes_on(desk: FlowDesk) -> None:
    edges = links("a>x b>x b>y c>y")
    await desk.draw(plan("abcxy", edges, policies={"x": Policy(Join.ANY_OF, 1, CANCEL)}))
    await desk.ended("a")
    assert await desk.states("bxy") == {
        "b": "waiting",
        "x": "waiting",
        "y": "blocked_dependencies",
    }
    assert not (await desk.group("x")).cancel_owed


async def test_a_loser_that_only_decided_groups_need_is_cancelled(desk: FlowDesk) -> None:
    edges = links("a>x b>x b>y c>y")
    await desk.draw(plan("abcxy", edges, policies={"x": Policy(Join.ANY_OF, 1, CANCEL)}))
    await desk.ended("c", outcome="failed")
    assert await desk.state("y") is State.SKIPPED
    await desk.ended("a")
    assert await desk.state("b") is State.CANCELLED


async def test_a_loser_that_was_released_in_the_same_round_is_cancelled(desk: FlowDesk) -> None:
    edges = links("r>b a>x b>x")
    await desk.draw(plan("rabx", edges, policies={"x": Policy(Join.ANY_OF, 1, CANCEL)}))
    await desk.end("r", "a")
    await desk.dispatch()
    assert await desk.states("bx") == {"b": "cancelled", "x": "waiting"}
    assert await desk.counters() == {"completed": 2, "cancelled": 1}


async def test_a_loser_that_is_released_before_its_cancel_is_cancelled(desk: FlowDesk) -> None:
    edges = links("r>b a>x b>x")
    await desk.draw(plan("rabx", edges, policies={"x": Policy(Join.ANY_OF, 1, CANCEL)}))
    await desk.end("a")
    await dispatch_once(desk)
    await desk.end("r")
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    assert await desk.states("bx") == {"b": "cancelled", "x": "waiting"}
    assert await desk.lines() == []


async def test_a_loser_that_is_needed_again_before_its_cancel_goes_on(desk: FlowDesk) -> None:
    await desk.draw(plan("abcxy", "a>x b>x c>x", policies={"x": Policy(Join.ANY_OF, 1, CANCEL)}))
    await desk.end("a")
    await dispatch_once(desk)
    await desk.engine.flows.build.link(FLOW, Link(member("b"), member("y")))
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    assert await desk.states("bc") == {"b": "waiting", "c": "cancelled"}
    group = await desk.group("x")
    assert (group.cancel_owed, group.owed, await desk.lines()) == (False, "", [])


WAITS: dict[str, tuple[Link, bool]] = {
    "its success": (Link(member("b"), member("y")), True),
    "its result if there is one": (
        Link(member("b"), member("y"), EdgeKind.COMPLETION, argument="n"),
        True,
    ),
    "any end": (Link(member("b"), member("y"), EdgeKind.COMPLETION), False),
    "its end": (Link(member("b"), member("y"), EdgeKind.ORDER), False),
    "its failure": (Link(member("b"), member("y"), EdgeKind.FAILURE), False),
}


@pytest.mark.parametrize("wish", WAITS)
async def test_a_loser_goes_on_only_if_another_member_wants_its_success(
    desk: FlowDesk, wish: str
) -> None:
    link, is_wanted = WAITS[wish]
    edges = [*links("a>x b>x"), link]
    await desk.draw(plan("abxy", edges, policies={"x": Policy(Join.ANY_OF, 1, CANCEL)}))
    running = await desk.start("b")
    await desk.ended("a")
    if is_wanted:
        assert await desk.states("by") == {"b": "active", "y": "blocked_dependencies"}
        await desk.engine.complete(running, b"1")
        await desk.dispatch()
    else:
        assert await desk.state("b") is State.CANCELLED
    # The clean-up runs, whichever way its upstream ended.
    assert await desk.states("xy") == {"x": "waiting", "y": "waiting"}
    assert await desk.lines() == []


@pytest.mark.parametrize("wish", WAITS)
async def test_an_edge_drawn_before_the_cancel_keeps_a_loser_if_it_wants_its_success(
    desk: FlowDesk, wish: str
) -> None:
    link, is_wanted = WAITS[wish]
    await desk.draw(plan("abxy", "a>x b>x", policies={"x": Policy(Join.ANY_OF, 1, CANCEL)}))
    await desk.end("a")
    await dispatch_once(desk)
    await desk.engine.flows.build.link(FLOW, link)
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    assert (await desk.state("b") is State.WAITING) is is_wanted


@pytest.mark.case("FL-056")
async def test_many_groups_at_once_are_drained(desk: FlowDesk) -> None:
    downs = list(range(2_000, 2_008))
    ups = {down: [down * 10 + place for place in range(3)] for down in downs}
    edges = [Link(member(up), member(down)) for down in downs for up in ups[down]]
    policies = {down: Policy(Join.ANY_OF, 1, CANCEL) for down in downs}
    names = [*downs, *(up for each in ups.values() for up in each)]
    await desk.draw(plan(names, edges, policies=policies))
    await desk.ended(*(each[0] for each in ups.values()))
    losers = [up for each in ups.values() for up in each[1:]]
    assert len(losers) == 16
    assert {await desk.state(name) for name in losers} == {State.CANCELLED}
    assert {await desk.state(name) for name in downs} == {State.WAITING}
    assert await desk.lines() == []


@pytest.mark.case("FL-057", "FL-059")
@pytest.mark.parametrize("width", [50, 1_200])
async def test_no_sibling_is_forgotten_however_many_there_are(desk: FlowDesk, width: int) -> None:
    ups = list(range(5_000, 5_000 + width))
    edges = [Link(member(up), member("x")) for up in ups]
    policy = Policy(Join.QUORUM, 1, CANCEL)
    await desk.draw(plan([*ups, "x"], edges, policies={"x": policy}))
    await desk.dispatch()
    await desk.end(ups[7])
    watched = Watched(desk.store)
    other = FlowDesk(watched, desk.clock)
    await other.dispatch()
    cancelled = [len([t for t in each.transitions if t.line]) for each in watched.changes]
    assert [count for count in cancelled if count] == ([49] if width == 50 else [500, 500, 199])
    assert await desk.counters() == {"completed": 1, "cancelled": width - 1}
    assert await desk.state("x") is State.WAITING
    counts = other.dispatcher.counts
    assert counts.labels("ff_sibling_cancel_dispatched_total") == {SATISFIED: width - 1}
    assert counts.labels("ff_sibling_cancel_disposition_total") == {"cancelled": width - 1}
    assert await desk.lines() == []


async def test_counters_of_other_flows_are_their_own(desk: FlowDesk, clock: VirtualClock) -> None:
    flows = [flow_id(number) for number in range(10, 13)]
    for flow in flows:
        await desk.draw(plan("abc", chain("abc", flow), flow=flow))
    await desk.ended("a", flow=flows[0])
    await desk.ended("a", flow=flows[1], outcome="failed")
    assert [await desk.counters(flow) for flow in flows] == [
        {"completed": 1},
        {"failed": 1, "skipped": 2},
        {},
    ]
    assert clock.now_ms() > 0
