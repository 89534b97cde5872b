"""Post-completion dispatch (S0): the way in, and what is done about records that are broken."""

from __future__ import annotations

import logging

import pytest

from flowfabric.core.flow.dispatch import Advanced, NoOp
from flowfabric.core.flow.model import EdgeState, Line, LineKind
from flowfabric.core.flow.views import Turn
from flowfabric.core.ids import FlowId, public_id
from flowfabric.core.lifecycle import complete
from flowfabric.core.states import State
from flowfabric.core.timers import POISON_PAUSE_MS
from flowfabric.engine import telemetry
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.errors import Corrupt, StoreUnavailable
from flowfabric.printing import with_public_ids
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.build import order as solo
from flowfabric.testing.conformance.flow_steps import everything
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.corrupter import Raw
from tests.flow.desk import FlowDesk
from tests.flow.watched import Refusing, Watched, told

OTHER = flow_id(7)


@pytest.mark.case("FL-071", "FL-077")
async def test_s0_7_s2_6_the_end_of_a_solo_execution_asks_the_store_nothing(
    desk: FlowDesk,
) -> None:
    faulty = FaultyStore(desk.store)
    lease = await desk.running(solo(1))
    end = complete(lease, desk.clock.now_ms(), b"1")
    assert end.line is None
    assert await FlowDesk(faulty, desk.clock).dispatcher.dispatch(end.line) == Advanced(0)
    assert faulty.calls[Verb.ANY] == 0
    await desk.engine.complete(lease, b"1")
    now_ms = desk.clock.now_ms()
    assert await desk.store.pending(Turn(limit=9, now_ms=now_ms, until_ms=now_ms + 1)) == []
    assert await desk.dispatcher.run_once() == 0


async def test_s0_8_a_line_of_no_flow_asks_the_store_nothing(desk: FlowDesk) -> None:
    faulty = FaultyStore(desk.store)
    line = Line(flow=FlowId(""), at_ms=1, id="x", kind=LineKind.ENDED, execution=member("a"))
    assert await FlowDesk(faulty, desk.clock).dispatcher.dispatch(line) == Advanced(0)
    assert faulty.calls[Verb.ANY] == 0


async def test_s0_9_a_failure_is_told_counted_and_tried_again_from_the_store(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.draw(plan("ab", "a>b", flow=OTHER))
    await desk.end("a")
    await desk.end("a", flow=OTHER)
    # Of both together, then of the first alone: the second flow is not kept back by it.
    broken = Refusing(desk.store, Verb.GRAPH, Corrupt("cannot be read"), times=2)
    other = FlowDesk(broken, desk.clock)
    await other.dispatch()
    assert other.dispatcher.counts.value(telemetry.FAILURES) == 1
    ((failed,)) = {str(each["flow"]) for each in told(caplog, "flow", "error")}
    flow = await desk.flow(FlowId(failed))
    assert (flow.failures, flow.next_try_ms) == (1, desk.clock.now_ms() + POISON_PAUSE_MS)
    assert {await desk.state("b"), await desk.state("b", OTHER)} == {
        State.BLOCKED_DEPENDENCIES,
        State.WAITING,
    }
    desk.clock.advance(POISON_PAUSE_MS)
    await desk.another().dispatch()
    assert [await desk.state("b"), await desk.state("b", OTHER)] == [State.WAITING] * 2
    assert (await desk.flow(FlowId(failed))).failures == 0


async def test_s0_9_an_end_is_written_although_what_follows_from_it_cannot_be(
    desk: FlowDesk,
) -> None:
    """Who ends a member acts on the end in the same commit; that failure is not the end's."""
    broken = Refusing(desk.store, Verb.COMMIT_EACH, Corrupt("cannot be read"), times=0)
    other = FlowDesk(broken, desk.clock)
    await other.engine.open()
    other.engine.known.begin()
    await other.draw(plan("ab", "a>b"))
    broken.times = 1
    await other.end("a")
    assert broken.times == 0
    assert await desk.states("ab") == {"a": "completed", "b": "blocked_dependencies"}
    (line,) = await desk.lines()
    assert (line.execution, line.about) == (member("a"), "success")
    await desk.dispatch()
    assert (await desk.state("b"), await desk.counters()) == (State.WAITING, {"completed": 1})


@pytest.mark.parametrize("column", ["state", "attempt_state"])
async def test_s0_10_an_end_that_cannot_be_read_touches_no_edge(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture, column: str
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    await raw.write(await desk.member("a"), column, "melted")
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == NoOp("unreadable")
    assert told(caplog, "record", "record_name") == [
        {"record": "execution", "record_name": public_id(member("a"))}
    ]
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING
    (later,) = await desk.lines()
    assert (later.failures, await desk.counters()) == (1, {})


async def test_s0_10_an_end_of_nobody_touches_no_edge(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    await raw.remove(await desk.member("a"))
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == NoOp("missing")
    lost = {"execution": public_id(member("a")), "line": with_public_ids(line.id)}
    assert told(caplog, "execution", "line") == [lost]
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING


async def test_s0_11_an_id_that_no_flow_can_have_is_told_of(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.draw(plan("ab", "a>b", flow=OTHER))
    await raw.write(await desk.member("a"), "flow", "nowhere")
    desk.store.hints.subscribe(desk.dispatcher.hear)
    await desk.end("a")
    await desk.end("a", flow=OTHER)
    await desk.dispatch()
    desk.store.hints.unsubscribe(desk.dispatcher.hear)
    assert told(caplog, "flow") == [{"flow": "nowhere"}]
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING
    assert await desk.state("b", OTHER) is State.WAITING


async def test_s0_11_a_line_of_such_a_flow_is_a_no_op(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("ab", "a>b"))
    before = await everything(desk.store)
    line = Line(flow=FlowId("nowhere"), at_ms=1, id="x", kind=LineKind.ENDED)
    assert isinstance(await desk.dispatcher.dispatch(line), NoOp)
    assert told(caplog, "flow") == [{"flow": "nowhere"}]
    assert await everything(desk.store) == before


@pytest.mark.parametrize("text", ["melted", ""])
async def test_s0_11_a_flow_that_cannot_be_read_keeps_no_other_back(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.draw(plan("ab", "a>b", flow=OTHER))
    await desk.end("a")
    await desk.end("a", flow=OTHER)
    await raw.write(await desk.flow(), "state", text)
    await desk.dispatch()
    assert told(caplog, "flow", "record") == [{"flow": FLOW, "record": "flow"}]
    assert await desk.state("b", OTHER) is State.WAITING
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES


async def test_s0_11_a_flow_that_is_gone_keeps_no_other_back(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.draw(plan("ab", "a>b", flow=OTHER))
    await desk.end("a")
    await desk.end("a", flow=OTHER)
    await raw.remove(await desk.flow())
    await desk.dispatch()
    assert await desk.state("b", OTHER) is State.WAITING
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES


async def test_s0_12_only_edges_of_the_member_that_ended_are_looked_at(desk: FlowDesk) -> None:
    await desk.draw(plan("abcd", "a>b c>d"))
    await desk.end("a")
    watched = Watched(desk.store)
    await FlowDesk(watched, desk.clock).dispatch()
    assert {id for sight in watched.sights for id in sight.leaving} == {member("a")}
    assert (await desk.edge("c", "d")).state is EdgeState.PENDING


async def test_s0_13_a_failed_look_is_told_and_resolves_nothing(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    before = await desk.view()
    dead = FaultyStore(desk.store, [Fault(Verb.GRAPH, 1, Kind.BEFORE, times=3)])
    other = FlowDesk(dead, desk.clock)
    with pytest.raises(StoreUnavailable):
        await other.dispatcher.run_once()
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert (vars(record)["flow"], vars(record)["error"]) == (FLOW, "transport")
    after = await desk.view()
    assert (after.edges, after.lines) == (before.edges, before.lines)
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    assert await desk.state("b") is State.WAITING


async def test_s0_14_s2_7_an_end_that_nobody_waits_for_is_silent(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.dispatcher")
    await desk.draw(plan("a"))
    await desk.end("a")
    watched = Watched(desk.store)
    (line,) = await desk.lines()
    assert await FlowDesk(watched, desk.clock).dispatcher.dispatch(line) == Advanced(0)
    assert [list(changes.resolved) for changes in watched.changes] == [[]]
    assert (told(caplog, "resolved"), await desk.lines()) == ([], [])
