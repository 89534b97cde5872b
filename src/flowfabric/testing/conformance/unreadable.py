"""Rows that cannot be read: they are moved out of the way and keep nobody back."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Execution, Feed, Malformed, Query, Want
from flowfabric.core.operator import set_tags
from flowfabric.core.timers import POISON_LIMIT, on_due, poisoned
from flowfabric.core.transition import Applied, Changeset
from flowfabric.errors import Corrupt
from flowfabric.store.protocol import Store
from flowfabric.testing.build import OTHER_TOKEN, ask, execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import (
    FAR_MS,
    Corrupter,
    apply,
    head,
    put,
    put_and_take,
)


async def put_one_bad(store: Store, clock: VirtualClock, corrupter: Corrupter) -> list[ExecutionId]:
    """Three delayed rows; the second cannot be read and is due before the third."""
    now_ms = clock.now_ms()
    rows = await put(store, clock, *(order(n, delay_until_ms=now_ms + 1 + n) for n in range(3)))
    await corrupter(rows[1].id)
    clock.advance(10)
    return [row.id for row in rows]


async def bad_one(store: Store, now_ms: int) -> Malformed:
    rows = (await store.due(now_ms, 10)).rows
    return next(row for row in rows if isinstance(row, Malformed))


async def test_an_unreadable_row_keeps_no_other_from_being_due(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    ids = await put_one_bad(store, clock, corrupter)
    rows = (await store.due(clock.now_ms(), 10)).rows
    assert [row.id for row in rows] == ids
    assert [isinstance(row, Execution) for row in rows] == [True, False, True]
    bad = rows[1]
    assert isinstance(bad, Malformed)
    assert (bad.rev, bad.failures) == (1, 0)
    assert bad.problem


async def test_an_unreadable_row_is_moved_out_of_the_way(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    ids = await put_one_bad(store, clock, corrupter)
    bad = await bad_one(store, clock.now_ms())
    moved = poisoned(bad, clock.now_ms(), bad.problem)
    await apply(store, clock, moved)
    assert [row.id for row in (await store.due(clock.now_ms(), 10)).rows] == [ids[0], ids[2]]
    due_ms = moved.patch["due_ms"]
    assert isinstance(due_ms, int)
    again = await bad_one(store, due_ms)
    assert (again.id, again.rev, again.failures) == (ids[1], 2, 1)


async def test_an_unreadable_row_is_parked_in_the_end(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    ids = await put_one_bad(store, clock, corrupter)
    for _ in range(POISON_LIMIT):
        bad = await bad_one(store, FAR_MS)
        await apply(store, clock, poisoned(bad, clock.now_ms(), bad.problem))
    assert [row.id for row in (await store.due(FAR_MS, 10)).rows] == [ids[0], ids[2]]
    line = (await store.tail(Feed()))[-1]
    assert (line.execution, line.kind) == (ids[1], "parked")
    assert line.detail["problem"]


async def test_a_stale_look_at_an_unreadable_row_is_refused(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    await put_one_bad(store, clock, corrupter)
    bad = await bad_one(store, clock.now_ms())
    await apply(store, clock, poisoned(bad, clock.now_ms(), bad.problem))
    answers = await store.apply([poisoned(bad, clock.now_ms(), bad.problem)], clock.now_ms())
    assert [isinstance(answer, Applied) for answer in answers] == [False]
    assert (await bad_one(store, FAR_MS)).failures == 1


async def test_an_unreadable_row_is_moved_together_with_a_refused_one(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    ids = await put_one_bad(store, clock, corrupter)
    bad = await bad_one(store, clock.now_ms())
    first, third = await head(store, ids[0]), await head(store, ids[2])
    stale = msgspec.structs.replace(first, rev=first.rev + 1)
    answers = await store.apply(
        [
            on_due(stale, clock.now_ms()).transition,
            poisoned(bad, clock.now_ms(), bad.problem),
            on_due(third, clock.now_ms()).transition,
        ],
        clock.now_ms(),
    )
    assert [isinstance(answer, Applied) for answer in answers] == [False, True, True]
    assert (await bad_one(store, FAR_MS)).failures == 1


async def test_an_unreadable_row_keeps_no_other_from_being_claimed(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    await put(store, clock, *(order(n) for n in range(3)))
    await corrupter(execution_id(1))
    leases = await store.claim(ask(clock.now_ms(), limit=10))
    assert [lease.id for lease in leases] == [execution_id(0), execution_id(2)]
    by_name = ask(clock.now_ms(), only=execution_id(1), token=OTHER_TOKEN)
    assert await store.claim(by_name) == []


async def test_an_unreadable_row_keeps_no_other_from_being_finished(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    good = await put_and_take(store, clock, order(0))
    bad = await put_and_take(store, clock, order(1))
    await corrupter(bad.id)
    now_ms = clock.now_ms()
    both = [complete(lease, now_ms, b"") for lease in (bad, good)]
    answers = await store.apply(both, now_ms)
    assert [isinstance(answer, Applied) for answer in answers] == [False, True]


async def test_a_changeset_about_an_unreadable_row_is_refused(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    lease = await put_and_take(store, clock, order(0))
    row = (await put(store, clock, order(1)))[0]
    await corrupter(lease.id)
    now_ms = clock.now_ms()
    both = Changeset([complete(lease, now_ms, b""), set_tags(row, now_ms, {"a.b": "c"})])
    assert not await store.commit(both, now_ms)
    assert await head(store, row.id) == row


async def test_reading_an_unreadable_row_says_which_it_is(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    await put(store, clock, order(0), order(1))
    await corrupter(execution_id(1))
    with pytest.raises(Corrupt) as refused:
        await store.load(Want(ids=[execution_id(0), execution_id(1)]))
    assert refused.value.details == {"execution": public_id(execution_id(1))}
    with pytest.raises(Corrupt) as refused:
        await store.endings([execution_id(0), execution_id(1)])
    assert refused.value.details == {"execution": public_id(execution_id(1))}
    with pytest.raises(Corrupt) as refused:
        await store.find(Query())
    assert refused.value.details == {"execution": public_id(execution_id(1))}
    assert (await head(store, execution_id(0))).id == execution_id(0)
