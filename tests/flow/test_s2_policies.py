"""Relational dispatch (S2): when a group is satisfied, impossible, or waits."""

from __future__ import annotations

import logging

import msgspec
import pytest

from flowfabric.core.flow.graph import Plan, Policy
from flowfabric.core.flow.model import GroupState, Join, LineKind, OnSatisfied
from flowfabric.core.ids import public_id
from flowfabric.core.states import State
from flowfabric.testing.flows import member, plan
from tests.corrupter import Raw
from tests.flow.desk import FlowDesk
from tests.flow.watched import Watched, told

CANCEL, LET_RUN = OnSatisfied.CANCEL_REMAINING, OnSatisfied.LET_RUN
PENDING, SATISFIED, IMPOSSIBLE = GroupState.PENDING, GroupState.SATISFIED, GroupState.IMPOSSIBLE


def fan(names: str, policy: Policy) -> Plan:
    return plan([*names, "x"], " ".join(f"{n}>x" for n in names), policies={"x": policy})


async def states_after(desk: FlowDesk, *ends: tuple[str, str]) -> list[GroupState]:
    """What the group of x is after each of these ends."""
    found = []
    for name, outcome in ends:
        await desk.ended(name, outcome=outcome)
        found.append((await desk.group("x")).state)
    return found


async def test_s2_18_s2_19_all_of_waits_for_the_last_success(desk: FlowDesk) -> None:
    await desk.draw(fan("abc", Policy(Join.ALL_OF, 1, CANCEL)))
    ends = [(name, "success") for name in "abc"]
    assert await states_after(desk, *ends) == [PENDING, PENDING, SATISFIED]
    group = await desk.group("x")
    assert (group.cancel_owed, group.owed, await desk.lines()) == (False, "", [])


async def test_s2_20_all_of_is_impossible_with_the_first_skip(desk: FlowDesk) -> None:
    await desk.draw(plan("zabx", "z>a a>x b>x"))
    await desk.ended("z", outcome="failed")
    group = await desk.group("x")
    assert (group.state, group.skipped, group.running) == (IMPOSSIBLE, 1, 1)
    assert await desk.states("bx") == {"b": "waiting", "x": "skipped"}


async def test_s2_21_all_of_nothing_is_never_satisfied(desk: FlowDesk) -> None:
    await desk.draw(fan("a", Policy()))
    await desk.change(msgspec.structs.replace(await desk.group("x"), n=0))
    await desk.ended("a")
    group = await desk.group("x")
    assert (group.n, group.state) == (0, PENDING)
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES


@pytest.mark.parametrize("on_satisfied", [CANCEL, LET_RUN])
async def test_s2_22_s2_32_any_of_fires_at_the_first_success(
    desk: FlowDesk, on_satisfied: OnSatisfied
) -> None:
    await desk.draw(fan("abc", Policy(Join.ANY_OF, 1, on_satisfied)))
    await desk.end("a")
    await desk.die_after_ends()
    group = await desk.group("x")
    cancels = on_satisfied is CANCEL
    assert (group.state, group.cancel_owed, bool(group.owed)) == (SATISFIED, cancels, cancels)
    kinds = [line.kind for line in await desk.lines()]
    assert kinds == ([LineKind.CANCEL_SIBLINGS] if cancels else [])


async def test_s2_23_any_of_is_impossible_when_nobody_is_left(desk: FlowDesk) -> None:
    await desk.draw(fan("ab", Policy(Join.ANY_OF)))
    ends = [("a", "failed"), ("b", "cancelled")]
    assert await states_after(desk, *ends) == [PENDING, IMPOSSIBLE]
    assert await desk.state("x") is State.SKIPPED


async def test_s2_24_a_quorum_is_satisfied_at_its_number(desk: FlowDesk) -> None:
    edges = "z>a a>x b>x c>x"
    await desk.draw(plan("zabcx", edges, policies={"x": Policy(Join.QUORUM, 2)}))
    ends = [("z", "failed"), ("b", "success"), ("c", "success")]
    assert await states_after(desk, *ends) == [PENDING, PENDING, SATISFIED]
    group = await desk.group("x")
    assert (group.succeeded, group.skipped, group.n) == (2, 1, 3)


async def test_s2_25_a_quorum_is_impossible_as_soon_as_it_is_out_of_reach(desk: FlowDesk) -> None:
    await desk.draw(fan("abcde", Policy(Join.QUORUM, 3)))
    ends = [(name, "failed") for name in "abc"]
    assert await states_after(desk, *ends) == [PENDING, PENDING, IMPOSSIBLE]
    assert (await desk.group("x")).running == 2
    assert await desk.states("dex") == {"d": "waiting", "e": "waiting", "x": "skipped"}


async def test_s2_26_satisfied_goes_before_impossible(desk: FlowDesk) -> None:
    await desk.draw(fan("ab", Policy(Join.ANY_OF)))
    await desk.change(msgspec.structs.replace(await desk.group("x"), n=1))
    await desk.end("a")
    await desk.end("b", outcome="failed")
    await desk.dispatch()
    group = await desk.group("x")
    assert (group.n - group.failed, group.succeeded, group.state) == (0, 1, SATISFIED)
    assert await desk.state("x") is State.WAITING


@pytest.mark.parametrize(("column", "text"), [("join", ""), ("join", "weighted"), ("k", "0")])
async def test_s2_27_s2_28_a_policy_that_nobody_understands_waits_with_an_alarm(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture, column: str, text: str
) -> None:
    await desk.draw(fan("ab", Policy(Join.QUORUM, 1)))
    value = int(text) if column == "k" else text
    await desk.change(msgspec.structs.replace(await desk.group("x"), **{column: value}))
    await desk.ended("a", "b")
    group = await desk.group("x")
    assert (group.state, group.succeeded) == (PENDING, 2)
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES
    (alarm,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    told = vars(alarm)
    assert (told["downstream"], told["policy"]) == (public_id(member("x")), group.join)
    assert await desk.lines() == []


async def test_s2_27_who_does_not_say_what_becomes_of_the_rest_cancels_nobody(
    desk: FlowDesk, raw: Raw
) -> None:
    await desk.draw(fan("ab", Policy(Join.ANY_OF, 1, CANCEL)))
    await raw.write(await desk.group("x"), "on_satisfied", "")
    await desk.ended("a")
    assert await desk.states("bx") == {"b": "waiting", "x": "waiting"}
    assert not (await desk.group("x")).cancel_owed


@pytest.mark.case("FL-078")
async def test_s2_22_each_line_in_turn_any_of_that_cancels_the_rest(desk: FlowDesk) -> None:
    await desk.draw(fan("abc", Policy(Join.ANY_OF, 1, CANCEL)))
    assert await queued_in_turn(desk, "a") == [1]
    assert await desk.state("x") is State.WAITING


@pytest.mark.case("FL-078")
async def test_s2_24_each_line_in_turn_a_quorum_that_lets_run(desk: FlowDesk) -> None:
    await desk.draw(fan("abc", Policy(Join.QUORUM, 2, LET_RUN)))
    assert await queued_in_turn(desk, "a") == [0]
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES
    assert await queued_in_turn(desk, "b") == [0]
    assert await desk.state("x") is State.WAITING


@pytest.mark.case("FL-078")
async def test_s2_25_s2_35_each_line_in_turn_a_quorum_that_cannot_be(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.dispatcher")
    await desk.draw(fan("abc", Policy(Join.QUORUM, 2, LET_RUN)))
    assert await queued_in_turn(desk, "ab", outcome="failed") == [0, 0]
    assert await desk.state("x") is State.SKIPPED
    assert (await desk.history(member("x"))).count("skipped") == 1
    assert await desk.counters() == {"failed": 2, "skipped": 1}
    assert [each["skipped"] for each in told(caplog, "skipped")] == [0, 1]


async def queued_in_turn(desk: FlowDesk, names: str, outcome: str = "success") -> list[int]:
    """End and dispatch one after the other; how many groups each queued for sibling cancel."""
    queued = []
    for name in names:
        await desk.end(name, outcome=outcome)
        (line,) = await desk.lines()
        watched = Watched(desk.store)
        await FlowDesk(watched, desk.clock).dispatcher.dispatch(line)
        lines = [line.kind for changes in watched.changes for line in changes.lines]
        queued.append(lines.count(LineKind.CANCEL_SIBLINGS))
    return queued
