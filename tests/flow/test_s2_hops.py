"""Relational dispatch (S2): one hop is one commit, and its counters are exact."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import EdgeState, Group, GroupState, Join, Unreadable
from flowfabric.core.flow.views import Pending, Turn
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.errors import StoreUnavailable
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import FLOW, member, plan
from tests.flow.desk import FlowDesk


def counted(group: Group) -> tuple[int, int, int, int]:
    return group.succeeded, group.failed, group.skipped, group.running


class Unleased(FaultyStore):
    """Whoever takes a flow keeps it from nobody."""

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        return await super().pending(msgspec.structs.replace(turn, until_ms=0))


async def test_s2_12_a_hop_is_seen_whole_or_not_at_all(desk: FlowDesk) -> None:
    first = Policy(Join.ANY_OF)
    await desk.draw(plan("abx", "a>x b>x", policies={"x": first}))
    await desk.end("a")
    before = (await desk.edges(), await desk.group("x"), await desk.member("x"))
    lost = FaultyStore(desk.store, [Fault(Verb.COMMIT_EACH, 1, Kind.BEFORE, times=3)])
    with pytest.raises(StoreUnavailable):
        await FlowDesk(lost, desk.clock).dispatch()
    assert (await desk.edges(), await desk.group("x"), await desk.member("x")) == before
    assert (len(await desk.lines()), await desk.counters()) == (1, {})
    desk.clock.advance(LEASE_MS)
    done = FaultyStore(desk.store, [Fault(Verb.COMMIT_EACH, 1, Kind.AFTER)])
    await FlowDesk(done, desk.clock).dispatch()
    group = await desk.group("x")
    assert (group.state, counted(group)) == (GroupState.SATISFIED, (1, 0, 0, 1))
    assert (await desk.edge("a", "x")).state is EdgeState.SATISFIED
    assert await desk.state("x") is State.WAITING
    assert (await desk.lines(), await desk.counters()) == ([], {"completed": 1})


async def test_s2_13_ends_that_are_dispatched_at_once_are_all_counted(desk: FlowDesk) -> None:
    ups = list(range(1_000, 1_006))
    await desk.draw(plan([*ups, "x"], [Link(member(up), member("x")) for up in ups]))
    await desk.end(*ups)
    rivals = [FlowDesk(Unleased(desk.store), desk.clock) for _ in range(3)]
    lines = await desk.lines()
    await asyncio.gather(
        *(rivals[place % 3].dispatcher.dispatch(line) for place, line in enumerate(lines)),
        return_exceptions=True,
    )
    await desk.dispatch()
    assert counted(await desk.group("x")) == (6, 0, 0, 0)
    assert await desk.state("x") is State.WAITING
    assert (await desk.lines(), await desk.counters()) == ([], {"completed": 6})


@pytest.mark.case("FL-082")
async def test_s2_14_an_edge_without_a_group_is_resolved_and_no_more(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    flow = await desk.flow()
    lone = msgspec.structs.replace(await desk.edge("a", "b"), group="other")
    changes = Changeset(flows=[FlowPatch(FLOW, flow.rev, {})], edges=[lone])
    assert await desk.store.commit(changes, desk.clock.now_ms())
    await desk.ended("a")
    states = {edge.group: edge.state for edge in (await desk.view()).edges}
    assert states == {"start": EdgeState.SATISFIED, "other": EdgeState.SATISFIED}
    assert await desk.state("b") is State.WAITING


async def test_s2_15_s2_16_s2_17_every_end_moves_one_from_running_to_its_bucket(
    desk: FlowDesk,
) -> None:
    policies = {"x": Policy(Join.QUORUM, 2)}
    await desk.draw(plan("abcdx", "a>x b>x c>x d>x", policies=policies))
    seen = [counted(await desk.group("x"))]
    states = []
    for name, outcome in (("a", "failed"), ("b", "success"), ("c", "success"), ("d", "success")):
        await desk.ended(name, outcome=outcome)
        group = await desk.group("x")
        seen.append(counted(group))
        states.append(group.state)
    assert seen == [(0, 0, 0, 4), (0, 1, 0, 3), (1, 1, 0, 2), (2, 1, 0, 1), (3, 1, 0, 0)]
    assert states == [GroupState.PENDING] * 2 + [GroupState.SATISFIED] * 2


async def test_s2_15_running_never_goes_below_zero(desk: FlowDesk) -> None:
    await desk.draw(plan("abx", "a>x b>x"))
    await desk.change(msgspec.structs.replace(await desk.group("x"), n=1))
    await desk.ended("a")
    await desk.ended("b")
    assert counted(await desk.group("x")) == (2, 0, 0, 0)
