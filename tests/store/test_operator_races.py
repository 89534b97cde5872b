"""Races between people, sweepers and claimers, with real concurrency.

Each looks, decides and commits; whoever was slower decides again from what is there now.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from flowfabric.core.model import Feed, Lease
from flowfabric.core.operator import (
    Source,
    cancel,
    change_priority,
    replay,
)
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.store import Store
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import ask, order, policy
from flowfabric.testing.conformance.steps import (
    ALL,
    apply,
    head,
    in_threads,
    put,
)
from tests.store.racing import (
    decide,
    paused,
    released,
    together,
    until,
    waits_for_others,
    without_budget,
)


async def test_pausing_a_blocked_child_does_not_let_it_run_early(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    now_ms = clock.now_ms()
    child = (await put(store, clock, order(0)))[0]
    await apply(store, clock, waits_for_others(child, now_ms))
    over = threading.Event()
    leases: list[Lease] = []

    async def pause_and_go_on() -> None:
        for _ in range(30):
            await decide(contenders[0], clock, child.id, paused)
            await decide(contenders[0], clock, child.id, released)
        await decide(contenders[0], clock, child.id, partial(waits_for_others, is_open=False))

    async def claim_meanwhile() -> None:
        is_last = False
        while not leases and not is_last:
            is_last = over.is_set()
            leases.extend(await contenders[1].claim(ask(now_ms, token="token-2")))

    await together(until(over, pause_and_go_on), claim_meanwhile)
    # A claim does not touch these facts: they are as they were when the row was taken.
    assert [(lease.head.paused, lease.head.deps_open) for lease in leases] == [(False, False)]


async def test_a_replay_decided_on_an_earlier_end_is_refused(
    store: Store, clock: VirtualClock
) -> None:
    """The row looks the same again in everything but its revision."""
    now_ms = clock.now_ms()
    row = (await put(store, clock, order(0)))[0]
    await apply(store, clock, cancel(row, now_ms, "", source=Source.OPERATOR))
    first_end = await head(store, row.id)
    await apply(store, clock, replay(first_end, now_ms))
    again = await head(store, row.id)
    await apply(store, clock, cancel(again, now_ms, "", source=Source.OPERATOR))
    second_end = await head(store, row.id)
    same = ("state", "epoch", "due_ms", "attempt", "updated_ms")
    assert [getattr(second_end, name) for name in same] == [
        getattr(first_end, name) for name in same
    ]

    assert not await store.commit(Changeset([replay(first_end, now_ms)]), now_ms)

    assert (await head(store, row.id)).replay_count == 1


async def test_every_replay_that_was_done_is_counted(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    now_ms = clock.now_ms()
    many = policy(replays=1_000_000)
    row = (await put(store, clock, order(0, policy=many)))[0]
    done: list[int] = []

    async def replay_often(number: int) -> None:
        for _ in range(25):
            seen = await head(contenders[number], row.id)
            if seen.state is State.CANCELLED:
                changes = Changeset([replay(seen, now_ms)])
            else:
                changes = Changeset([cancel(seen, now_ms, "", source=Source.OPERATOR)])
            if await contenders[number].commit(changes, now_ms):
                done.extend([number] * (seen.state is State.CANCELLED))

    await asyncio.to_thread(in_threads, 4, replay_often)
    assert (await head(store, row.id)).replay_count == len(done) > 0


async def test_a_change_of_priority_is_not_lost_to_a_sweeper(
    store: Store, clock: VirtualClock, contenders: list[Store]
) -> None:
    row = (await put(store, clock, order(0)))[0]

    async def change_often() -> None:
        for wanted in range(1, 41):
            await decide(contenders[0], clock, row.id, partial(change_priority, priority=wanted))

    async def block_often() -> None:
        for _ in range(20):
            await decide(contenders[1], clock, row.id, without_budget)
            await decide(contenders[1], clock, row.id, released)

    await together(change_often, block_often)
    assert (await head(store, row.id)).priority == 40
    changes = [e.detail for e in await store.tail(Feed(limit=ALL)) if e.kind == "priority_changed"]
    assert [(change["from"], change["to"]) for change in changes] == [
        (number, number + 1) for number in range(40)
    ]


async def test_a_patch_that_does_not_name_the_priority_leaves_it(
    store: Store, clock: VirtualClock
) -> None:
    """Decided before the change of priority, refused after it, decided again and written."""
    now_ms = clock.now_ms()
    seen = (await put(store, clock, order(0, priority=5)))[0]
    sweeper = without_budget(seen, now_ms)
    await apply(store, clock, change_priority(seen, now_ms, 9))
    assert not await store.commit(Changeset([sweeper]), now_ms)
    again = without_budget(await head(store, seen.id), now_ms)
    assert await store.commit(Changeset([again]), now_ms)
    row = await head(store, seen.id)
    assert (row.state, row.priority) == (State.BLOCKED_BUDGET, 9)
