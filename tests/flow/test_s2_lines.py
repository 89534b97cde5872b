"""Relational dispatch (S2): lines, who acts on them, and how ends are counted."""

from __future__ import annotations

import asyncio
import logging

import pytest

from flowfabric.core.flow.dispatch import Advanced, NoOp
from flowfabric.core.flow.graph import Link
from flowfabric.core.flow.model import EdgeState, Line, LineKind
from flowfabric.core.states import State
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.printing import with_public_ids
from flowfabric.testing.build import policy
from flowfabric.testing.conformance.flow_steps import everything
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.corrupter import Raw
from tests.flow.desk import FlowDesk
from tests.flow.watched import TickingClock, Watched, told


async def test_s2_1_members_that_expire_by_themselves_leave_lines_too(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b", policy='{"timeout_policy":{"execution_deadline_ms":5}}'))
    desk.clock.advance(5)
    await desk.sweep()
    assert sorted(line.about for line in await desk.lines()) == ["expired", "expired"]
    await desk.dispatch()
    assert await desk.counters() == {"expired": 2}


@pytest.mark.parametrize("is_revoked", [True, False])
async def test_s2_1_a_lease_that_was_lost_too_often_leaves_a_line_too(
    desk: FlowDesk, *, is_revoked: bool
) -> None:
    await desk.draw(plan("ab", "a>b", policy=policy(reclaims=0)))
    lease = await desk.start("a")
    if is_revoked:
        await desk.engine.revoke(lease.id, "gone")
    else:
        await desk.silent(lease)
    (line,) = await desk.lines()
    assert (line.kind, line.execution, line.about) == (LineKind.ENDED, member("a"), "failed")
    await desk.dispatch()
    assert await desk.counters() == {"failed": 1, "skipped": 1}


async def test_s2_1_an_end_that_is_written_with_what_follows_from_it_leaves_no_line(
    desk: FlowDesk,
) -> None:
    watched = Watched(desk.store)
    here = FlowDesk(watched, desk.clock)
    await here.engine.open()
    here.engine.known.begin()
    await here.draw(plan("ab", "a>b"))
    watched.changes.clear()
    await here.end("a")
    (changes,) = watched.changes
    assert [t.id for t in changes.transitions] == [member("a"), member("b")]
    assert [t.line for t in changes.transitions] == [None, None]
    assert (await desk.lines(), await desk.counters()) == ([], {"completed": 1})
    assert (await desk.edge("a", "b")).state is EdgeState.SATISFIED
    assert await desk.state("b") is State.WAITING


async def test_s2_2_of_many_dispatchers_one_proceeds(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    (line,) = await desk.lines()
    others = [desk, *(desk.another() for _ in range(7))]
    answers = await asyncio.gather(*(each.dispatcher.dispatch(line) for each in others))
    assert sorted(type(answer).__name__ for answer in answers) == ["Advanced"] + ["NoOp"] * 7
    assert await desk.counters() == {"completed": 1}


async def test_s2_3_an_unknown_line_is_a_no_op(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    unknown = Line(flow=FLOW, at_ms=1, id="nothing", kind=LineKind.ENDED)
    before = await everything(desk.store)
    assert isinstance(await desk.dispatcher.dispatch(unknown), NoOp)
    assert await everything(desk.store) == before
    await desk.end("a")
    assert isinstance(await desk.dispatcher.dispatch(unknown), NoOp)
    # The line that is there need not wait for the end of a lease.
    await desk.dispatch()
    assert await desk.counters() == {"completed": 1}


async def test_s2_5_the_log_says_when_a_line_was_taken_and_done(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    at_ms = desk.clock.now_ms()
    now_ms = desk.clock.advance(30)
    await desk.dispatch()
    last = (await desk.events(member("a")))[-1]
    assert (last.kind, last.at_ms) == ("dispatched", now_ms)
    assert last.detail == {"edges": 1, "skipped": 0, "ended_ms": at_ms, "claimed_ms": now_ms}


async def test_s2_5_a_line_is_taken_before_it_is_done(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    began_ms = desk.clock.now_ms()
    await FlowDesk(desk.store, TickingClock(began_ms)).dispatch()
    last = (await desk.events(member("a")))[-1]
    claimed_ms = last.detail["claimed_ms"]
    assert isinstance(claimed_ms, int)
    assert began_ms < claimed_ms < last.at_ms


@pytest.mark.parametrize("count", [1, 5, 520])
async def test_s2_8_s0_28_as_many_edges_as_leave_and_one_record_of_them(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.dispatcher")
    names = list(range(1_000, 1_000 + count))
    await desk.draw(plan(["a", *names], [Link(member("a"), member(name)) for name in names]))
    await desk.dispatch()
    await desk.end("a")
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == Advanced(count)
    assert told(caplog, "resolved", "edges") == [{"resolved": count, "edges": count}]
    assert await desk.state(names[-1]) is State.WAITING
    assert (await desk.lines(), await desk.counters()) == ([], {"completed": 1})


async def test_s2_9_no_edge_of_another_member_or_flow_is_considered(desk: FlowDesk) -> None:
    other = flow_id(2)
    await desk.draw(plan("abcd", "a>b c>d"))
    await desk.draw(plan("ab", "a>b", flow=other))
    await desk.end("a")
    (line,) = await desk.lines()
    watched = Watched(desk.store)
    assert await FlowDesk(watched, desk.clock).dispatcher.dispatch(line) == Advanced(1)
    assert {end.upstream for changes in watched.changes for end in changes.resolved} == {
        member("a")
    }
    assert (await desk.edge("c", "d")).state is EdgeState.PENDING
    assert (await desk.edge("a", "b", other)).state is EdgeState.PENDING


SATISFIED, IMPOSSIBLE = EdgeState.SATISFIED, EdgeState.IMPOSSIBLE


@pytest.mark.parametrize(
    ("outcome", "state", "counts"),
    [
        ("success", SATISFIED, (1, 0, 0)),
        ("failed", IMPOSSIBLE, (0, 1, 0)),
        ("cancelled", IMPOSSIBLE, (0, 1, 0)),
        ("expired", IMPOSSIBLE, (0, 1, 0)),
        ("skipped", IMPOSSIBLE, (0, 0, 1)),
    ],
)
async def test_s2_1_s2_10_s0_21_every_end_leaves_a_line_and_only_success_satisfies(
    desk: FlowDesk, outcome: str, state: EdgeState, counts: tuple[int, int, int]
) -> None:
    await desk.draw(plan("zab", "z>a a>b" if outcome == "skipped" else "a>b"))
    if outcome == "skipped":
        await desk.end("z", outcome="failed")
        await desk.die_after_ends()
        desk.clock.advance(LEASE_MS)
    else:
        await desk.end("a", outcome=outcome)
    (line,) = await desk.lines()
    assert (line.kind, line.execution, line.about) == (LineKind.ENDED, member("a"), outcome)
    await desk.dispatch()
    edge, group = await desk.edge("a", "b"), await desk.group("b")
    assert (edge.state, edge.outcome) == (state, outcome)
    assert (group.succeeded, group.failed, group.skipped) == counts


async def test_s2_10_an_outcome_that_nobody_knows_is_a_failure(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a", outcome="failed")
    (line,) = await desk.lines()
    await raw.write(line, "about", "exploded")
    await desk.dispatch()
    group = await desk.group("b")
    assert (group.succeeded, group.failed, group.skipped) == (0, 1, 0)


async def test_s2_40_a_line_that_cannot_be_read_stops_no_other_and_stays(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("abcd", "a>b c>d"))
    await desk.end("a", "c")
    line = next(line for line in await desk.lines() if line.execution == member("a"))
    await raw.write(line, "kind", "melted")
    await desk.dispatch()
    assert await desk.states("bd") == {"b": "blocked_dependencies", "d": "waiting"}
    lost = told(caplog, "record", "record_name")
    assert {(each["record"], each["record_name"]) for each in lost} == {
        ("line", with_public_ids(line.id))
    }
    await raw.write(line, "kind", line.kind)
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    assert (await desk.state("b"), await desk.lines()) == (State.WAITING, [])
    assert await desk.counters() == {"completed": 2}
