"""Members that run again: what is taken back, what stays, what runs with them."""

from __future__ import annotations

from functools import partial

import pytest

from flowfabric.core.flow.dispatch import NoOp
from flowfabric.core.flow.eligibility import Standing
from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import (
    EdgeKind,
    EdgeState,
    GroupState,
    Join,
    LineKind,
    OnSatisfied,
)
from flowfabric.core.ids import public_id
from flowfabric.core.lifecycle import Failure
from flowfabric.core.states import PublicState, State
from flowfabric.engine.rounds import Job, Rounds
from flowfabric.engine.telemetry import Telemetry
from flowfabric.errors import ExecutionNotTerminal
from flowfabric.testing.build import policy
from flowfabric.testing.conformance.flow_steps import add_lines
from flowfabric.testing.flows import member, plan
from tests.flow.desk import FlowDesk

FIRST = Policy(Join.ANY_OF, 1, OnSatisfied.LET_RUN)


async def test_replay_overtakes_an_undispatched_line(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a", outcome="failed")
    assert len(await desk.lines()) == 1
    assert await desk.engine.replay(member("a")) is PublicState.WAITING
    assert await desk.lines() == []
    await desk.dispatch()
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES
    assert await desk.counters() == {}
    await desk.ended("a")
    assert await desk.state("b") is State.WAITING
    assert await desk.counters() == {"completed": 1}


async def test_a_line_of_a_member_that_was_replayed_is_superseded(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a", outcome="failed")
    (stale,) = await desk.lines()
    await desk.engine.replay(member("a"))
    await add_lines(desk.store, desk.clock, stale)
    await desk.dispatch()
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES
    assert (await desk.lines(), await desk.counters()) == ([], {})


async def test_a_line_of_an_earlier_generation_is_superseded_by_the_same_end(
    desk: FlowDesk,
) -> None:
    """The member has ended again, and in the same way: only the generation tells them apart."""
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a", outcome="failed")
    (stale,) = await desk.lines()
    await desk.engine.replay(member("a"))
    await desk.dispatch()
    await desk.end("a", outcome="failed")
    (fresh,) = await desk.lines()
    assert (stale.generation, fresh.generation, stale.about) == (0, 1, fresh.about)
    await add_lines(desk.store, desk.clock, stale)
    assert await desk.dispatcher.dispatch(stale) == NoOp("superseded")
    await desk.dispatch()
    assert await desk.counters() == {"failed": 1, "skipped": 1}
    assert (await desk.edge("a", "b")).generation == 1


async def test_replay_lowers_the_counter_and_leaves_resolved_edges(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a")
    before = await desk.edge("a", "b")
    await desk.engine.replay(member("a"))
    assert await desk.counters() == {}
    assert await desk.edge("a", "b") == before
    assert await desk.state("b") is State.WAITING
    await desk.ended("a", outcome="failed")
    assert await desk.state("b") is State.WAITING
    assert await desk.counters() == {"failed": 1}
    assert (await desk.group("b")).state is GroupState.SATISFIED


async def test_downstream_runs_again_with_what_it_depended_on(desk: FlowDesk) -> None:
    await desk.draw(plan("abcde", "a>b b>c a>d e>d"))
    await desk.ended("a")
    await desk.ended("b", "e")
    await desk.ended("c", "d")
    assert await desk.counters() == {"completed": 5}
    await desk.engine.replay(member("a"), downstream=True)
    assert await desk.counters() == {"completed": 1}
    assert await desk.states("abcde") == {
        "a": "waiting",
        "b": "blocked_dependencies",
        "c": "blocked_dependencies",
        "d": "blocked_dependencies",
        "e": "completed",
    }
    group = await desk.group("d")
    assert (group.state, group.succeeded, group.n) == (GroupState.PENDING, 1, 2)
    await desk.ended("a")
    await desk.ended("b", "d")
    await desk.ended("c")
    assert await desk.counters() == {"completed": 5}
    assert {(await desk.member(name)).replay_count for name in "abcd"} == {1}
    assert (await desk.member("e")).replay_count == 0


async def test_who_did_not_depend_on_it_stays(desk: FlowDesk) -> None:
    await desk.draw(plan("abx", "a>x b>x", policies={"x": FIRST}))
    await desk.ended("a")
    await desk.ended("b", "x")
    await desk.engine.replay(member("b"), downstream=True)
    assert await desk.states("abx") == {"a": "completed", "b": "waiting", "x": "completed"}


async def test_a_skipped_downstream_comes_back_unless_another_upstream_failed(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("abcd", "a>c a>d b>d"))
    await desk.ended("a", "b", outcome="failed")
    assert await desk.states("cd") == {"c": "skipped", "d": "skipped"}
    await desk.engine.replay(member("a"), downstream=True)
    assert await desk.states("cd") == {"c": "blocked_dependencies", "d": "skipped"}
    await desk.ended("a")
    assert await desk.states("cd") == {"c": "waiting", "d": "skipped"}
    assert await desk.counters() == {"completed": 1, "failed": 1, "skipped": 1}


async def test_a_late_success_that_became_a_failure_brings_no_skipped_downstream_back(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("abx", "a>x b>x"))
    await desk.ended("b", outcome="failed")
    await desk.ended("a")
    await desk.engine.replay(member("a"))
    await desk.ended("a", outcome="failed")
    await desk.engine.replay(member("b"), downstream=True)
    await desk.ended("b")
    assert await desk.states("abx") == {"a": "failed", "b": "completed", "x": "skipped"}
    assert (await desk.flow()).settled


async def test_whoever_runs_again_does_not_wait_for_a_late_success_that_became_a_failure(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("abx", "a>x b>x", policies={"x": FIRST}))
    await desk.ended("b")
    await desk.ended("a", "x")
    await desk.engine.replay(member("a"))
    await desk.ended("a", outcome="failed")
    await desk.engine.replay(member("b"), downstream=True)
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES
    await desk.ended("b", outcome="failed")
    assert await desk.states("abx") == {"a": "failed", "b": "failed", "x": "skipped"}
    assert (await desk.flow()).settled


async def test_a_late_success_that_runs_again_is_waited_for(desk: FlowDesk) -> None:
    await desk.draw(plan("abx", "a>x b>x", policies={"x": FIRST}))
    await desk.ended("b")
    await desk.ended("a", "x")
    await desk.engine.replay(member("a"))
    await desk.engine.replay(member("b"), downstream=True)
    await desk.ended("b", outcome="failed")
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES
    await desk.ended("a")
    assert await desk.state("x") is State.WAITING


async def test_a_skipped_member_waits_for_its_upstreams_to_be_replayed(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.ended("a", outcome="failed")
    assert await desk.states("bc") == {"b": "skipped", "c": "skipped"}
    assert await desk.engine.replay(member("b")) is PublicState.WAITING_CHILDREN
    edge = await desk.edge("a", "b")
    assert (edge.state, edge.resolved_ms) == (EdgeState.PENDING, None)
    group = await desk.group("b")
    assert (group.state, group.failed, group.n) == (GroupState.PENDING, 0, 1)
    await desk.dispatch()
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES
    await desk.engine.replay(member("a"))
    await desk.ended("a")
    assert await desk.states("abc") == {"a": "completed", "b": "waiting", "c": "skipped"}
    await desk.ended("b")
    assert await desk.counters() == {"completed": 2, "skipped": 1}


async def test_a_replayed_member_says_which_upstreams_must_be_replayed(desk: FlowDesk) -> None:
    await desk.draw(plan("abcx", "a>x b>x c>x"))
    await desk.ended("a")
    await desk.ended("b", "c", outcome="failed")
    await desk.engine.replay(member("x"))
    told = await desk.engine.read.explain(member("x"))
    assert set(told.to_replay) == {member("b"), member("c")}
    assert (told.wakes, told.eligibility) == ("operator", Standing.BLOCKED)
    before = "waiting for upstreams that ended before it was replayed; replay"
    assert told.sentence == f"{before} {public_id(told.to_replay[0])} and 1 more"
    await desk.engine.replay(member("b"))
    told = await desk.engine.read.explain(member("x"))
    assert (told.sentence, told.to_replay) == (
        f"{before} {public_id(member('c'))}",
        (member("c"),),
    )
    await desk.engine.replay(member("c"))
    told = await desk.engine.read.explain(member("x"))
    assert told.sentence == "waiting for 2 of the 3 executions it depends on"
    assert (told.wakes, told.to_replay) == ("dependencies", ())


async def test_who_can_still_get_enough_needs_no_other_replay(desk: FlowDesk) -> None:
    await desk.draw(plan("abx", "a>x b>x", policies={"x": FIRST}))
    await desk.ended("a", "b", outcome="failed")
    await desk.engine.replay(member("x"))
    assert len((await desk.engine.read.explain(member("x"))).to_replay) == 2
    await desk.engine.replay(member("a"))
    told = await desk.engine.read.explain(member("x"))
    assert (told.wakes, told.to_replay) == ("dependencies", ())


async def test_who_was_cancelled_while_it_waited_waits_only_for_what_is_open(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("abcd", "a>c b>d"))
    await desk.ended("c", "d", outcome="cancelled")
    await desk.ended("a")
    await desk.ended("b", outcome="failed")
    assert await desk.engine.replay(member("c")) is PublicState.WAITING
    assert await desk.engine.replay(member("d")) is PublicState.WAITING_CHILDREN
    await desk.engine.replay(member("b"))
    await desk.ended("b")
    assert await desk.states("cd") == {"c": "waiting", "d": "waiting"}
    assert await desk.counters() == {"completed": 2}


async def test_a_member_cancelled_before_its_flow_was_opened_runs_when_replayed(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan(range(1_000, 1_501)))
    await desk.end(1_000, outcome="cancelled")
    await desk.dispatch()
    assert await desk.engine.replay(member(1_000)) is PublicState.WAITING
    assert await desk.counters() == {}


async def test_a_skipped_member_runs_at_once_when_its_upstreams_were_replayed_before(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    await desk.ended("a", "b", outcome="failed")
    for name in "ab":
        await desk.engine.replay(member(name))
    await desk.ended("a")
    await desk.ended("b", outcome="failed")
    assert await desk.state("c") is State.SKIPPED
    await desk.engine.replay(member("c"))
    group = await desk.group("c")
    assert (group.state, group.succeeded, group.failed) == (GroupState.PENDING, 1, 0)
    edges = [await desk.edge(name, "c") for name in "ab"]
    assert [(edge.state, edge.generation) for edge in edges] == [
        (EdgeState.SATISFIED, 1),
        (EdgeState.PENDING, 2),
    ]
    await desk.engine.replay(member("b"))
    await desk.ended("b")
    assert await desk.state("c") is State.WAITING
    edges = [await desk.edge(name, "c") for name in "ab"]
    assert [edge.attempt for edge in edges] == [1, 2]


@pytest.mark.parametrize("join", [FIRST, Policy(Join.QUORUM, 2, OnSatisfied.LET_RUN)])
async def test_who_has_enough_without_the_replayed_member_runs_with_that(
    desk: FlowDesk, join: Policy
) -> None:
    """Late successes count, and are passed on, when what was used before is taken back."""
    await desk.draw(plan("abcx", "a>x b>x c>x", policies={"x": join}))
    for name in "abcx":
        await desk.ended(name)
    before = [(await desk.edge(name, "x")).attempt for name in "abc"]
    assert before == ([0, -1, -1] if join.k == 1 else [0, 0, -1])
    await desk.engine.replay(member("a"), downstream=True)
    group = await desk.group("x")
    assert (group.state, group.succeeded) == (GroupState.SATISFIED, 2)
    assert await desk.states("ax") == {"a": "waiting", "x": "waiting"}
    after = [(await desk.edge(name, "x")).attempt for name in "abc"]
    assert after == ([-1, 0, -1] if join.k == 1 else [-1, 0, 0])
    await desk.ended("a", "x")
    assert (await desk.group("x")).succeeded == 3
    assert await desk.counters() == {"completed": 4}


async def test_downstream_of_a_member_that_never_ran_comes_back_with_it(desk: FlowDesk) -> None:
    edges = [Link(member("a"), member("b"), EdgeKind.COMPLETION)]
    await desk.draw(plan("ab", edges))
    await desk.ended("a", outcome="cancelled")
    await desk.ended("b")
    await desk.engine.replay(member("a"), downstream=True)
    assert await desk.states("ab") == {"a": "waiting", "b": "blocked_dependencies"}
    await desk.ended("a")
    await desk.ended("b")
    assert await desk.counters() == {"completed": 2}


async def test_downstream_that_runs_goes_on_and_waits_before_it_is_tried_again(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("ab", "a>b", policy=policy(retries=1)))
    await desk.ended("a")
    lease = await desk.start("b")
    await desk.engine.replay(member("a"), downstream=True)
    assert await desk.state("b") is State.ACTIVE
    await desk.engine.fail(lease, Failure("stumbled", "handler_error"))
    desk.clock.advance(1_000)
    await desk.sweep()
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES
    await desk.ended("a")
    assert await desk.state("b") is State.WAITING


async def test_downstream_that_is_handed_back_waits_too(desk: FlowDesk) -> None:
    """Whoever holds it cannot know that its upstream runs again."""
    await desk.draw(plan("ab", "a>b", policy=policy(retries=1, pause_ms=0)))
    for hand_back in (desk.engine.release, partial(desk.engine.fail, failure=Failure("stumbled"))):
        await desk.ended("a")
        lease = await desk.start("b")
        await desk.engine.replay(member("a"), downstream=True)
        await hand_back(lease)
        desk.clock.advance(1)
        assert await desk.claim(1, only=member("b")) == []
        await desk.sweep()
        assert await desk.state("b") is State.BLOCKED_DEPENDENCIES


@pytest.mark.parametrize("downstream", [False, True])
async def test_replay_of_what_has_not_ended_changes_nothing(
    desk: FlowDesk, downstream: bool
) -> None:
    await desk.draw(plan("ab", "a>b"))
    before = await desk.flow()
    with pytest.raises(ExecutionNotTerminal):
        await desk.engine.replay(member("a"), downstream=downstream)
    assert await desk.flow() == before


@pytest.mark.parametrize("pause_ms", [0, 5])
async def test_a_group_that_is_decided_again_owes_its_cancels_anew(
    desk: FlowDesk, pause_ms: int
) -> None:
    """The line of the first decision is still open: one goes and the other comes in one commit."""
    race = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)
    await desk.draw(plan("abc", "a>c b>c", policies={"c": race}))
    await desk.end("a")
    work = Job(await desk.flow(), await desk.lines(), desk.clock.now_ms())
    assert await Rounds(desk.store, Telemetry()).run([work], desk.clock.now_ms) == [True]
    assert [line.kind for line in await desk.lines()] == [LineKind.CANCEL_SIBLINGS]
    await desk.engine.replay(member("a"), downstream=True)
    desk.clock.advance(pause_ms)
    await desk.ended("a")
    assert await desk.states("abc") == {"a": "completed", "b": "cancelled", "c": "waiting"}
    assert await desk.lines() == []


async def test_downstream_that_is_lost_while_its_upstream_runs_again_is_released_later(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a")
    lease = await desk.start("b")
    await desk.engine.replay(member("a"), downstream=True)
    desk.clock.set(lease.until_ms)
    await desk.sweep()
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES
    await desk.ended("a")
    assert await desk.state("b") is State.WAITING
    await desk.ended("b")
    assert await desk.counters() == {"completed": 2}
