"""Relational dispatch (S2): what a decided group does to its member and to the other upstreams."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import GroupState, Join, LineKind, OnSatisfied
from flowfabric.core.states import State
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.testing.flows import links, member, plan
from tests.flow.desk import FlowDesk

FIRST = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)


async def test_s2_29_what_was_blocked_can_be_claimed_now(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    assert (await desk.snapshot(member("b"))).vector.eligibility == "blocked_by_dependencies"
    await desk.ended("a")
    assert (await desk.snapshot(member("b"))).vector.eligibility == "eligible_now"
    assert [lease.id for lease in await desk.claim(10)] == [member("b")]


@pytest.mark.case("FL-081")
@pytest.mark.parametrize("outcome", ["success", "failed"])
async def test_s2_29_s2_33_s2_34_who_has_ended_is_not_touched(desk: FlowDesk, outcome: str) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("b", outcome="cancelled")
    before, history = await desk.member("b"), await desk.history(member("b"))
    desk.clock.advance(50)
    await desk.ended("a", outcome=outcome)
    assert await desk.member("b") == before
    assert before.ended_ms == desk.clock.now_ms() - 50
    assert await desk.history(member("b")) == history
    is_success = outcome == "success"
    decided = GroupState.SATISFIED if is_success else GroupState.IMPOSSIBLE
    assert (await desk.group("b")).state is decided
    counted = {"completed": 1} if is_success else {"failed": 1}
    assert (await desk.counters(), await desk.lines()) == ({**counted, "cancelled": 1}, [])


async def test_s2_30_who_is_owed_a_cancel_is_listed_with_the_decision(desk: FlowDesk) -> None:
    """Of the upstreams a to g: a fires, b is done, c is skipped, d is running, e waits, f is
    needed by another open group, g by one that is decided."""
    edges = links("a>x b>x c>x d>x e>x f>x g>x f>y z>c k>w g>w")
    policies = {"x": Policy(Join.QUORUM, 2, OnSatisfied.CANCEL_REMAINING), "w": Policy(Join.ANY_OF)}
    await desk.draw(plan("abcdefgkwxyz", edges, policies=policies))
    await desk.ended("b", "k")
    await desk.ended("z", outcome="failed")
    await desk.start("d")
    await desk.end("a")
    await desk.die_after_ends()
    group = await desk.group("x")
    assert (group.state, group.cancel_owed) == (GroupState.SATISFIED, True)
    assert group.owed.split("\n") == [member(name) for name in "deg"]
    (line,) = await desk.lines()
    assert (line.kind, line.execution) == (LineKind.CANCEL_SIBLINGS, member("x"))
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    assert await desk.states("defg") == {
        "d": "cancelled",
        "e": "cancelled",
        "f": "waiting",
        "g": "cancelled",
    }


async def test_s2_30_nobody_to_cancel_leaves_neither_flag_nor_line(desk: FlowDesk) -> None:
    await desk.draw(plan("abx", "a>x b>x", policies={"x": FIRST}))
    await desk.ended("b", outcome="failed")
    await desk.end("a")
    await desk.die_after_ends()
    group = await desk.group("x")
    assert (group.state, group.cancel_owed, group.owed) == (GroupState.SATISFIED, False, "")
    assert await desk.lines() == []


async def test_s2_31_a_group_that_is_flagged_is_not_flagged_again(desk: FlowDesk) -> None:
    await desk.draw(plan("abcx", "a>x b>x c>x", policies={"x": FIRST}))
    await desk.end("a")
    await desk.die_after_ends()
    flagged = await desk.group("x")
    desk.clock.advance(LEASE_MS)
    await desk.end("b")
    await desk.die_after_ends()
    group = await desk.group("x")
    assert (group.succeeded, group.owed) == (2, flagged.owed)
    assert (group.cancel_reason, group.decided_ms) == (flagged.cancel_reason, flagged.decided_ms)
    assert [line.kind for line in await desk.lines()] == [LineKind.CANCEL_SIBLINGS]
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    assert await desk.states("bc") == {"b": "completed", "c": "cancelled"}


async def test_s2_33_s2_35_who_is_skipped_says_so_once_in_the_same_commit(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.end("a", outcome="failed")
    await desk.die_after_ends()
    snapshot = await desk.snapshot(member("b"))
    assert (snapshot.public_state, snapshot.vector.phase) == ("skipped", "terminal")
    (line,) = await desk.lines()
    assert (line.kind, line.execution, line.about) == (LineKind.ENDED, member("b"), "skipped")
    assert await desk.state("c") is State.BLOCKED_DEPENDENCIES
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    assert await desk.state("c") is State.SKIPPED
    assert [(await desk.history(member(name))).count("skipped") for name in "bc"] == [1, 1]


async def test_s2_36_a_level_is_skipped_in_each_round(desk: FlowDesk) -> None:
    names = "abcde"
    await desk.draw(plan(names, "a>b b>c c>d d>e"))
    await desk.end("a", outcome="failed")
    for skipped in range(1, 5):
        await desk.die_after_ends()
        states = list((await desk.states(names[1:])).values())
        assert states == ["skipped"] * skipped + ["blocked_dependencies"] * (4 - skipped)
        desk.clock.advance(LEASE_MS)
