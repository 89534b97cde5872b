"""Describing, listing, paging and tagging."""

from __future__ import annotations

import pytest

from flowfabric.core.ids import ExecutionId, parse_execution_id
from flowfabric.core.model import Query
from flowfabric.core.states import LaneState, PublicState, State
from flowfabric.errors import ExecutionNotFound, InvalidInput
from flowfabric.testing.build import LANE, TTL_MS, WORKER, execution_id, order
from flowfabric.testing.faults import FaultyStore, Verb
from tests.engine.desk import Desk

NEVER = execution_id(999)


async def pages(desk: Desk, query: Query) -> list[list[ExecutionId]]:
    """Every page, following the cursor."""
    found: list[list[ExecutionId]] = []
    cursor = None
    while not found or cursor is not None:
        asked = Query(partition=query.partition, lane=query.lane, limit=query.limit, after=cursor)
        page = await desk.engine.read.find(asked)
        found.append([row.id for row in page.items])
        assert page.cursor in (None, found[-1][-1])
        cursor = page.cursor
    return found


@pytest.mark.case("LI-001")
async def test_what_does_not_exist_is_described_as_nothing(desk: Desk) -> None:
    assert await desk.engine.read.describe(NEVER) is None


@pytest.mark.case("LI-002")
async def test_a_new_execution_is_described(desk: Desk) -> None:
    snapshot = await desk.snapshot(await desk.submit())
    assert snapshot.public_state is PublicState.WAITING
    assert (snapshot.attempt, snapshot.lease, snapshot.total_attempt_count) == (None, None, 0)
    assert snapshot.vector.blocking_reason == "waiting_for_worker"
    assert snapshot.blocking_detail == ""
    assert snapshot.updated_ms == snapshot.created_ms == desk.clock.now_ms()
    assert (await desk.head(parse_execution_id(snapshot.id))).flow == ""


@pytest.mark.case("LI-003")
async def test_a_claimed_execution_is_described_with_its_lease(desk: Desk) -> None:
    lease = await desk.running()
    snapshot = await desk.snapshot(lease.id)
    assert snapshot.public_state is PublicState.ACTIVE
    assert (snapshot.attempt, snapshot.total_attempt_count) == (0, 1)
    held = snapshot.lease
    assert held is not None
    assert (held.epoch, held.worker) == (1, WORKER)
    assert (held.attempt, held.expires_ms) == (0, desk.clock.now_ms() + TTL_MS)
    assert held.last_heartbeat_ms is None
    desk.clock.advance(1_000)
    await desk.engine.renew([lease], TTL_MS)
    renewed = (await desk.snapshot(lease.id)).lease
    assert renewed is not None
    assert renewed.last_heartbeat_ms == desk.clock.now_ms()


@pytest.mark.case("LI-004")
async def test_a_delayed_execution_is_described_as_delayed(desk: Desk) -> None:
    id = await desk.submit(order(delay_until_ms=desk.clock.now_ms() + 60_000))
    assert (await desk.snapshot(id)).public_state is PublicState.DELAYED


@pytest.mark.case("LI-005")
async def test_tags_are_described_in_the_order_of_their_keys(desk: Desk) -> None:
    tags = {"demo.tenant": "acme", "app.zone": "b", "app.area": "north"}
    shown = (await desk.snapshot(await desk.submit(order(tags=tags)))).tags
    assert shown == tags
    assert list(shown) == sorted(tags)


@pytest.mark.case("LI-010")
async def test_what_has_ended_is_described_with_how_and_when(desk: Desk) -> None:
    done = await desk.snapshot(await desk.completed(order(1)))
    assert (done.vector.phase, done.vector.outcome) == ("terminal", "success")
    assert done.ended_ms == desk.clock.now_ms()
    id = await desk.submit(order(2))
    await desk.engine.cancel(id)
    gone = await desk.snapshot(id)
    assert (gone.vector.phase, gone.vector.outcome) == ("terminal", "cancelled")


@pytest.mark.case("LI-020")
async def test_executions_are_listed_page_by_page(desk: Desk) -> None:
    orders = [order(number) for number in range(15)]
    elsewhere = order(id=execution_id(99, partition=8))
    await desk.engine.submit([*reversed(orders), elsewhere])
    found = await pages(desk, Query(partition=7, limit=5))
    assert [len(page) for page in found] == [5, 5, 5]
    assert [id for page in found for id in page] == sorted(each.id for each in orders)


@pytest.mark.case("LI-022")
async def test_nothing_to_list_is_an_empty_page_without_a_cursor(desk: Desk) -> None:
    read = desk.engine.read
    await desk.submit()
    for query in (Query(limit=0), Query(partition=99), Query(lane="nobody")):
        page = await read.find(query)
        assert (page.items, page.cursor) == ([], None)
    lanes = [await read.list_lanes(limit=0), await read.list_lanes(after="zzz")]
    assert [(page.items, page.cursor) for page in lanes] == [([], None), ([], None)]


@pytest.mark.case("LI-026")
async def test_lanes_are_listed_by_name_page_by_page(desk: Desk) -> None:
    names = ["gamma", "alpha", "delta", "beta"]
    for name in names:
        await desk.engine.set_lane(name, LaneState.ACTIVE)
    first = await desk.engine.read.list_lanes(limit=3)
    assert ([lane.name for lane in first.items], first.cursor) == (
        ["alpha", "beta", "delta"],
        "delta",
    )
    last = await desk.engine.read.list_lanes(after="delta", limit=3)
    assert ([lane.name for lane in last.items], last.cursor) == (["gamma"], None)


@pytest.mark.case("LI-028")
async def test_a_lane_is_listed_once_something_was_submitted_to_it(desk: Desk) -> None:
    await desk.engine.set_lane("chosen", LaneState.PAUSED)
    await desk.submit(order(lane="dynamic"))
    page = await desk.engine.read.list_lanes()
    assert [(lane.name, lane.state) for lane in page.items] == [
        ("chosen", LaneState.PAUSED),
        ("dynamic", LaneState.ACTIVE),
    ]


@pytest.mark.case("LI-031")
async def test_tags_are_set_one_by_one_and_many_at_once(desk: Desk) -> None:
    id = await desk.submit(order(tags={"demo.tenant": "acme"}))
    head = await desk.head(id)
    more = {"app.a": "1", "app.b": "2", "app.c": "3"}
    counts = [
        await desk.engine.set_tags(id, {"demo.tenant": "other"}),
        await desk.engine.set_tags(id, more),
    ]
    assert counts == [1, 3]
    assert await desk.engine.read.tags(id) == {**more, "demo.tenant": "other"}
    after = await desk.head(id)
    assert (after.rev, after.state) == (head.rev + 2, head.state)


@pytest.mark.case("LI-032")
async def test_setting_a_tag_is_a_change(desk: Desk) -> None:
    id = await desk.submit()
    desk.clock.advance(1_000)
    await desk.engine.set_tags(id, {"demo.tenant": "acme"})
    snapshot = await desk.snapshot(id)
    assert snapshot.updated_ms == desk.clock.now_ms() > snapshot.created_ms


@pytest.mark.case("LI-034")
@pytest.mark.parametrize("key", ["", "Cairn.x", "cairn", "cairn.", "cairn..x", "ca-irn.x"])
async def test_a_bad_tag_key_is_refused_before_the_store_is_asked(desk: Desk, key: str) -> None:
    id = await desk.submit()
    faulty = FaultyStore(desk.store)
    other = Desk(faulty, desk.clock)
    with pytest.raises(InvalidInput):
        await other.engine.set_tags(id, {"demo.tenant": "acme", key: "x"})
    assert faulty.calls[Verb.ANY] == 0
    refused = (await other.engine.submit([order(1, tags={key: "x"})]))[0].error
    assert isinstance(refused, InvalidInput)
    assert faulty.calls[Verb.INSERT] == 0
    assert await desk.engine.read.tags(id) == {}


@pytest.mark.case("LI-037")
async def test_tags_of_what_does_not_exist(desk: Desk) -> None:
    with pytest.raises(ExecutionNotFound):
        await desk.engine.set_tags(NEVER, {"demo.tenant": "acme"})
    assert await desk.engine.read.tags(NEVER) == {}


async def test_every_condition_of_a_query_must_hold(desk: Desk) -> None:
    await desk.engine.submit(
        [
            order(1, tags={"demo.tenant": "acme", "app.zone": "b"}),
            order(2, tags={"demo.tenant": "acme"}, kind="other"),
            order(3, lane="side"),
        ]
    )
    lease = await desk.take(execution_id(1))

    async def found(query: Query) -> list[ExecutionId]:
        return [row.id for row in (await desk.engine.read.find(query)).items]

    assert await found(Query(tags={"demo.tenant": "acme"})) == [execution_id(1), execution_id(2)]
    assert await found(Query(tags={"demo.tenant": "acme", "app.zone": "b"})) == [lease.id]
    assert await found(Query(kind="other", lane=LANE)) == [execution_id(2)]
    assert await found(Query(kind="other", lane="side")) == []
    assert await found(Query(states=(State.ACTIVE,))) == [lease.id]
    assert await found(Query(namespace="elsewhere")) == []
