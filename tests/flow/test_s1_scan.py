"""The flow summary projector (S1): which flows it looks at, how far, and what it counts."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.core.flow.summary import stored_summary
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import flow_partition
from flowfabric.engine import flow_projector
from flowfabric.engine.flow_projector import FlowProjector
from flowfabric.engine.index_reconciler import IndexReconciler
from flowfabric.engine.intervals import SECONDS
from flowfabric.engine.janitor import Janitor, Shed
from flowfabric.engine.sweeping import Scope
from flowfabric.engine.telemetry import Telemetry
from flowfabric.store import Store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import COUNTS, FLOW, flow_id, member, order, plan
from tests.corrupter import Raw
from tests.flow.desk import FlowDesk
from tests.flow.watched import Watched, told
from tests.store.valkey.raw import ask

FLOWS = sorted(flow_id(number) for number in range(20, 25))


@pytest.fixture
def projector(desk: FlowDesk) -> FlowProjector:
    return FlowProjector(desk.store, desk.engine.clock)


async def counted(projector: FlowProjector) -> tuple[int, int]:
    swept = await projector.run_once()
    return swept.processed, swept.errors


async def total_of(desk: FlowDesk, flow: str) -> int | None:
    """How many members the stored summary tells of; None if there is no summary."""
    found = next(each for each in (await flows_of(desk)) if each.id == flow)
    summary = stored_summary(found)
    return None if summary is None else summary.total_members


async def flows_of(desk: FlowDesk) -> list[Flow]:
    return (await desk.engine.flows.read.find(FlowQuery())).items


@pytest.mark.case("FS-012")
async def test_s1_1_s1_2_it_has_a_name_an_interval_and_serves_every_partition(
    desk: FlowDesk, projector: FlowProjector
) -> None:
    assert (projector.name, projector.interval_seconds) == ("flow_projector", 15)
    assert SECONDS["flow_projector"] == 15
    chosen = Janitor(Shed(desk.store, desk.engine.clock, Telemetry()), {"flow_projector": "3s"})
    seconds = {sweeper.name: sweeper.interval_seconds for sweeper in chosen.sweepers}
    assert (seconds["flow_projector"], seconds["edge_cancel_reconciler"]) == (3, 10)
    assert flow_projector.PAGE == 100
    assert len({flow_partition(flow, COUNTS) for flow in FLOWS}) == len(FLOWS)
    for flow in FLOWS:
        await desk.draw(plan("ab", flow=flow))
    assert await counted(projector) == (5, 0)
    assert [await total_of(desk, flow) for flow in FLOWS] == [2] * 5


async def test_s1_3_only_flows_that_are_not_settled_are_read(desk: FlowDesk) -> None:
    for flow in FLOWS[:3]:
        await desk.draw(plan("a", flow=flow))
    await desk.ended("a", flow=FLOWS[0])
    watched = Watched(desk.store)
    assert await counted(FlowProjector(watched, desk.engine.clock)) == (2, 0)
    assert [sight.flow for sight in watched.sights] == FLOWS[1:3]
    assert watched.calls[Verb.FIND_FLOWS] == watched.calls[Verb.GRAPH] == 1


async def test_s1_5_a_full_page_is_followed_by_the_next_at_once(
    desk: FlowDesk, projector: FlowProjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_projector, "PAGE", 2)
    for flow in FLOWS[:3]:
        await desk.draw(plan("a", flow=flow))
    assert [(await projector.run_once()).again for _ in range(3)] == [True, False, True]


async def test_s1_4_s1_5_a_cycle_is_one_page_and_cycles_go_round(
    desk: FlowDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_projector, "PAGE", 2)
    for flow in FLOWS[1:]:
        await desk.draw(plan("a", flow=flow))
    watched = Watched(desk.store)
    first = FlowProjector(watched, desk.engine.clock)
    assert await counted(first) == (2, 0)
    assert len(watched.sights) == 2
    # Another engine goes on from there; who comes in before is met in the next round.
    await desk.draw(plan("a", flow=FLOWS[0]))
    second = FlowProjector(watched, desk.engine.clock)
    second.cursor = first.cursor
    assert [await counted(second) for _ in range(3)] == [(2, 0), (0, 0), (1, 0)]
    assert [sight.flow for sight in watched.sights[:4]] == FLOWS[1:]
    assert [await total_of(desk, flow) for flow in FLOWS] == [1] * 5


@pytest.mark.case("FS-013")
async def test_s1_6_without_a_clock_nothing_is_projected(desk: FlowDesk) -> None:
    await desk.draw(plan("a"))
    faulty = FaultyStore(desk.store, [Fault(Verb.NOW, 1, Kind.BEFORE)])
    assert await counted(FlowProjector(faulty, desk.engine.clock)) == (0, 1)
    assert (await desk.flow()).summary == ""


@pytest.mark.parametrize("verb", [Verb.FIND_FLOWS, Verb.GRAPH])
async def test_s1_7_a_page_that_cannot_be_read_is_one_error(
    desk: FlowDesk, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    monkeypatch.setattr(flow_projector, "PAGE", 2)
    for flow in FLOWS[:4]:
        await desk.draw(plan("a", flow=flow))
    faulty = FaultyStore(desk.store, [Fault(verb, 2, Kind.BEFORE)])
    projector = FlowProjector(faulty, desk.engine.clock)
    assert [await counted(projector) for _ in range(2)] == [(2, 0), (0, 1)]
    # The rest has its turn within a round.
    done = [await counted(projector) for _ in range(3)]
    assert (sum(each for each, _ in done), sum(errors for _, errors in done)) == (2, 0)


async def test_s1_8_a_failure_with_one_flow_is_an_error_and_others_go_on(
    desk: FlowDesk, caplog: pytest.LogCaptureFixture
) -> None:
    for flow in FLOWS[:3]:
        await desk.draw(plan("a", flow=flow))
    faulty = FaultyStore(desk.store, [Fault(Verb.COMMIT, 2, Kind.BEFORE)])
    projector = FlowProjector(faulty, desk.engine.clock)
    assert await counted(projector) == (2, 1)
    assert told(caplog, "flow", "error") == [{"flow": FLOWS[1], "error": "transport"}]
    assert [await total_of(desk, flow) for flow in FLOWS[:3]] == [1, None, 1]
    assert await counted(projector) == (1, 0)


@pytest.mark.case("FS-001")
async def test_s1_9_s1_14_a_flow_without_members_has_no_summary_and_stays(
    desk: FlowDesk, projector: FlowProjector
) -> None:
    await desk.draw(plan([]))
    assert await counted(projector) == (0, 0)
    flow = await desk.flow()
    assert (flow.summary, flow.settled) == ("", False)
    await desk.engine.flows.build.add(FLOW, Addition(orders=[order("a")]))
    assert await counted(projector) == (1, 0)


@pytest.mark.case("FS-014")
async def test_s1_10_an_id_that_no_flow_can_have_is_an_error_and_is_named(
    desk: FlowDesk, projector: FlowProjector, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    for flow in FLOWS[:3]:
        await desk.draw(plan("a", flow=flow))
    # After the first and before the third one.
    strange = f"{FLOWS[0]}-strange"
    await raw.write(await desk.flow(FLOWS[1]), "id", strange)
    assert await counted(projector) == (2, 1)
    assert told(caplog, "flow") == [{"flow": strange}]
    assert [await total_of(desk, flow) for flow in (FLOWS[0], FLOWS[2])] == [1, 1]


@pytest.mark.case("FS-015")
async def test_s1_12_a_filter_is_shown_and_restricts_nothing(desk: FlowDesk) -> None:
    others = Scope(namespace="somebody-else")
    projector = FlowProjector(desk.store, desk.engine.clock, scope=others)
    assert projector.filter is others
    await desk.draw(plan("abc"))
    assert await counted(projector) == (1, 0)
    assert await total_of(desk, FLOW) == 3


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_s1_9_s1_13_a_flow_that_is_gone_is_passed_and_nothing_is_written(
    desk: FlowDesk, raw: Raw, when: str
) -> None:
    await desk.draw(plan("a"))
    await desk.draw(plan("a", flow=FLOWS[0]))
    gone = await desk.flow()
    faults: list[Fault] = []
    if when == "before":
        await raw.remove(gone)
    else:
        faults = [Fault(Verb.GRAPH, 1, Kind.DELAY, hook=lambda: raw.remove(gone))]
    projector = FlowProjector(FaultyStore(desk.store, faults), desk.engine.clock)
    swept = [await counted(projector) for _ in range(3)]
    assert sum(processed for processed, _ in swept) == 1
    left = stored_summary(await desk.flow(FLOWS[0]))
    assert left is not None
    assert left.total_members == 1
    # Where the index is kept apart from the flows, an entry that leads to nothing is an error.
    assert any(errors for _, errors in swept) == isinstance(desk.store, ValkeyStore)


async def test_s1_13_a_flow_that_is_gone_leaves_the_index_with_the_index_reconciler(
    desk: FlowDesk, projector: FlowProjector, raw: Raw
) -> None:
    await desk.draw(plan("a"))
    gone = await desk.flow()
    await raw.remove(gone)
    assert (await counted(projector))[0] == 0
    net = IndexReconciler(desk.store, desk.engine.clock)
    await net.run_once()
    while net.cursor:
        await net.run_once()
    assert await unsettled(desk.store) == []


async def unsettled(store: Store) -> list[str]:
    """What the index says; where it is kept apart from the flows, past them."""
    if not isinstance(store, ValkeyStore):
        return [flow.id for flow in await store.find_flows(FlowQuery(unsettled=True))]
    key = f"{store.keys.partition(flow_partition(FLOW, COUNTS))}:unsettled"
    found = await ask(store, key, "ZRANGE", key, "0", "-1")
    assert isinstance(found, list)
    return [each.decode() for each in found if isinstance(each, bytes)]


async def test_s1_29_it_never_writes_the_state_that_guards_changes(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    watched = Watched(desk.store)
    projector = FlowProjector(watched, desk.engine.clock)
    await counted(projector)
    await desk.ended("a", "b")
    await counted(projector)
    written = {name for changes in watched.changes for flow in changes.flows for name in flow.patch}
    assert written == {"summary", "updated_ms"}
    flow = await desk.flow()
    assert flow.state is FlowState.OPEN
    assert stored_summary(flow) is not None
    status = await desk.engine.flows.status(FLOW)
    assert (status.state, status.flow) == ("completed", flow)


async def test_s1_29_a_projection_that_derives_completed_leaves_the_state_that_guards_changes(
    desk: FlowDesk, projector: FlowProjector
) -> None:
    """Before the ends are dispatched, the projection is the first to see that all have ended."""
    await desk.draw(plan("ab"))
    await desk.end("a", "b")
    assert await counted(projector) == (1, 0)
    flow = await desk.flow()
    summary = stored_summary(flow)
    assert summary is not None
    assert (summary.public_flow_state, flow.state, flow.settled) == (
        *("completed", FlowState.OPEN),
        False,
    )
    await desk.engine.flows.build.add(FLOW, Addition(orders=[order("c")]))


async def test_s1_33_a_cancelled_flow_is_projected_until_its_members_have_ended(
    desk: FlowDesk, projector: FlowProjector
) -> None:
    await desk.draw(plan("ab"))
    await desk.engine.flows.cancel(FLOW)
    assert await counted(projector) == (1, 0)
    assert (await desk.engine.flows.status(FLOW)).summary.members_waiting == 2
    await desk.engine.cancel(member("a"), "enough")
    assert await counted(projector) == (1, 0)
    found = stored_summary(await desk.flow())
    assert found is not None
    assert (found.members_waiting, found.members_cancelled) == (1, 1)
    await desk.dispatch()
    assert (await desk.flow()).settled
    assert await counted(projector) == (0, 0)


async def test_s1_34_a_new_member_brings_a_settled_flow_back(
    desk: FlowDesk, projector: FlowProjector
) -> None:
    await desk.draw(plan("a"))
    await desk.ended("a")
    assert await counted(projector) == (0, 0)
    await desk.engine.flows.build.add(FLOW, Addition(orders=[order("b")]))
    assert not (await desk.flow()).settled
    assert await counted(projector) == (1, 0)
    assert await total_of(desk, FLOW) == 2


async def test_s1_36_what_cannot_be_read_is_an_error_and_the_scan_goes_on(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_projector, "PAGE", 2)
    for flow in FLOWS:
        await desk.draw(plan("a", flow=flow))
    await raw.write(await desk.flow(FLOWS[1]), "state", "melted")
    projector = FlowProjector(desk.store, desk.engine.clock)
    done = [await counted(projector) for _ in range(5)]
    assert (sum(each for each, _ in done), sum(errors for _, errors in done)) == (4, 1)
    assert {"flow": FLOWS[1]} in told(caplog, "flow")


async def test_of_two_projectors_at_once_none_does_harm(desk: FlowDesk) -> None:
    await desk.draw(plan("a"))
    both = [FlowProjector(each.store, each.engine.clock) for each in (desk, desk.another())]
    done = await asyncio.gather(*(counted(each) for each in both))
    assert sorted(done) in ([(0, 0), (1, 0)], [(1, 0), (1, 0)])
    assert await total_of(desk, FLOW) == 1
