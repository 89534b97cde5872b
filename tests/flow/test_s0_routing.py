"""Post-completion dispatch (S0): where executions live, and who can be asked about them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.graph import Link
from flowfabric.core.flow.model import EdgeState
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import (
    PartitionCounts,
    execution_id,
    flow_execution_id,
    flow_partition,
    parse_execution_id,
    partition_of,
)
from flowfabric.core.model import Want
from flowfabric.core.states import State
from flowfabric.errors import InvalidInput
from flowfabric.store import open_store
from flowfabric.testing import Verb
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import COUNTS, FLOW, flow_id, member, order, plan
from tests.conftest import discard
from tests.flow.desk import FlowDesk
from tests.flow.watched import Watched
from tests.servers import store_url

UUID = "018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f"
FLOWS = [flow_id(number) for number in (10, 11, 12)]


async def test_s0_1_s0_2_a_store_says_how_it_is_divided(
    store_kind: str, clock: VirtualClock, tmp_path: Path
) -> None:
    counts = PartitionCounts(flow=8, budget=2, quota=3)
    url = store_url(store_kind, tmp_path / "store.db", is_new=True)
    store = open_store(url, clock=clock, counts=counts)
    try:
        desk = FlowDesk(store, clock)
        await desk.engine.open()
        assert desk.engine.counts == desk.engine.flows.counts == counts
        assert desk.engine.counts.flow == 8
    finally:
        await discard(store)


def test_s0_2_executions_have_no_partitions_of_their_own() -> None:
    assert set(PartitionCounts.__slots__) == {"flow", "budget", "quota"}


@pytest.mark.parametrize("number", [0, 7, 255, 65_535])
def test_s0_3_an_id_says_its_partition(number: int) -> None:
    assert partition_of(parse_execution_id(f"{{fp:{number}}}:{UUID}")) == number


def test_s0_3_an_id_keeps_its_partition_whatever_is_configured_later() -> None:
    id = flow_execution_id(FLOW, UUID, PartitionCounts(flow=256))
    later = flow_partition(FLOW, PartitionCounts(flow=7))
    assert partition_of(id) == flow_partition(FLOW, PartitionCounts(flow=256)) != later


async def test_s0_4_an_id_alone_leads_to_everything_about_an_execution(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    assert partition_of(member("a")) == partition_of(member("b")) == flow_partition(FLOW, COUNTS)
    await desk.end("a")
    want = Want(ids=[member("a"), member("b")], payload=True, attempts=True)
    a, b = await desk.store.load(want)
    assert a is not None
    assert b is not None
    assert (a.head.id, a.payload, a.attempts[0].result) == (member("a"), b"{}", b'"a"')
    assert (b.head.id, b.payload, b.attempts) == (member("b"), b"{}", ())


async def test_s0_5_s0_6_s0_17_one_store_serves_every_partition_in_one_call(
    desk: FlowDesk,
) -> None:
    assert len({flow_partition(flow, COUNTS) for flow in FLOWS}) == len(FLOWS)
    for flow in FLOWS:
        await desk.draw(plan("ab", "a>b", flow=flow))
        await desk.end("a", flow=flow)
    watched = Watched(desk.store)
    other = FlowDesk(watched, desk.clock)
    assert await other.dispatcher.run_once() == len(FLOWS)
    asked = [watched.calls[verb] for verb in (Verb.PENDING, Verb.GRAPH, Verb.COMMIT_EACH)]
    assert asked == [1, 1, 1]
    for flow in FLOWS:
        assert partition_of(member("b", flow)) == flow_partition(flow, COUNTS)
        assert await desk.state("b", flow) is State.WAITING
        assert (await desk.edge("a", "b", flow)).state is EdgeState.SATISFIED


async def test_s0_17_a_member_that_lives_elsewhere_is_refused(desk: FlowDesk) -> None:
    drawn = plan("ab", "a>b")
    elsewhere = execution_id(flow_partition(FLOW, COUNTS) + 1, UUID)
    stranger = msgspec.structs.replace(drawn.orders[1], id=elsewhere)
    foreign = msgspec.structs.replace(drawn, orders=[*drawn.orders, stranger])
    with pytest.raises(InvalidInput) as refused:
        await desk.engine.flows.submit(foreign)
    assert refused.value.code == "invalid_partition_index"
    assert await desk.store.find_flows(FlowQuery()) == []


async def test_s0_17_an_edge_to_a_member_that_lives_elsewhere_is_refused(desk: FlowDesk) -> None:
    await desk.draw(plan("a"))
    elsewhere = execution_id(flow_partition(FLOW, COUNTS) + 1, UUID)
    stranger = msgspec.structs.replace(order("b"), id=elsewhere)
    addition = Addition(orders=[stranger], links=[Link(member("a"), elsewhere)])
    with pytest.raises(InvalidInput) as refused:
        await desk.engine.flows.build.add(FLOW, addition)
    assert refused.value.code == "invalid_partition_index"
    assert await desk.edges() == {}
