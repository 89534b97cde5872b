"""A transaction left open keeps vacuum from dead timers: looks for what is due pass them by.

What a look costs is counted in pages, by the server, for the statement that the look really runs.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import DueBatch, Execution
from flowfabric.core.timers import on_due
from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import execution_id, order, submissions
from tests.store.postgres.desk import Desk, Raw
from tests.store.postgres.rehearsal import count_pages

DEAD = 6_500
FEW_PAGES = 30
LONG_AGO_MS = 3_600_000
LEASED = """INSERT INTO execution
    (id, namespace, lane, kind, route, creator, created_ms, policy, state, reason, updated_ms,
     payload,
     due_ms)
    SELECT '{fp:9}:' || lpad(x::text, 12, '0'), 'default', 'main', 'greet', 'main greet', 'tests',
           x, '',
           'active', 'none', x, '', $1::bigint + x FROM generate_series(1, $2) AS x"""


class Scene(NamedTuple):
    """Leases that ended while somebody could still see their timers, and timers that are alive."""

    store: PostgresStore
    clock: VirtualClock
    raw: Raw
    old: Raw
    counted: list[int]

    async def bury(self, from_ms: int) -> None:
        """Timers of so many executions from this time on, one in each millisecond, are dead."""
        await self.raw.execute(LEASED, from_ms, DEAD)
        await self.old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM lane LIMIT 1")
        await self.raw.execute("UPDATE execution SET state = 'completed', due_ms = NULL")
        await self.raw.execute("VACUUM ANALYZE execution")

    async def delay(self, number: int, due_ms: int) -> None:
        now_ms = self.clock.now_ms()
        late = order(number, delay_until_ms=due_ms)
        await self.store.insert(submissions([late], now_ms), now_ms)

    async def look(self, limit: int = 5) -> DueBatch:
        """One look; `counted` gets its pages."""
        self.counted.clear()
        return await self.store.due(self.clock.now_ms(), limit)

    async def due(self) -> list[ExecutionId]:
        return [row.id for row in (await self.look()).rows]

    async def serve(self) -> list[ExecutionId]:
        now_ms = self.clock.now_ms()
        rows = [row for row in (await self.look(1)).rows if isinstance(row, Execution)]
        await self.store.apply([on_due(row, now_ms).transition for row in rows], now_ms)
        return [row.id for row in rows]


@pytest.fixture
async def scene(
    desk: Desk, store: PostgresStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    counted = count_pages(monkeypatch, "later.next_ms", {"execution_due"})
    return Scene(store, clock, await desk.raw(), await desk.raw(), counted)


async def test_one_look_walks_over_timers_that_are_dead_and_the_next_ones_begin_behind_them(
    scene: Scene,
) -> None:
    await scene.bury(scene.clock.now_ms() - LONG_AGO_MS)
    for number in range(3):
        await scene.delay(number, scene.clock.now_ms() + 1 + number)
    scene.clock.advance(3)
    assert await scene.serve() == [execution_id(0)]
    assert scene.counted[0] > 5 * FEW_PAGES
    for number in (1, 2):
        assert await scene.serve() == [execution_id(number)]
        assert scene.counted[0] < FEW_PAGES
    assert await scene.serve() == []
    assert scene.counted[0] < FEW_PAGES


async def test_leases_that_ended_early_are_not_walked_over_to_find_the_next_timer(
    scene: Scene,
) -> None:
    now_ms = scene.clock.now_ms()
    await scene.bury(now_ms)
    far_ms = now_ms + LONG_AGO_MS
    await scene.delay(0, far_ms)
    # The first look learns that nothing lies before it, the second what lies ahead.
    for _ in range(2):
        assert await scene.look() == DueBatch([], far_ms)
        assert scene.counted[0] > 5 * FEW_PAGES
    # While that is not looked for again, whoever asks is to come back soon.
    assert await scene.look() == DueBatch([], now_ms + DEAD // 1_000)
    assert scene.counted[0] < FEW_PAGES
    scene.clock.advance(DEAD // 1_000)
    assert await scene.look() == DueBatch([], far_ms)


async def test_a_timer_that_is_sooner_than_the_next_one_is_served_in_its_time(
    desk: Desk, scene: Scene
) -> None:
    now_ms = scene.clock.now_ms()
    await scene.bury(now_ms)
    await scene.delay(0, now_ms + LONG_AGO_MS)
    await scene.look()
    await scene.look()
    other = scene._replace(store=await desk.opened())
    await other.delay(1, now_ms + 2)
    assert (await scene.look()).rows == []
    assert scene.counted[0] < FEW_PAGES
    scene.clock.advance(2)
    assert await scene.due() == [execution_id(1)]


async def test_a_timer_that_was_written_as_passed_is_served_at_once_where_it_was_heard_of(
    scene: Scene,
) -> None:
    now_ms = scene.clock.now_ms()
    await scene.bury(now_ms - LONG_AGO_MS)
    assert await scene.due() == []
    late = order(0, deadline_ms=now_ms - LONG_AGO_MS + 1)
    await scene.store.insert(submissions([late], now_ms - LONG_AGO_MS), now_ms)
    assert await scene.due() == [execution_id(0)]


async def test_a_timer_that_nobody_heard_of_is_served_when_the_walk_has_paid_off(
    desk: Desk, scene: Scene
) -> None:
    now_ms = scene.clock.now_ms()
    await scene.bury(now_ms - LONG_AGO_MS)
    assert await scene.due() == []
    late = order(0, deadline_ms=now_ms - LONG_AGO_MS + 1)
    other = await desk.opened()
    await other.insert(submissions([late], now_ms - LONG_AGO_MS), now_ms)
    assert await scene.due() == []
    scene.clock.advance(DEAD // 1_000)
    assert await scene.due() == [execution_id(0)]


async def test_a_look_at_all_timers_to_come_leaves_no_floor_for_the_looks_of_today(
    scene: Scene,
) -> None:
    now_ms = scene.clock.now_ms()
    await scene.bury(now_ms - LONG_AGO_MS)
    await scene.store.due(10**14, 5)
    await scene.store.due(10**14, 5)
    await scene.delay(0, now_ms + 1)
    scene.clock.advance(1)
    assert await scene.due() == [execution_id(0)]
