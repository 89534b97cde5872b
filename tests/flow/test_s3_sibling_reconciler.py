"""The sibling-cancel reconciler, statement by statement."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import Group, Join, Line, LineKind, OnSatisfied, line_id
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.engine import telemetry
from flowfabric.engine.sibling_reconciler import Reconciled, SiblingReconciler
from flowfabric.engine.sweeping import Scope
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.conformance.flow_steps import everything
from flowfabric.testing.flows import FLOW, member, plan
from tests.flow.desk import FlowDesk

RECONCILED = telemetry.SIBLINGS_RECONCILED


def owing(downstream: str = member("x")) -> Line:
    return Line(
        flow=FLOW,
        at_ms=1,
        id=line_id(LineKind.CANCEL_SIBLINGS, downstream, 0, "start"),
        kind=LineKind.CANCEL_SIBLINGS,
        execution=downstream,
        about="start",
    )


@pytest.fixture
def reconciler(desk: FlowDesk) -> SiblingReconciler:
    return SiblingReconciler(desk.store, desk.engine.clock)


async def stage(desk: FlowDesk, *lines: Line, **columns: object) -> None:
    """A decided group as a crash would leave it: these columns, these lines."""
    first = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)
    await desk.draw(plan("abx", "a>x b>x", policies={"x": first}))
    flow, group = await desk.flow(), await desk.group("x")
    changed: Group = msgspec.structs.replace(group, **columns)
    changes = Changeset(flows=[FlowPatch(FLOW, flow.rev, {})], groups=[changed], lines=lines)
    assert await desk.store.commit(changes, desk.clock.now_ms())


def test_s3_1_it_has_a_name_and_a_slow_interval(reconciler: SiblingReconciler) -> None:
    assert reconciler.name == "edge_cancel_reconciler"
    assert reconciler.interval_seconds == 10


async def test_s3_4_nothing_to_do_is_nothing_done(
    desk: FlowDesk, reconciler: SiblingReconciler
) -> None:
    await stage(desk)
    faulty = FaultyStore(desk.store)
    idle = SiblingReconciler(faulty, desk.engine.clock)
    assert await idle.run_once() == Reconciled(0, 0)
    assert faulty.calls[Verb.ANY] == faulty.calls[Verb.PENDING] == 1
    assert await reconciler.run_once() == Reconciled(0, 0)


async def test_s3_5_a_failed_read_is_one_error(desk: FlowDesk) -> None:
    faulty = FaultyStore(desk.store, [Fault(Verb.PENDING, 1, Kind.BEFORE)])
    assert await SiblingReconciler(faulty, desk.engine.clock).run_once() == Reconciled(0, 1)


@pytest.mark.parametrize("name", ["", "nobody", "{fp:1}:nobody"])
async def test_s3_7_s3_8_s3_9_s3_25_a_malformed_line_is_removed_and_no_action(
    desk: FlowDesk, reconciler: SiblingReconciler, name: str
) -> None:
    await stage(desk, owing(name))
    assert await reconciler.run_once() == Reconciled(0, 1)
    assert await desk.lines() == []
    assert reconciler.counts.labels(RECONCILED) == {}


async def test_s3_11_a_missing_group_is_stale(
    desk: FlowDesk, reconciler: SiblingReconciler
) -> None:
    await stage(desk, owing(member("q")))
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
    names = "\n".join(member(name) for name in owed)
    await stage(desk, owing(), cancel_owed=True, owed=names, cancel_reason="why", decided_ms=77)
    await desk.end("a", "b", outcome="cancelled")
    assert await reconciler.run_once() == Reconciled(1, 0)
    group = await desk.group("x")
    assert (group.cancel_owed, group.owed) == (False, "")
    assert (group.cancel_reason, group.decided_ms) == ("why", 77)
    assert LineKind.CANCEL_SIBLINGS not in {line.kind for line in await desk.lines()}
    assert reconciler.counts.labels(RECONCILED) == {"completed_drain": 1}


async def test_s3_16_s3_18_s3_20_s3_26_a_live_group_is_left_as_it_is(
    desk: FlowDesk, reconciler: SiblingReconciler
) -> None:
    owed = f"{member('a')}\n{member('b')}"
    await stage(desk, owing(), cancel_owed=True, owed=owed)
    await desk.end("a", outcome="cancelled")
    before = await everything(desk.store)
    for times in (1, 2):
        assert await reconciler.run_once() == Reconciled(0, 0)
        assert await everything(desk.store) == before
        assert reconciler.counts.labels(RECONCILED) == {"no_op": times}
    assert await desk.state("b") is State.WAITING


@pytest.mark.case("FL-069")
async def test_s3_21_s3_31_a_failure_leaves_its_line_and_others_go_on(desk: FlowDesk) -> None:
    await stage(desk, owing(), owing(member("q")), cancel_owed=True, owed="")
    faulty = FaultyStore(desk.store, [Fault(Verb.GRAPH, 1, Kind.BEFORE)])
    reconciler = SiblingReconciler(faulty, desk.engine.clock)
    assert await reconciler.run_once() == Reconciled(1, 1)
    assert len(await desk.lines()) == 1
    assert await reconciler.run_once() == Reconciled(1, 0)
    assert await desk.lines() == []
    assert set(reconciler.counts.labels(RECONCILED)) <= {
        "sremmed_stale",
        "completed_drain",
        "no_op",
    }


async def test_s3_29_beside_it_the_dispatcher_works_as_without_it(
    desk: FlowDesk, reconciler: SiblingReconciler
) -> None:
    await stage(desk, owing(), cancel_owed=True, owed=member("b"))
    await reconciler.run_once()
    await desk.dispatch()
    await reconciler.run_once()
    assert await desk.state("b") is State.CANCELLED
    assert await desk.lines() == []
    assert not (await desk.group("x")).cancel_owed


def test_s3_30_s3_32_a_filter_is_shown_and_counters_are_its_own(desk: FlowDesk) -> None:
    seen = Scope(namespace="ours")
    reconciler = SiblingReconciler(desk.store, desk.engine.clock, scope=seen)
    assert reconciler.filter is seen
    assert reconciler.counts is not SiblingReconciler(desk.store, desk.engine.clock).counts
