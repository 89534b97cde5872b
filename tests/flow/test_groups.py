"""Several groups of one downstream: it waits for all of them, and for each in its own way."""

from __future__ import annotations

import msgspec

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import START, GroupKey, GroupState, Join, OnSatisfied
from flowfabric.core.flow.views import Sight
from flowfabric.core.states import State
from flowfabric.testing.flows import FLOW, member, plan
from tests.flow.desk import FlowDesk

FIRST = Policy(Join.ANY_OF, 1, OnSatisfied.LET_RUN)


def two_groups() -> Plan:
    """x waits for the first of a and b, and in another group for both c and d."""
    edges = [Link(member(name), member("x")) for name in "ab"]
    edges += [Link(member(name), member("x"), group="other") for name in "cd"]
    drawn = plan("abcdx", edges)
    policies = {GroupKey(member("x"), START): FIRST}
    return msgspec.structs.replace(drawn, policies=policies)


async def states(desk: FlowDesk) -> dict[str, GroupState]:
    view = (await desk.store.graph([Sight(flow=FLOW, groups=[member("x")])]))[0]
    return {group.name: group.state for group in view.groups}


async def test_a_member_is_released_when_all_its_groups_are_satisfied(desk: FlowDesk) -> None:
    await desk.draw(two_groups())
    await desk.ended("a")
    assert await states(desk) == {START: GroupState.SATISFIED, "other": GroupState.PENDING}
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES
    await desk.ended("c")
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES
    await desk.ended("d")
    assert await states(desk) == dict.fromkeys((START, "other"), GroupState.SATISFIED)
    assert await desk.state("x") is State.WAITING


async def test_groups_that_are_satisfied_in_one_round_release_their_member(desk: FlowDesk) -> None:
    await desk.draw(two_groups())
    await desk.end("a", "c", "d")
    await desk.dispatch()
    assert await desk.state("x") is State.WAITING
    assert await desk.counters() == {"completed": 3}


async def test_one_group_that_cannot_be_satisfied_skips_the_member(desk: FlowDesk) -> None:
    await desk.draw(two_groups())
    await desk.ended("a")
    await desk.ended("c", outcome="failed")
    assert await states(desk) == {START: GroupState.SATISFIED, "other": GroupState.IMPOSSIBLE}
    assert await desk.state("x") is State.SKIPPED


async def test_ends_of_one_group_count_in_no_other(desk: FlowDesk) -> None:
    await desk.draw(two_groups())
    await desk.ended("b", outcome="failed")
    await desk.ended("c")
    view = (await desk.store.graph([Sight(flow=FLOW, groups=[member("x")])]))[0]
    counts = {group.name: (group.n, group.succeeded, group.failed) for group in view.groups}
    assert counts == {START: (2, 0, 1), "other": (2, 1, 0)}
    assert await desk.state("x") is State.BLOCKED_DEPENDENCIES
