"""Dispatch of lines, statement by statement (S2), and what S0 says of the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.dispatch import Advanced, NoOp
from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import EdgeState, GroupState, Join, Line, LineKind, OnSatisfied
from flowfabric.core.flow.views import Sight
from flowfabric.core.lifecycle import complete
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.errors import Conflict
from flowfabric.store import Store
from flowfabric.testing import FaultyStore, Verb
from flowfabric.testing.build import order as solo
from flowfabric.testing.conformance.flow_steps import everything
from flowfabric.testing.conformance.steps import Corrupter
from flowfabric.testing.flows import FLOW, chain, links, member, plan
from tests.flow.desk import FlowDesk


@pytest.mark.parametrize("outcome", ["success", "failed", "cancelled"])
async def test_s2_1_every_end_of_a_member_leaves_a_line(desk: FlowDesk, outcome: str) -> None:
    await desk.draw(plan("a"))
    await desk.end("a", outcome=outcome)
    (line,) = await desk.lines()
    assert (line.kind, line.execution, line.about) == (LineKind.ENDED, member("a"), outcome)


async def test_s2_1_an_expired_member_leaves_a_line_too(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b", policy='{"timeout_policy":{"execution_deadline_ms":5}}'))
    desk.clock.advance(5)
    await desk.sweep()
    assert sorted(line.about for line in await desk.lines()) == ["expired", "expired"]
    await desk.dispatch()
    assert await desk.counters() == {"expired": 2}


async def test_s2_2_of_many_dispatchers_one_proceeds(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    others = [desk, *(desk.another() for _ in range(7))]
    answers = await asyncio.gather(*(each.dispatcher.dispatch(line) for each in others))
    assert sorted(type(answer).__name__ for answer in answers) == ["Advanced"] + ["NoOp"] * 7
    assert await desk.counters() == {"completed": 1}


async def test_s2_3_an_unknown_line_is_a_no_op(desk: FlowDesk) -> None:
    await desk.draw(plan("a"))
    unknown = Line(flow=FLOW, at_ms=1, id="nothing", kind=LineKind.ENDED)
    before = await everything(desk.store)
    assert isinstance(await desk.dispatcher.dispatch(unknown), NoOp)
    assert await everything(desk.store) == before


async def test_s2_5_the_log_says_when_a_line_was_taken_and_done(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    at_ms = desk.clock.now_ms()
    now_ms = desk.clock.advance(30)
    await desk.dispatch()
    last = (await desk.events(member("a")))[-1]
    assert (last.kind, last.at_ms) == ("dispatched", now_ms)
    assert last.detail == {"edges": 1, "skipped": 0, "ended_ms": at_ms, "claimed_ms": now_ms}


@pytest.mark.case("FL-071", "FL-077")
async def test_s2_6_s0_7_the_end_of_a_solo_execution_asks_the_store_nothing(
    desk: FlowDesk,
) -> None:
    faulty = FaultyStore(desk.store)
    other = FlowDesk(faulty, desk.clock)
    lease = await desk.running(solo(1))
    end = complete(lease, desk.clock.now_ms(), b"1")
    assert end.line is None
    assert await other.dispatcher.dispatch(end.line) == Advanced(0)
    assert faulty.calls[Verb.ANY] == 0


@pytest.mark.parametrize("count", [0, 1, 5, 700])
async def test_s2_7_s2_8_as_many_edges_as_leave(desk: FlowDesk, count: int) -> None:
    names = list(range(1_000, 1_000 + count))
    edges = [Link(member("a"), member(name)) for name in names]
    await desk.draw(plan(["a", *names], edges))
    await desk.dispatch()
    await desk.end("a")
    (line,) = await desk.lines()
    answer = await desk.dispatcher.dispatch(line)
    assert answer == Advanced(count)
    assert {await desk.state(name) for name in names} <= {State.WAITING}
    assert await desk.lines() == []


@pytest.mark.parametrize("conflicts", [1, 2])
async def test_s2_37_a_conflict_is_tried_again(desk: FlowDesk, conflicts: int) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    meddled = Meddler(desk.store, conflicts)
    assert await FlowDesk(meddled, desk.clock).dispatcher.dispatch(line) == Advanced(1)
    assert await desk.counters() == {"completed": 1}


async def test_s2_38_three_conflicts_in_a_row_are_told(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    with pytest.raises(Conflict):
        await FlowDesk(Meddler(desk.store, 3), desk.clock).dispatcher.dispatch(line)
    assert (await desk.lines(), await desk.counters()) == ([line], {})


class Meddler(FaultyStore):
    """Somebody else changes the flow just before a commit, so many times."""

    def __init__(self, inner: Store, times: int) -> None:
        super().__init__(inner)
        self.times = times

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        if self.times:
            self.times -= 1
            flow = (await self.inner.graph([Sight(flow=FLOW)]))[0].flow
            assert flow is not None
            await self.inner.commit(Changeset(flows=[FlowPatch(FLOW, flow.rev, {})]), now_ms)
        return await self.inner.commit_each(batch, now_ms)


async def test_s2_29_s2_34_who_has_ended_is_not_touched(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b a>c"))
    await desk.engine.cancel(member("b"), "not needed")
    before = await desk.member("b")
    await desk.ended("a", outcome="failed")
    assert await desk.member("b") == before
    assert (await desk.group("b")).state is GroupState.IMPOSSIBLE
    assert await desk.counters() == {"failed": 1, "cancelled": 1, "skipped": 1}


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


async def test_s2_28_a_policy_that_nobody_knows_stays_pending_with_an_alarm(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    flow, group = await desk.flow(), await desk.group("c")
    strange = msgspec.structs.replace(group, join="weighted")
    changes = Changeset(flows=[FlowPatch(FLOW, flow.rev, {})], groups=[strange])
    assert await desk.store.commit(changes, desk.clock.now_ms())
    await desk.ended("a", "b")
    after = await desk.group("c")
    assert (after.state, after.succeeded) == (GroupState.PENDING, 2)
    assert await desk.state("c") is State.BLOCKED_DEPENDENCIES
    alarms = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert {getattr(record, "policy", "") for record in alarms} == {"weighted"}


async def test_s0_28_one_record_per_member_says_what_followed(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.dispatcher")
    await desk.draw(plan("abcd", "a>b a>c c>d"))
    await desk.ended("a")
    (record,) = [each for each in caplog.records if hasattr(each, "resolved")]
    told = {name: getattr(record, name) for name in ("execution", "flow", "resolved", "edges")}
    assert told == {"execution": member("a"), "flow": FLOW, "resolved": 2, "edges": 2}
    assert vars(record)["skipped"] == 0
    caplog.clear()
    await desk.ended("b")
    assert [each for each in caplog.records if hasattr(each, "resolved")] == []


async def test_s0_29_s0_30_a_chain_is_skipped_by_one_dispatch(desk: FlowDesk) -> None:
    await desk.draw(plan("abcd", chain("abcd")))
    await desk.end("a", outcome="failed")
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == Advanced(1, skipped=1)
    assert await desk.states("bcd") == dict.fromkeys("bcd", "skipped")


async def test_s0_15_s0_16_a_record_that_cannot_be_read_stops_nobody_else(
    desk: FlowDesk, corrupter: Corrupter, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("abc", "a>b a>c"))
    await corrupter(member("b"))
    await desk.ended("a")
    assert await desk.state("c") is State.WAITING
    assert any(getattr(record, "record_name", "") == member("b") for record in caplog.records)
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING
    (line,) = await desk.lines()
    assert (line.execution, line.failures) == (member("a"), 1)
    assert line.next_try_ms > desk.clock.now_ms()
    assert await desk.counters() == {}


async def test_s2_22_s2_31_a_satisfied_group_is_flagged_once(desk: FlowDesk) -> None:
    first = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)
    await desk.draw(plan("abcx", links("a>x b>x c>x"), policies={"x": first}))
    await desk.end("a", "b")
    await desk.dispatch()
    group = await desk.group("x")
    assert (group.succeeded, group.failed, group.state) == (2, 1, GroupState.SATISFIED)
    assert await desk.states("abcx") == {
        "a": "completed",
        "b": "completed",
        "c": "cancelled",
        "x": "waiting",
    }
    edges = await desk.edges()
    pinned = [edges[member(name), member("x")].attempt for name in "abc"]
    assert pinned == [0, -1, -1]
