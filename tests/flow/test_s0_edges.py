"""Post-completion dispatch (S0): one edge after the other, and those that are broken."""

from __future__ import annotations

import logging

import asyncpg
import pytest

from flowfabric.core.flow.dispatch import Advanced, on_ends
from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import EdgeState, GroupState, Join, LineKind
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import public_id
from flowfabric.core.model import Want
from flowfabric.core.states import PublicState, State
from flowfabric.core.timers import POISON_PAUSE_MS
from flowfabric.core.transition import Seen
from flowfabric.engine import telemetry
from flowfabric.engine.dependency_reconciler import DependencyReconciler
from flowfabric.store.postgres import PostgresStore
from flowfabric.testing.build import LANE
from flowfabric.testing.flows import FLOW, links, member, plan
from tests.corrupter import Raw, Record
from tests.flow.desk import FlowDesk
from tests.flow.watched import TickingClock, Watched, told


@pytest.mark.case("FL-073")
@pytest.mark.parametrize("text", ["nowhere", ""])
async def test_s0_15_s0_16_an_edge_to_nobody_is_told_of_and_the_others_are_resolved(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    await desk.draw(plan("abcd", "a>b a>c a>d"))
    await raw.write(await desk.edge("a", "b"), "downstream", text)
    await raw.write(await desk.edge("a", "c"), "kind", "melted")
    await desk.end("a")
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == Advanced(1)
    assert await desk.states("bcd") == {
        "b": "blocked_dependencies",
        "c": "blocked_dependencies",
        "d": "waiting",
    }
    strange = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len([each for each in strange if each.name == "flowfabric.dispatcher"]) == 2
    assert len(await desk.engine.flows.members(FLOW)) == 4


async def test_s0_16_an_edge_that_cannot_be_read_hides_no_later_one(
    desk: FlowDesk, raw: Raw
) -> None:
    """A look at two edges sees a broken one of a and one of c: there may be more of c."""
    await desk.draw(plan("abcde", "a>b c>d c>e"))
    await raw.write(await desk.edge("a", "b"), "kind", "melted")
    await desk.end("a", "c")
    ends = [member("a"), member("c")]
    view = (await desk.store.graph([Sight(flow=FLOW, heads=ends, leaving=ends, edges=2)]))[0]
    work = Round(await desk.flow(), desk.clock.now_ms())
    answers = on_ends(work, await desk.lines(), view, limit=2).answers
    found = {answer.line.execution: (answer.outcome, answer.goes_on) for answer in answers}
    assert found == {ends[0]: (Advanced(0), False), ends[1]: (Advanced(1), True)}
    assert work.done == []
    assert [line.execution for line in work.lines] == [ends[0]]


async def test_s0_16_an_edge_that_is_gone_skips_only_itself(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("abc", "a>b a>c"))
    await raw.remove(await desk.edge("a", "b"))
    await desk.end("a")
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == Advanced(1)
    assert await desk.states("bc") == {"b": "blocked_dependencies", "c": "waiting"}


async def test_s0_16_an_edge_to_a_member_that_is_gone_skips_only_itself(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("abc", "a>b a>c"))
    await raw.remove(await desk.member("b"))
    await desk.end("a")
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == Advanced(1)
    assert told(caplog, "execution", "downstream") == [
        {"execution": public_id(member("a")), "downstream": public_id(member("b"))}
    ]
    assert await desk.state("c") is State.WAITING


async def test_s0_18_s0_35_a_child_that_cannot_be_read_waits_until_it_can(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("abc", "a>b a>c"))
    b = await desk.member("b")
    await raw.write(b, "state", "melted")
    lanes = await desk.store.lanes("", 10)
    await desk.ended("a")
    assert told(caplog, "record", "record_name") == [
        {"record": "execution", "record_name": public_id(member("b"))}
    ]
    assert desk.dispatcher.counts.labels(telemetry.UNREADABLE) == {"execution": 1}
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING
    assert await desk.store.lanes("", 10) == lanes
    claimed = await desk.claim(10, lanes=(LANE, "default"))
    assert [lease.id for lease in claimed] == [member("c")]
    (line,) = await desk.lines()
    assert (line.failures, line.next_try_ms) == (1, desk.clock.now_ms() + POISON_PAUSE_MS)
    await raw.write(b, "state", b.state)
    desk.clock.advance(POISON_PAUSE_MS)
    await desk.dispatch()
    assert await desk.state("b") is State.WAITING
    assert (await desk.lines(), await desk.counters()) == ([], {"completed": 1})


async def test_s0_19_nobody_guesses_a_lane(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("ab", "a>b"))
    await raw.write(await desk.member("b"), "lane", "")
    await desk.ended("a")
    assert await desk.claim(10, lanes=("default",)) == []
    assert {lane.name for lane in await desk.store.lanes("", 10)} == {LANE}


@pytest.mark.parametrize("damaged", ["end", "edge", "child"])
async def test_s0_35_what_was_left_behind_is_resolved_once_it_can_be_read(
    desk: FlowDesk, raw: Raw, damaged: str
) -> None:
    """Also when the line that stood for it is gone: then by the reconciler."""
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    records: dict[str, tuple[Record, str]] = {
        "end": (await desk.member("a"), "state"),
        "edge": (await desk.edge("a", "b"), "kind"),
        "child": (await desk.member("b"), "state"),
    }
    record, column = records[damaged]
    await raw.write(record, column, "melted")
    await desk.dispatch()
    (line,) = await desk.lines()
    await raw.remove(line)
    await raw.write(record, column, str(getattr(record, column)))
    desk.clock.advance(POISON_PAUSE_MS)
    await desk.dispatch()
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING
    net = DependencyReconciler(desk.store, desk.engine.clock, desk.dispatcher)
    assert (await net.run_once()).processed == 1
    await desk.dispatch()
    assert (await desk.edge("a", "b")).state is EdgeState.SATISFIED
    assert (await desk.state("b"), await desk.counters()) == (State.WAITING, {"completed": 1})


@pytest.mark.parametrize("column", ["attempt", "attempt_state"])
async def test_s0_20_nobody_guesses_an_attempt(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture, column: str
) -> None:
    await desk.draw(plan("ab", "a>b"))
    b = await desk.member("b")
    if column == "attempt" and isinstance(desk.store, PostgresStore):
        # A column of numbers takes no other text; what it does not take cannot be read either.
        with pytest.raises(asyncpg.DataError):
            await raw.write(b, column, "melted")
        column = "attempt_state"
    await raw.write(b, column, "melted")
    await desk.ended("a")
    assert told(caplog, "record_name") == [{"record_name": public_id(member("b"))}]
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING
    assert await desk.claim(10) == []


async def test_s0_22_all_that_an_end_changes_is_one_guarded_changeset(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    flow, b = await desk.flow(), await desk.member("b")
    watched = Watched(desk.store)
    await FlowDesk(watched, desk.clock).dispatch()
    (changes,) = watched.changes
    assert [(patch.id, patch.rev) for patch in changes.flows] == [(FLOW, flow.rev)]
    assert changes.flows[0].patch["completed"] == 1
    assert [(end.upstream, end.state) for end in changes.resolved] == [
        (member("a"), EdgeState.SATISFIED)
    ]
    assert [group.state for group in changes.groups] == [GroupState.SATISFIED]
    assert [(t.id, t.guard) for t in changes.transitions] == [(b.id, Seen(b.rev, b.state))]
    assert [line.kind for line in changes.done] == [LineKind.ENDED]
    assert [note.execution for note in changes.notes] == [member("a")]


async def test_s0_23_all_edges_of_a_level_are_resolved_at_one_time(desk: FlowDesk) -> None:
    await desk.draw(plan("abcde", "a>b a>c a>d a>e"))
    await desk.end("a")
    clock = TickingClock(desk.clock.now_ms())
    other = FlowDesk(desk.store, clock)
    await other.dispatch()
    assert clock.now_ms() > desk.clock.now_ms() + 2
    edges = [await desk.edge("a", name) for name in "bcde"]
    assert len({edge.resolved_ms for edge in edges}) == 1
    assert {(await desk.group(name)).decided_ms for name in "bcde"} == {edges[0].resolved_ms}


async def test_s0_24_a_result_is_pinned_on_the_edge_and_read_at_the_claim(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", [Link(member("a"), member("b"), argument="0")]))
    await desk.ended("a")
    assert (await desk.edge("a", "b")).attempt == 0
    assert await desk.engine.replay(member("a")) is PublicState.WAITING
    await desk.engine.complete(await desk.start("a"), b'"another"')
    await desk.dispatch()
    lease = await desk.start("b")
    (passed,) = await desk.handed(lease)
    assert (passed.path, list(passed.results)) == ("0", [b'"a"'])
    stored = (await desk.store.load(Want(ids=[member("b")], payload=True)))[0]
    assert stored is not None
    assert stored.payload == lease.payload == b"{}"


async def test_s0_25_a_group_that_cannot_be_read_stops_no_other(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("abc", "a>b a>c"))
    group = await desk.group("b")
    await raw.write(group, "state", "melted")
    await desk.ended("a")
    assert told(caplog, "record", "record_name") == [
        {"record": "group", "record_name": f"{public_id(member('b'))} start"}
    ]
    assert await desk.states("bc") == {"b": "blocked_dependencies", "c": "waiting"}
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING
    await raw.write(group, "state", "pending")
    desk.clock.advance(POISON_PAUSE_MS)
    await desk.dispatch()
    assert await desk.state("b") is State.WAITING


async def test_s0_26_a_child_is_released_by_the_hint_alone(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    desk.store.hints.subscribe(desk.dispatcher.hear)
    await desk.end("a")
    assert await desk.dispatcher.run_once(everything=False) == 1
    desk.store.hints.unsubscribe(desk.dispatcher.hear)
    assert [lease.id for lease in await desk.claim(10)] == [member("b")]


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_s0_27_s2_20_what_can_never_be_is_skipped_at_once(
    desk: FlowDesk, outcome: str
) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    await desk.ended("a", outcome=outcome)
    head = await desk.snapshot(member("c"))
    assert (head.vector.phase, head.vector.outcome) == ("terminal", "skipped")
    assert await desk.state("b") is State.WAITING


async def test_s0_28_one_record_per_member_says_what_followed(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.dispatcher")
    fields = ("execution", "flow", "resolved", "edges", "skipped")
    any_of = {"e": Policy(Join.ANY_OF)}
    await desk.draw(plan("abcdex", links("a>b a>c a>d a>e x>e"), policies=any_of))
    await raw.write(await desk.group("b"), "state", "melted")
    await desk.ended("a", outcome="failed")
    about = {"execution": public_id(member("a")), "flow": FLOW}
    assert told(caplog, *fields) == [{**about, "resolved": 3, "edges": 4, "skipped": 2}]
    caplog.clear()
    await desk.ended("x")
    about = {"execution": public_id(member("x")), "flow": FLOW}
    assert told(caplog, *fields) == [{**about, "resolved": 1, "edges": 1, "skipped": 0}]
