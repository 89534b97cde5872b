"""Claims: which rows are taken, in which order, and which are left to others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure, complete, delay, fail, progress
from flowfabric.core.model import Event, Feed, Lease, Writer
from flowfabric.core.operator import (
    ExpireReason,
    Source,
    block,
    cancel,
    change_priority,
    expire,
    revoke,
)
from flowfabric.core.states import Reason, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Seen, Transition
from flowfabric.store.protocol import Store
from flowfabric.testing.build import OTHER_TOKEN, THIRD_TOKEN, TTL_MS, ask, execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, contents, head, put, put_and_take, take


def ids(leases: list[Lease]) -> list[ExecutionId]:
    return [lease.id for lease in leases]


async def put_in_order(store: Store, clock: VirtualClock, *lanes: str) -> list[ExecutionId]:
    """Rows that differ in priority, age and id; answers their ids, best first."""
    lane = [lanes[number % len(lanes)] for number in range(12)]
    for number in (5, 4):
        await put(store, clock, order(number, priority=1, lane=lane[number]))
    clock.advance(1)
    await put(
        store,
        clock,
        *(order(number, priority=1, lane=lane[number]) for number in (3, 2)),
        *(order(number, lane=lane[number]) for number in (1, 0)),
        *(order(number, priority=9_000, lane=lane[number]) for number in (9, 8)),
        *(order(number, priority=10, lane=lane[number]) for number in (11, 10)),
    )
    return [execution_id(number) for number in (8, 9, 10, 11, 4, 5, 2, 3, 0, 1)]


async def test_a_claim_keeps_when_the_first_attempt_started(
    store: Store, clock: VirtualClock
) -> None:
    """Whatever the number, also zero."""
    (row,) = await put(store, clock, order(0))
    guard = Seen(row.rev, row.state)
    await apply(store, clock, Transition(row.id, guard, Writer.CLAIM, {"started_ms": 0}))
    (lease,) = await take(store, clock)
    assert lease.head.started_ms == 0
    assert await head(store, lease.id) == lease.head


async def test_the_best_come_first_in_one_batch(store: Store, clock: VirtualClock) -> None:
    best = await put_in_order(store, clock, "main")
    assert ids(await take(store, clock, len(best))) == best


async def test_the_best_come_first_one_by_one(store: Store, clock: VirtualClock) -> None:
    best = await put_in_order(store, clock, "main")
    taken = [(await take(store, clock, token=f"token-{n}"))[0].id for n in range(len(best))]
    assert taken == best


async def test_lanes_are_merged_best_first(store: Store, clock: VirtualClock) -> None:
    lanes = ("a", "b", "c")
    best = await put_in_order(store, clock, *lanes)
    first = await take(store, clock, 4, lanes=lanes)
    rest = await take(store, clock, len(best) - 4, lanes=lanes, token=OTHER_TOKEN)
    assert ids(first) + ids(rest) == best


async def test_no_more_than_the_limit_is_taken(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, *(order(number) for number in range(5)))
    assert ids(await take(store, clock, 2)) == [execution_id(0), execution_id(1)]
    assert len(await store.claim(ask(clock.now_ms(), limit=10, token=OTHER_TOKEN))) == 3
    assert await store.claim(ask(clock.now_ms(), limit=10, token=THIRD_TOKEN)) == []


async def test_a_limit_of_nothing_takes_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    assert await store.claim(ask(clock.now_ms(), limit=0)) == []
    assert await store.claim(ask(clock.now_ms(), lanes=())) == []
    assert await store.claim(ask(clock.now_ms(), limit=0, lanes=("main", "other"))) == []
    assert (await head(store, execution_id(0))).state is State.WAITING


async def test_other_lanes_are_left_alone(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, lane="main"), order(1, lane="mai"), order(2, lane="main2"))
    leases = await store.claim(ask(clock.now_ms(), limit=10, lanes=("main", "unknown")))
    assert ids(leases) == [execution_id(0)]


async def test_other_namespaces_are_left_alone(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, namespace="other"), order(1), order(2, namespace="Default"))
    assert ids(await store.claim(ask(clock.now_ms(), limit=10))) == [execution_id(1)]


async def test_a_changed_priority_changes_the_order(store: Store, clock: VirtualClock) -> None:
    rows = await put(store, clock, *(order(number) for number in range(3)))
    await apply(store, clock, change_priority(rows[2], clock.now_ms(), 5))
    leases = await take(store, clock, 3)
    assert ids(leases) == [execution_id(number) for number in (2, 0, 1)]


async def test_a_claim_leaves_one_line_for_each_row(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0), order(1))
    start = (await store.tail(Feed()))[-1].cursor
    clock.advance(7)
    await take(store, clock, 2, worker="w-7")
    events = sorted(await store.tail(Feed(after=start)), key=lambda event: event.execution)
    assert [event.execution for event in events] == [execution_id(0), execution_id(1)]
    for event in events:
        assert _line(event) == ("claimed", clock.now_ms(), State.ACTIVE, 0, 1)
        assert event.detail == {"worker": "w-7", "kind": "initial"}


def _line(event: Event) -> tuple[str, int, State, int, int]:
    return (event.kind, event.at_ms, event.state, event.attempt, event.epoch)


async def test_only_one_named_execution_is_taken(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, priority=9), order(1), order(2))
    asked = ask(clock.now_ms(), limit=10, only=execution_id(1))
    assert ids(await store.claim(asked)) == [execution_id(1)]
    assert (await head(store, execution_id(0))).state is State.WAITING


async def test_a_named_execution_that_does_not_fit_is_not_taken(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    await put(store, clock, order(0), order(1, delay_until_ms=now_ms + 1))
    before = await contents(store)
    for asked in (
        ask(now_ms, only=execution_id(0), namespace="other"),
        ask(now_ms, only=execution_id(0), lanes=("second",)),
        ask(now_ms, only=execution_id(1)),
        ask(now_ms, only=execution_id(2)),
    ):
        assert await store.claim(asked) == []
    assert await contents(store) == before


async def nobody_gets_it(store: Store, clock: VirtualClock) -> bool:
    """Neither by its lane nor by its name."""
    by_lane = await store.claim(ask(clock.now_ms(), limit=10, token=OTHER_TOKEN))
    by_name = await store.claim(ask(clock.now_ms(), only=execution_id(0), token=OTHER_TOKEN))
    return by_lane == by_name == []


@pytest.mark.parametrize(
    "reason",
    [
        Reason.PAUSED_BY_OPERATOR,
        Reason.PAUSED_BY_POLICY,
        Reason.WAITING_FOR_BUDGET,
        Reason.WAITING_FOR_QUOTA,
        Reason.WAITING_FOR_CAPABLE_WORKER,
    ],
)
async def test_what_is_blocked_is_not_taken(
    store: Store, clock: VirtualClock, reason: Reason
) -> None:
    row = (await put(store, clock, order(0)))[0]
    await apply(store, clock, block(row, clock.now_ms(), reason))
    assert await nobody_gets_it(store, clock)


ENDS: dict[str, Callable[[Lease, int], Transition | None]] = {
    "held": lambda lease, now_ms: progress(lease, now_ms, 1, None),
    "delayed": lambda lease, now_ms: delay(lease, now_ms, now_ms + 1_000),
    "completed": lambda lease, now_ms: complete(lease, now_ms, b""),
    "failed": lambda lease, now_ms: fail(lease, now_ms, Failure("broke")),
    "cancelled": lambda lease, now_ms: cancel(lease.head, now_ms, "", source=Source.OPERATOR),
    "expired": lambda lease, now_ms: expire(lease.head, now_ms, ExpireReason.ATTEMPT_TIMEOUT),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_what_is_held_delayed_or_over_is_not_taken(
    store: Store, clock: VirtualClock, end: Callable[[Lease, int], Transition | None]
) -> None:
    lease = await put_and_take(store, clock, order(0))
    transition = end(lease, clock.now_ms())
    assert transition is not None
    await apply(store, clock, transition)
    assert await nobody_gets_it(store, clock)


@pytest.mark.parametrize("lost", [State.ORPHANED, State.REVOKED])
async def test_what_lost_its_lease_is_taken_again(
    store: Store, clock: VirtualClock, lost: State
) -> None:
    lease = await put_and_take(store, clock, order(0))
    if lost is State.ORPHANED:
        clock.advance(TTL_MS)
        await apply(store, clock, on_due(lease.head, clock.now_ms()).transition)
    else:
        revoked = revoke(lease.head, clock.now_ms(), "operator")
        assert isinstance(revoked, Transition)
        await apply(store, clock, revoked)
    assert (await head(store, lease.id)).state is lost
    assert ids(await take(store, clock, token=OTHER_TOKEN)) == [lease.id]


async def test_what_comes_back_keeps_its_place_in_the_order(
    store: Store, clock: VirtualClock
) -> None:
    """An old execution that was given back goes before a younger one."""
    lease = await put_and_take(store, clock, order(5))
    clock.advance(10)
    await put(store, clock, order(0))
    await apply(store, clock, delay(lease, clock.now_ms(), None))
    leases = await take(store, clock, 2, token=OTHER_TOKEN)
    assert ids(leases) == [execution_id(5), execution_id(0)]
