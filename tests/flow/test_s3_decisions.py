"""The sibling-cancel reconciler (S3): its three actions, and that it never fights a dispatcher."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.model import LineKind
from flowfabric.core.states import State
from flowfabric.engine import telemetry
from flowfabric.engine.sibling_reconciler import Reconciled, SiblingReconciler
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.conformance.flow_steps import everything
from flowfabric.testing.flows import flow_id, member
from tests.corrupter import Raw
from tests.flow.desk import FlowDesk
from tests.flow.owing import listed, owing, stage
from tests.flow.watched import Watched

RECONCILED = telemetry.SIBLINGS_RECONCILED


@pytest.fixture
def reconciler(desk: FlowDesk) -> SiblingReconciler:
    return SiblingReconciler(desk.store, desk.engine.clock)


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_s3_10_a_decision_is_written_whole_or_not_at_all(desk: FlowDesk, kind: Kind) -> None:
    await stage(desk, owing(), cancel_owed=True, cancel_reason="why")
    watched = Watched(desk.store)
    watched.plan = [Fault(Verb.COMMIT, 1, kind)]
    assert await SiblingReconciler(watched, desk.engine.clock).run_once() == Reconciled(0, 1)
    assert len(watched.changes) == 1
    flagged, lines = (await desk.group("x")).cancel_owed, await desk.lines()
    assert (flagged, len(lines)) == ((True, 1) if kind is Kind.BEFORE else (False, 0))


async def test_s3_10_a_decision_about_what_has_changed_since_is_not_written(
    desk: FlowDesk,
) -> None:
    await stage(desk, owing(), cancel_owed=True)
    now_owing = msgspec.structs.replace(await desk.group("x"), owed=member("b"))
    rival = Fault(Verb.COMMIT, 1, Kind.DELAY, hook=lambda: desk.change(now_owing))
    reconciler = SiblingReconciler(FaultyStore(desk.store, [rival]), desk.engine.clock)
    assert await reconciler.run_once() == Reconciled(0, 0)
    assert reconciler.counts.labels(RECONCILED) == {"no_op": 1}
    assert (await desk.group("x"), len(await desk.lines())) == (now_owing, 1)


@pytest.mark.parametrize("is_removed", [True, False])
async def test_s3_11_a_missing_group_is_stale(
    desk: FlowDesk, reconciler: SiblingReconciler, raw: Raw, *, is_removed: bool
) -> None:
    await stage(desk, owing() if is_removed else owing(member("q")))
    if is_removed:
        await raw.remove(await desk.group("x"))
    assert await reconciler.run_once() == Reconciled(1, 0)
    assert await desk.lines() == []
    assert reconciler.counts.labels(RECONCILED) == {"sremmed_stale": 1}


@pytest.mark.case("FL-064")
async def test_s3_12_s3_28_a_flag_that_is_gone_is_stale_and_the_group_stays(
    desk: FlowDesk, reconciler: SiblingReconciler
) -> None:
    await stage(desk, owing(), cancel_owed=False, owed=member("a"))
    before = await desk.group("x")
    assert await reconciler.run_once() == Reconciled(1, 0)
    assert (await desk.lines(), await desk.group("x")) == ([], before)
    assert reconciler.counts.labels(RECONCILED) == {"sremmed_stale": 1}


@pytest.mark.case("FL-065")
@pytest.mark.parametrize("owed", ["", "ab", "aq"])
async def test_s3_13_s3_14_s3_15_s3_19_s3_27_what_has_ended_is_drained(
    desk: FlowDesk, reconciler: SiblingReconciler, owed: str
) -> None:
    await stage(
        desk, owing(), cancel_owed=True, owed=listed(owed), cancel_reason="why", decided_ms=77
    )
    await desk.end("a", "b", outcome="cancelled")
    assert await reconciler.run_once() == Reconciled(1, 0)
    group = await desk.group("x")
    assert (group.cancel_owed, group.owed) == (False, "")
    assert (group.cancel_reason, group.decided_ms) == ("why", 77)
    assert LineKind.CANCEL_SIBLINGS not in {line.kind for line in await desk.lines()}
    assert reconciler.counts.labels(RECONCILED) == {"completed_drain": 1}


async def test_s3_15_a_sibling_that_cannot_be_read_is_not_taken_for_gone(
    desk: FlowDesk, reconciler: SiblingReconciler, raw: Raw
) -> None:
    await stage(desk, owing(), cancel_owed=True, owed=member("b"))
    await raw.write(await desk.member("b"), "state", "melted")
    assert await reconciler.run_once() == Reconciled(0, 1)
    assert ((await desk.group("x")).cancel_owed, len(await desk.lines())) == (True, 1)


async def test_s3_16_s3_20_s3_26_a_live_group_is_left_as_it_is(
    desk: FlowDesk, reconciler: SiblingReconciler
) -> None:
    await stage(desk, owing(), cancel_owed=True, owed=listed("ab"))
    await desk.end("a", outcome="cancelled")
    before = await everything(desk.store)
    for times in (1, 2):
        assert await reconciler.run_once() == Reconciled(0, 0)
        assert await everything(desk.store) == before
        assert reconciler.counts.labels(RECONCILED) == {"no_op": times}
    assert await desk.state("b") is State.WAITING


async def test_s3_17_a_line_that_is_gone_by_then_is_no_action(desk: FlowDesk) -> None:
    await stage(desk, owing(), cancel_owed=True, owed=member("b"))
    overtaken = Fault(Verb.GRAPH, 1, Kind.DELAY, hook=desk.dispatch)
    reconciler = SiblingReconciler(FaultyStore(desk.store, [overtaken]), desk.engine.clock)
    assert await reconciler.run_once() == Reconciled(0, 0)
    assert reconciler.counts.labels(RECONCILED) == {"no_op": 1}
    assert await desk.state("b") is State.CANCELLED
    assert await desk.lines() == []


LEFT = [(True, ""), (True, "ab"), (True, "nobody"), (False, "ab")]


async def test_s3_18_it_cancels_nobody_whatever_it_finds(desk: FlowDesk) -> None:
    flows = [flow_id(100 + place) for place in range(len(LEFT))]
    for flow, (cancel_owed, names) in zip(flows, LEFT, strict=True):
        lines = [owing(flow=flow), owing("nobody", flow=flow), owing(member("q", flow), flow=flow)]
        owed = names if names == "nobody" else listed(names, flow)
        await stage(desk, *lines, flow=flow, cancel_owed=cancel_owed, owed=owed)
    watched = Watched(desk.store)
    reconciler = SiblingReconciler(watched, desk.engine.clock)
    done = await reconciler.run_once()
    # Of the group that still owes cancels, the line stays for the dispatcher.
    assert (done.processed, done.errors) == (len(LEFT) * 2 - 1, len(LEFT))
    assert len(watched.changes) == len(LEFT) * 3 - 1
    assert {len(changes.transitions) for changes in watched.changes} == {0}
    for flow in flows:
        assert set((await desk.states("ab", flow)).values()) == {"waiting"}


async def test_s3_29_beside_it_the_dispatcher_works_as_without_it(
    desk: FlowDesk, reconciler: SiblingReconciler
) -> None:
    await stage(desk, owing(), cancel_owed=True, owed=member("b"))
    await reconciler.run_once()
    await desk.dispatch()
    await reconciler.run_once()
    assert await desk.states("ab") == {"a": "waiting", "b": "cancelled"}
    assert await desk.lines() == []
    assert not (await desk.group("x")).cancel_owed
