"""A transaction that is left open keeps vacuum from dead index entries: claims pass them by.

What a claim costs is counted in pages, by the server, for the statement that the claim really runs.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from flowfabric.core.lifecycle import release
from flowfabric.core.model import Execution, Lease
from flowfabric.core.timers import on_due
from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import ask, execution_id, order, submissions
from tests.store.postgres.desk import Desk
from tests.store.postgres.rehearsal import count_pages

DEAD = 4_000
FLOOR_MS = DEAD // 1_000
FEW_PAGES = 40
WAITING = """INSERT INTO execution
    (id, namespace, lane, kind, route, creator, created_ms, policy, state, reason, updated_ms,
     payload)
    SELECT '{fp:9}:' || lpad(x::text, 12, '0'), 'default', 'main', 'greet', 'main greet', 'tests',
           x, '',
           'waiting', 'none', x, '' FROM generate_series(1, $1) AS x"""


class Scene(NamedTuple):
    """Many that ended while somebody could still see them waiting, and some that wait."""

    store: PostgresStore
    clock: VirtualClock
    counted: list[int]

    async def put(self, *numbers: int, lane: str = "main", priority: int = 0) -> None:
        now_ms = self.clock.now_ms()
        orders = [order(number, lane=lane, priority=priority) for number in numbers]
        await self.store.insert(submissions(orders, now_ms), now_ms)

    async def take(self, limit: int = 1, lanes: tuple[str, ...] = ("main",)) -> list[Lease]:
        """One claim; `counted` gets its pages, statement by statement."""
        self.counted.clear()
        return await self.store.claim(ask(self.clock.now_ms(), limit=limit, lanes=lanes))

    async def give_back(self, lease: Lease) -> None:
        now_ms = self.clock.now_ms()
        await self.store.apply([release(lease, now_ms)], now_ms)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pages of every claim, statement by statement."""
    return count_pages(monkeypatch, "peeked AS", {"execution_ready"})


@pytest.fixture
async def scene(desk: Desk, store: PostgresStore, clock: VirtualClock, counted: list[int]) -> Scene:
    raw, old = await desk.raw(), await desk.raw()
    await raw.execute(WAITING, DEAD)
    await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM execution LIMIT 1")
    await raw.execute("UPDATE execution SET state = 'completed'")
    await raw.execute("VACUUM ANALYZE execution")
    return Scene(store, clock, counted)


def numbers(leases: list[Lease]) -> list[str]:
    return [lease.id for lease in leases]


def ids(*of: int) -> list[str]:
    return [execution_id(number) for number in of]


async def test_one_claim_walks_over_what_is_dead_and_the_next_ones_begin_behind_it(
    scene: Scene,
) -> None:
    await scene.put(*range(9))
    assert numbers(await scene.take()) == ids(0)
    assert scene.counted[0] > 5 * FEW_PAGES
    for number in range(1, 9):
        assert numbers(await scene.take()) == ids(number)
        assert len(scene.counted) == 1
        assert scene.counted[0] < FEW_PAGES


async def test_a_claim_of_several_lanes_passes_by_what_is_dead_in_the_lane_it_got_work_from(
    scene: Scene,
) -> None:
    await scene.put(0, 2, 4)
    await scene.put(1, 3, 5, lane="other")
    assert numbers(await scene.take(2, ("main", "other"))) == ids(0, 1)
    assert scene.counted[0] > 5 * FEW_PAGES
    assert numbers(await scene.take(3, ("main", "other"))) == ids(2, 3, 4)
    assert scene.counted[0] < FEW_PAGES


async def test_work_that_comes_back_is_first_again_when_the_walk_has_paid_off(
    scene: Scene,
) -> None:
    await scene.put(*range(9))
    first, _ = [*await scene.take(), *await scene.take()]
    await scene.give_back(first)
    assert numbers(await scene.take()) == ids(2)
    scene.clock.advance(FLOOR_MS)
    assert numbers(await scene.take()) == ids(0)


async def test_work_that_comes_back_is_taken_at_once_when_there_is_nothing_else(
    scene: Scene,
) -> None:
    await scene.put(0, 1)
    first, _ = [*await scene.take(), *await scene.take()]
    await scene.give_back(first)
    assert numbers(await scene.take()) == ids(0)
    assert await scene.take() == []


async def test_more_urgent_work_is_first_when_the_walk_has_paid_off_and_less_urgent_is_not_lost(
    scene: Scene,
) -> None:
    await scene.put(*range(3))
    assert numbers(await scene.take()) == ids(0)
    await scene.put(7, priority=5)
    await scene.put(8, priority=-5)
    assert numbers(await scene.take()) == ids(1)
    scene.clock.advance(FLOOR_MS)
    assert numbers(await scene.take()) == ids(7)
    assert numbers(await scene.take()) == ids(2)
    assert numbers(await scene.take()) == ids(8)


async def test_delayed_work_is_found_wherever_its_place_is(scene: Scene) -> None:
    now_ms = scene.clock.now_ms()
    late = order(0, delay_until_ms=now_ms + 1)
    await scene.store.insert(submissions([late], now_ms), now_ms)
    scene.clock.advance(1)
    await scene.put(1)
    assert numbers(await scene.take()) == ids(1)
    [head] = (await scene.store.due(now_ms + 1, 5)).rows
    assert isinstance(head, Execution)
    await scene.store.apply([on_due(head, now_ms + 1).transition], now_ms + 1)
    assert numbers(await scene.take()) == ids(0)
