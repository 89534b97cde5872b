"""A transaction that is left open keeps vacuum from lines that are done: dispatchers pass them by.

What a turn costs is counted in pages, by the server, for the statement that the turn really runs.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import Line
from flowfabric.core.flow.views import Pending
from flowfabric.core.ids import FlowId
from flowfabric.core.transition import Changeset
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.postgres.floors import ON_ITS_WAY_MS
from flowfabric.testing import VirtualClock
from flowfabric.testing.conformance.flow_steps import add_lines, flow_of, ids, put_flow, take_flows
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.flows import flow_id, plan
from tests.store.postgres.desk import Desk
from tests.store.postgres.rehearsal import count_pages

DEAD = 3_500
FLOOR_MS = DEAD // 1_000
FEW_PAGES = 60
LINES = """INSERT INTO line SELECT md5(x::text), x, x::text, 'ended', '', 0, '', 0, 0
    FROM generate_series(1, $1) AS x"""
INDEXES = {"line_pkey", "line_at", "flow_due"}
FLOWS = sorted(flow_id(number) for number in range(1, 5))


class Scene(NamedTuple):
    """Lines that were done while somebody could still see them, and flows with something to do."""

    store: PostgresStore
    clock: VirtualClock
    counted: list[int]

    def line(self, number: int, flow: FlowId, *, next_try_ms: int = 0) -> Line:
        return line(number, flow, at_ms=self.clock.now_ms(), next_try_ms=next_try_ms)

    async def owe(self, *flows: FlowId, number: int = 1, next_try_ms: int = 0) -> None:
        for flow in flows:
            mine = self.line(number, flow, next_try_ms=next_try_ms)
            await add_lines(self.store, self.clock, mine)

    async def turn(self, limit: int = 10, *, lease_ms: int = 1_000) -> list[Pending]:
        """`counted` gets its pages, statement by statement."""
        self.counted.clear()
        return await take_flows(self.store, self.clock, limit=limit, lease_ms=lease_ms)

    async def finish(self, taken: Pending) -> None:
        patch = FlowPatch(taken.flow.id, taken.flow.rev, {"busy_until_ms": 0})
        changes = Changeset(flows=[patch], done=taken.lines)
        assert await self.store.commit(changes, self.clock.now_ms())

    async def serve(self) -> list[FlowId]:
        taken = await self.turn()
        for each in taken:
            await self.finish(each)
        return ids(taken)


@pytest.fixture
async def scene(
    desk: Desk, store: PostgresStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    raw, old = await desk.raw(), await desk.raw()
    for flow in FLOWS:
        await put_flow(store, clock, plan("a", flow=flow))
    await raw.execute(LINES, DEAD)
    await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM line LIMIT 1")
    await raw.execute("DELETE FROM line")
    await raw.execute("VACUUM ANALYZE line")
    return Scene(store, clock, count_pages(monkeypatch, "peeked AS", INDEXES))


async def test_one_turn_walks_over_what_is_done_and_the_next_ones_begin_behind_it(
    scene: Scene,
) -> None:
    await scene.owe(*FLOWS[:2])
    assert await scene.serve() == FLOWS[:2]
    assert scene.counted[0] > 5 * FEW_PAGES
    # With something to do, and without.
    await scene.owe(*FLOWS[2:])
    assert await scene.serve() == FLOWS[2:]
    assert len(scene.counted) == 1
    assert scene.counted[0] < FEW_PAGES
    assert await scene.serve() == []
    assert len(scene.counted) == 1
    assert scene.counted[0] < FEW_PAGES


async def test_the_timer_of_a_flow_is_served_in_its_time(scene: Scene) -> None:
    assert await scene.turn() == []
    due_ms = scene.clock.now_ms() + 1
    flow = await flow_of(scene.store, FLOWS[1])
    timed = Changeset(flows=[FlowPatch(flow.id, flow.rev, {"due_ms": due_ms})])
    assert await scene.store.commit(timed, scene.clock.now_ms())
    assert await scene.turn() == []
    scene.clock.advance(1)
    assert ids(await scene.turn()) == [FLOWS[1]]
    assert scene.counted[0] < FEW_PAGES


async def test_a_line_that_is_tried_again_later_is_found_when_the_walk_has_paid_off(
    scene: Scene,
) -> None:
    await scene.owe(FLOWS[0], next_try_ms=scene.clock.now_ms() + ON_ITS_WAY_MS + 2)
    scene.clock.advance(ON_ITS_WAY_MS + 1)
    assert await scene.turn() == []
    scene.clock.advance(1)
    assert await scene.turn() == []
    scene.clock.advance(FLOOR_MS - 1)
    assert ids(await scene.turn()) == FLOWS[:1]


async def test_one_flow_with_more_lines_than_a_turn_looks_at_keeps_no_other_back(
    scene: Scene,
) -> None:
    assert await scene.turn() == []
    for number in range(20):
        await scene.owe(FLOWS[3], number=number)
    scene.clock.advance(1)
    await scene.owe(FLOWS[0])
    assert ids(await scene.turn(2)) == [FLOWS[3], FLOWS[0]]
    assert len(scene.counted) == 2


async def test_what_a_full_turn_left_is_taken_by_the_next_one(scene: Scene) -> None:
    assert await scene.turn() == []
    await scene.owe(*reversed(FLOWS))
    assert ids(await scene.turn(2)) == FLOWS[:2]
    assert ids(await scene.turn(2)) == FLOWS[2:]
    assert scene.counted[0] < FEW_PAGES
