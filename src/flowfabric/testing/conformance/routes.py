"""Routes: whoever claims gets what waits in the queues that it names, best first across them all,
and leaves everything else where it is."""

from __future__ import annotations

import random

import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Order, delay
from flowfabric.core.model import Lease
from flowfabric.core.operator import change_priority
from flowfabric.core.states import State
from flowfabric.store.protocol import Store
from flowfabric.testing.build import LANE, OTHER_TOKEN, ask, execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, contents, head, put, put_and_take, take

TASKS = tuple(f"task-{number}" for number in range(30))


def ids(leases: list[Lease]) -> list[ExecutionId]:
    return [lease.id for lease in leases]


def best_first(orders: list[Order]) -> list[ExecutionId]:
    """Of those that are made at one time."""
    return [each.id for each in sorted(orders, key=lambda each: (-each.priority, each.id))]


async def test_work_of_another_task_in_the_same_lane_is_left_alone(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(0, kind="mail", priority=9), order(1, kind="report"))
    leases = await store.claim(ask(clock.now_ms(), limit=10, tasks=("report",)))
    assert ids(leases) == [execution_id(1)]
    assert (await head(store, execution_id(0))).state is State.WAITING
    others = await store.claim(ask(clock.now_ms(), limit=10, tasks=("mail",), token=OTHER_TOKEN))
    assert ids(others) == [execution_id(0)]


async def test_a_route_that_only_begins_alike_is_another_one(
    store: Store, clock: VirtualClock
) -> None:
    await put(
        store,
        clock,
        order(0, lane="a", kind="b"),
        order(1, lane="a", kind="bb"),
        order(2, lane="a b", kind="b"),
        order(3, lane="a ", kind="b"),
    )
    for number, lane, kind in ((2, "a b", "b"), (1, "a", "bb"), (3, "a ", "b"), (0, "a", "b")):
        asked = ask(clock.now_ms(), limit=10, lanes=(lane,), tasks=(kind,), token=f"t-{number}")
        assert ids(await store.claim(asked)) == [execution_id(number)]


async def test_a_row_says_its_route(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, lane="the lane", kind="shop.mail"))
    assert lease.head.route == (await head(store, lease.id)).route == "the lane shop.mail"


async def test_a_named_execution_of_another_task_is_not_taken(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(0, kind="mail"))
    before = await contents(store)
    asked = ask(clock.now_ms(), tasks=("report", "mai"), only=execution_id(0))
    assert await store.claim(asked) == []
    assert await contents(store) == before
    await take(store, clock, tasks=("report", "mail"), only=execution_id(0))


async def test_what_comes_back_waits_where_it_waited(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, kind="mail"))
    await put(store, clock, order(1, kind="report"))
    await apply(store, clock, delay(lease, clock.now_ms(), None))
    asked = ask(clock.now_ms(), limit=10, tasks=("mail",), token=OTHER_TOKEN)
    assert ids(await store.claim(asked)) == [lease.id]


async def test_what_was_taken_together_goes_back_to_its_own_routes(
    store: Store, clock: VirtualClock
) -> None:
    tasks = TASKS[10:20]
    await put(store, clock, *(order(n, kind=task) for n, task in enumerate(tasks)))
    leases = await take(store, clock, len(tasks), tasks=tasks)
    assert [lease.head.route for lease in leases] == [f"{LANE} {task}" for task in tasks]
    await apply(store, clock, *(delay(lease, clock.now_ms(), None) for lease in leases))
    for number, task in enumerate(tasks):
        asked = ask(clock.now_ms(), limit=10, tasks=(task,), token=f"token-{number}")
        assert ids(await store.claim(asked)) == [execution_id(number)]


@pytest.mark.parametrize("limit", [1, 2, 7, 40, 200])
async def test_the_best_come_first_across_many_routes(
    store: Store, clock: VirtualClock, limit: int
) -> None:
    """However they are spread: evenly, all in one route, or the best of all in the last one."""
    chance = random.Random(limit)
    crowded = [0] * 20 + list(range(len(TASKS)))
    orders = [
        order(n, kind=TASKS[chance.choice(crowded)], priority=chance.choice((0, 0, 0, 1, 5)))
        for n in range(150)
    ]
    await put(store, clock, *orders)
    wanted = best_first(orders)
    found: list[ExecutionId] = []
    while leases := await store.claim(
        ask(clock.now_ms(), limit=limit, tasks=TASKS, token=f"token-{len(found)}")
    ):
        assert ids(leases) == wanted[len(found) : len(found) + limit]
        found += ids(leases)
    assert found == wanted


async def test_a_route_with_all_of_the_best_gives_all_of_them(
    store: Store, clock: VirtualClock
) -> None:
    """Few rows of each are looked at first; of this one there must be more."""
    rich = [order(n, kind=TASKS[17], priority=3) for n in range(60)]
    poor = [order(100 + n, kind=task) for n, task in enumerate(TASKS)]
    await put(store, clock, *poor, *rich)
    leases = await take(store, clock, 70, tasks=TASKS)
    assert ids(leases) == [each.id for each in rich] + best_first(poor)[:10]


async def test_what_others_hold_is_passed_over_in_every_route(
    store: Store, clock: VirtualClock
) -> None:
    orders = [order(n, kind=TASKS[n % len(TASKS)]) for n in range(90)]
    await put(store, clock, *orders)
    first = await take(store, clock, 25, tasks=TASKS[10:20])
    assert {lease.head.kind for lease in first} == set(TASKS[10:20])
    rest = await store.claim(ask(clock.now_ms(), limit=90, tasks=TASKS, token=OTHER_TOKEN))
    held = set(ids(first))
    assert ids(rest) == [each.id for each in orders if each.id not in held]


async def test_a_raised_priority_counts_across_routes(store: Store, clock: VirtualClock) -> None:
    rows = await put(store, clock, *(order(n, kind=TASKS[n]) for n in range(5)))
    await apply(store, clock, change_priority(rows[4], clock.now_ms(), 2))
    leases = await take(store, clock, 2, tasks=TASKS)
    assert ids(leases) == [execution_id(4), execution_id(0)]


async def test_lanes_and_tasks_are_asked_for_together(store: Store, clock: VirtualClock) -> None:
    lanes, tasks = ("a", "b"), ("x", "y")
    spread = [(lane, task) for lane in (*lanes, "c") for task in (*tasks, "z")]
    await put(store, clock, *(order(n, lane=a, kind=b) for n, (a, b) in enumerate(spread)))
    leases = await take(store, clock, 4, lanes=lanes, tasks=tasks)
    assert [(lease.head.lane, lease.head.kind) for lease in leases] == [
        (lane, task) for lane in lanes for task in tasks
    ]
    asked = ask(clock.now_ms(), limit=9, lanes=lanes, tasks=tasks, token=OTHER_TOKEN)
    assert await store.claim(asked) == []


async def test_a_route_that_nobody_used_has_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, kind="mail"))
    assert await store.claim(ask(clock.now_ms(), lanes=(LANE,), tasks=("new",), limit=5)) == []
    assert await store.claim(ask(clock.now_ms(), lanes=(LANE,), tasks=(), limit=5)) == []
