"""The sibling-cancel reconciler (S3): what it looks at, how far, and what it counts."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.siblings import Action
from flowfabric.core.ids import FlowId, flow_partition
from flowfabric.engine import sibling_reconciler, telemetry
from flowfabric.engine.dispatcher import NET_SECONDS
from flowfabric.engine.sibling_reconciler import Reconciled, SiblingReconciler
from flowfabric.engine.sweeping import Scope
from flowfabric.engine.telemetry import Telemetry
from flowfabric.store.hints import Hint
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.conformance.flow_steps import everything
from flowfabric.testing.flows import COUNTS, FLOW, flow_id, member, plan
from tests.corrupter import Raw
from tests.flow.desk import FlowDesk
from tests.flow.owing import owing, stage
from tests.flow.watched import Watched, told

RECONCILED = telemetry.SIBLINGS_RECONCILED
FLOWS = [flow_id(number) for number in range(20, 25)]


@pytest.fixture
def reconciler(desk: FlowDesk) -> SiblingReconciler:
    return SiblingReconciler(desk.store, desk.engine.clock)


def test_s3_1_it_has_a_name_and_is_slower_than_the_dispatcher() -> None:
    assert SiblingReconciler.name == "edge_cancel_reconciler"
    assert SiblingReconciler.interval_seconds == 10
    assert SiblingReconciler.interval_seconds > NET_SECONDS


async def test_s3_2_one_look_at_open_lines_of_every_partition(desk: FlowDesk) -> None:
    assert len({flow_partition(flow, COUNTS) for flow in FLOWS[:3]}) == 3
    for flow in FLOWS[:3]:
        await stage(desk, owing(flow=flow), flow=flow)
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    watched = Watched(desk.store)
    assert await SiblingReconciler(watched, desk.engine.clock).run_once() == Reconciled(3, 0)
    assert watched.calls[Verb.PENDING] == 1
    # The flow with another kind of line is not looked at.
    assert {sight.flow for sight in watched.sights} == {*FLOWS[:3]}


async def test_s3_3_a_cycle_is_bounded_and_the_next_goes_on_from_there(
    desk: FlowDesk, reconciler: SiblingReconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sibling_reconciler.FLOWS == 50
    monkeypatch.setattr(sibling_reconciler, "FLOWS", 2)
    # Those of the first cycle are live and stay: they must not keep the others from their turn.
    for place, flow in enumerate(sorted(FLOWS)):
        live = {"cancel_owed": True, "owed": member("a", flow)} if place < 2 else {}
        await stage(desk, owing(flow=flow), flow=flow, **live)
    assert [await reconciler.run_once() for _ in range(3)] == [
        Reconciled(0, 0),
        Reconciled(2, 0),
        Reconciled(1, 0),
    ]


async def test_s3_4_nothing_to_do_is_nothing_done(desk: FlowDesk) -> None:
    await stage(desk)
    faulty = FaultyStore(desk.store)
    assert await SiblingReconciler(faulty, desk.engine.clock).run_once() == Reconciled(0, 0)
    assert faulty.calls[Verb.ANY] == faulty.calls[Verb.PENDING] == 1


async def test_s3_5_a_failed_look_is_one_error(desk: FlowDesk) -> None:
    await stage(desk, owing())
    faulty = FaultyStore(desk.store, [Fault(Verb.PENDING, 1, Kind.BEFORE)])
    assert await SiblingReconciler(faulty, desk.engine.clock).run_once() == Reconciled(0, 1)
    assert faulty.calls[Verb.ANY] == 1
    assert len(await desk.lines()) == 1


async def test_s3_6_a_line_has_a_field_for_each_part_of_its_name(
    desk: FlowDesk, reconciler: SiblingReconciler
) -> None:
    line = owing(group="one|two|three")
    await stage(desk, line)
    (found,) = await desk.lines()
    assert (found.flow, found.execution, found.about) == (FLOW, member("x"), "one|two|three")
    await stage(desk, owing(flow=FLOWS[0]), flow=FLOWS[0])
    assert await reconciler.run_once() == Reconciled(2, 0)
    assert reconciler.counts.labels(RECONCILED) == {"sremmed_stale": 2}


@pytest.mark.parametrize("name", ["", "nobody", "{fp:1}:nobody", "{fp:x}:"])
async def test_s3_7_s3_9_s3_25_a_malformed_line_is_removed_and_is_no_action(
    desk: FlowDesk, reconciler: SiblingReconciler, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    await stage(desk, owing(name))
    assert await reconciler.run_once() == Reconciled(0, 1)
    assert await desk.lines() == []
    assert told(caplog, "flow", "line", "error")[0]["line"] == owing(name).id
    assert reconciler.counts.labels(RECONCILED) == {}


async def test_s3_8_a_line_under_an_id_that_no_flow_can_have_is_nobodys(
    desk: FlowDesk, reconciler: SiblingReconciler, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    await stage(desk, owing(), cancel_owed=True, owed=member("b"))
    await stage(desk, owing(flow=FLOWS[0]), flow=FLOWS[0])
    (line,) = await desk.lines()
    await raw.write(line, "flow", "nowhere")
    assert await reconciler.run_once() == Reconciled(1, 0)
    assert reconciler.counts.labels(RECONCILED) == {"sremmed_stale": 1}
    desk.dispatcher.hear(Hint(flows=(FlowId("nowhere"),)))
    await desk.dispatch()
    assert told(caplog, "flow") == [{"flow": "nowhere"}]
    assert await desk.states("ab") == {"a": "waiting", "b": "waiting"}


async def test_s3_7_the_dispatcher_survives_a_malformed_line(desk: FlowDesk) -> None:
    await stage(desk, owing("nobody"), owing("{fp:1}:nobody"))
    await desk.end("a")
    await desk.dispatch()
    assert (await desk.lines(), await desk.counters()) == ([], {"completed": 1, "cancelled": 1})


async def test_s3_20_s3_24_every_decision_is_counted_by_its_action(
    desk: FlowDesk, reconciler: SiblingReconciler
) -> None:
    live = {"cancel_owed": True, "owed": member("b", FLOWS[2])}
    await stage(desk, owing(flow=FLOWS[0]), flow=FLOWS[0])
    await stage(desk, owing(flow=FLOWS[1]), flow=FLOWS[1], cancel_owed=True)
    await stage(desk, owing(flow=FLOWS[2]), flow=FLOWS[2], **live)
    assert await reconciler.run_once() == Reconciled(2, 0)
    counted = {"sremmed_stale": 1, "completed_drain": 1, "no_op": 1}
    assert reconciler.counts.labels(RECONCILED) == counted
    assert {action.value for action in Action} == set(counted)
    assert await reconciler.run_once() == Reconciled(0, 0)
    assert reconciler.counts.labels(RECONCILED) == {**counted, "no_op": 2}


async def test_s3_22_s3_23_what_is_not_understood_is_an_error_and_no_action(
    desk: FlowDesk, reconciler: SiblingReconciler, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    await stage(desk, owing(), cancel_owed=True, owed=member("b"))
    group = await desk.group("x")
    await raw.write(group, "state", "melted")
    assert await reconciler.run_once() == Reconciled(0, 1)
    assert told(caplog, "flow", "error") == [{"flow": FLOW, "error": "corruption"}]
    assert reconciler.counts.labels(RECONCILED) == {}
    assert len(await desk.lines()) == 1
    # Nor does the dispatcher take a group that cannot be read for one that is gone.
    await desk.dispatch()
    assert len(await desk.lines()) == 1
    await raw.write(group, "state", group.state)
    desk.clock.advance(1_000)
    await desk.dispatch()
    assert await desk.states("ab") == {"a": "waiting", "b": "cancelled"}


async def test_s3_22_a_flow_that_cannot_be_read_is_an_error(
    desk: FlowDesk, reconciler: SiblingReconciler, raw: Raw
) -> None:
    await stage(desk, owing())
    await stage(desk, owing(flow=FLOWS[0]), flow=FLOWS[0])
    await raw.write(await desk.flow(), "state", "melted")
    assert await reconciler.run_once() == Reconciled(1, 1)


async def test_s3_30_a_filter_is_shown_and_restricts_nothing(desk: FlowDesk) -> None:
    others = Scope(namespace="somebody-else")
    reconciler = SiblingReconciler(desk.store, desk.engine.clock, scope=others)
    assert reconciler.filter is others
    await stage(desk, owing())
    assert await reconciler.run_once() == Reconciled(1, 0)


async def test_s3_32_counters_are_its_own_unless_somebody_brings_some(desk: FlowDesk) -> None:
    own, other = (SiblingReconciler(desk.store, desk.engine.clock) for _ in range(2))
    await stage(desk, owing())
    await own.run_once()
    assert own.counts.value(RECONCILED, "sremmed_stale") == 1
    assert other.counts.labels(RECONCILED) == {}
    brought = Telemetry()
    assert SiblingReconciler(desk.store, desk.engine.clock, counts=brought).counts is brought


@pytest.mark.case("FL-069")
async def test_s3_21_s3_31_a_failure_leaves_its_line_and_others_go_on(desk: FlowDesk) -> None:
    await stage(desk, owing(), owing(member("q")), cancel_owed=True, owed="")
    faulty = FaultyStore(desk.store, [Fault(Verb.GRAPH, 1, Kind.BEFORE)])
    reconciler = SiblingReconciler(faulty, desk.engine.clock)
    assert await reconciler.run_once() == Reconciled(1, 1)
    assert len(await desk.lines()) == 1
    assert await reconciler.run_once() == Reconciled(1, 0)
    assert await desk.lines() == []
    before = await everything(desk.store)
    assert await reconciler.run_once() == Reconciled(0, 0)
    assert await everything(desk.store) == before
