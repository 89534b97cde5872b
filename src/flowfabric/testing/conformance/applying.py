"""Applying many transitions: each by itself, each column only if it is named."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.ids import public_id
from flowfabric.core.lifecycle import Failure, complete, delay, fail, progress, release, renew
from flowfabric.core.model import Lease, Value, Writer
from flowfabric.core.operator import Source, block, cancel, change_priority, replay
from flowfabric.core.states import Reason, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Applied, Rejected, Seen, Transition, patched
from flowfabric.errors import IllegalTransition
from flowfabric.store.protocol import Store
from flowfabric.testing.build import TTL_MS, execution_id, order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import (
    apply,
    contents,
    head,
    loaded,
    put,
    put_and_take,
    take,
)


async def put_and_take_many(store: Store, clock: VirtualClock, count: int) -> list[Lease]:
    await put(store, clock, *(order(n, policy=policy(retries=2)) for n in range(count)))
    return await take(store, clock, count)


def stale(lease: Lease) -> Lease:
    return Lease(msgspec.structs.replace(lease.head, lease_token="somebody else's"))  # noqa: S106


async def test_no_transitions_are_no_answers(store: Store, clock: VirtualClock) -> None:
    assert await store.apply([], clock.now_ms()) == []


async def test_answers_come_in_the_order_of_the_transitions(
    store: Store, clock: VirtualClock
) -> None:
    leases = await put_and_take_many(store, clock, 6)
    now_ms = clock.now_ms()
    shuffled = [leases[n] for n in (3, 0, 5, 1, 4, 2)]
    answers = await store.apply([complete(lease, now_ms, b"") for lease in shuffled], now_ms)
    assert answers == [Applied(lease.id) for lease in shuffled]


async def test_transitions_of_every_shape_go_together(store: Store, clock: VirtualClock) -> None:
    leases = await put_and_take_many(store, clock, 8)
    waiting = (await put(store, clock, order(8)))[0]
    now_ms = clock.advance(5)
    together = [
        complete(leases[0], now_ms, b"r"),
        fail(leases[1], now_ms, Failure("broke", fatal=True)),
        fail(leases[2], now_ms, Failure("again")),
        delay(leases[3], now_ms, now_ms + 100),
        release(leases[4], now_ms),
        renew(leases[5], now_ms, TTL_MS),
        progress(leases[6], now_ms, 10, "ten"),
        cancel(leases[7].head, now_ms, "no", source=Source.OPERATOR),
        change_priority(waiting, now_ms, 7),
    ]
    before = {row.id: row for row in (*(lease.head for lease in leases), waiting)}

    await apply(store, clock, *together)

    for transition in together:
        after = await head(store, transition.id)
        assert after == patched(before[transition.id], transition.patch)


async def test_a_refused_member_spoils_no_other(store: Store, clock: VirtualClock) -> None:
    leases = await put_and_take_many(store, clock, 5)
    now_ms = clock.now_ms()
    mixed = [complete(leases[n] if n != 2 else stale(leases[n]), now_ms, b"r") for n in range(5)]

    answers = await store.apply(mixed, now_ms)

    assert answers == [
        Rejected(lease.id, lease.head) if n == 2 else Applied(lease.id)
        for n, lease in enumerate(leases)
    ]
    for n, lease in enumerate(leases):
        found = await loaded(store, lease.id)
        results = [attempt.result for attempt in found.attempts]
        done = (State.COMPLETED, [b"r"]) if n != 2 else (State.ACTIVE, [])
        assert (found.head.state, results) == done


async def test_a_refused_member_leaves_nothing_behind(store: Store, clock: VirtualClock) -> None:
    leases = await put_and_take_many(store, clock, 2)
    before = await contents(store)
    wrong = [complete(stale(lease), clock.now_ms(), b"r") for lease in leases]
    answers = await store.apply(wrong, clock.now_ms())
    assert answers == [Rejected(lease.id, lease.head) for lease in leases]
    assert await contents(store) == before


async def test_the_row_shown_is_the_one_that_refused(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    await apply(store, clock, cancel(lease.head, clock.now_ms(), "no", source=Source.OPERATOR))
    current = await head(store, lease.id)
    answers = await store.apply([complete(lease, clock.now_ms(), b"")], clock.now_ms())
    assert answers == [Rejected(lease.id, current)]
    assert (current.state, current.epoch, current.outcome_detail) == (State.CANCELLED, 2, "no")


async def test_an_absent_row_is_refused_without_a_row(store: Store, clock: VirtualClock) -> None:
    leases = await put_and_take_many(store, clock, 2)
    ghost = Lease(msgspec.structs.replace(leases[0].head, id=execution_id(99)))
    now_ms = clock.now_ms()
    mixed = [complete(lease, now_ms, b"") for lease in (leases[0], ghost, leases[1])]
    assert await store.apply(mixed, now_ms) == [
        Applied(leases[0].id),
        Rejected(ghost.id, None),
        Applied(leases[1].id),
    ]


async def test_guards_of_both_kinds_are_refused_in_one_call(
    store: Store, clock: VirtualClock
) -> None:
    leases = await put_and_take_many(store, clock, 4)
    now_ms = clock.now_ms()
    old = msgspec.structs.replace(leases[2].head, rev=1)
    mixed = [
        complete(leases[0], now_ms, b""),
        complete(stale(leases[1]), now_ms, b""),
        cancel(old, now_ms, "", source=Source.OPERATOR),
        cancel(leases[3].head, now_ms, "", source=Source.OPERATOR),
    ]
    answers = await store.apply(mixed, now_ms)
    assert [isinstance(answer, Applied) for answer in answers] == [True, False, False, True]


async def test_two_changes_of_one_record_are_refused_whole(
    store: Store, clock: VirtualClock
) -> None:
    leases = await put_and_take_many(store, clock, 2)
    now_ms = clock.now_ms()
    before = await contents(store)
    doubled = [
        complete(leases[0], now_ms, b""),
        progress(leases[1], now_ms, 1, None),
        complete(leases[1], now_ms, b""),
    ]
    with pytest.raises(IllegalTransition, match=public_id(leases[1].id)):
        await store.apply(doubled, now_ms)
    assert await contents(store) == before


async def test_a_column_that_is_not_named_is_not_written(store: Store, clock: VirtualClock) -> None:
    """A decision from an old look must not undo what others wrote beside it."""
    lease = await put_and_take(store, clock, order(0))
    await apply(store, clock, progress(lease, clock.now_ms(), 10, "starting"))
    await apply(store, clock, renew(lease, clock.advance(50), TTL_MS))
    await apply(store, clock, progress(lease, clock.advance(50), 75, None))
    row = await head(store, lease.id)
    assert row == msgspec.structs.replace(
        lease.head,
        rev=lease.head.rev + 3,
        progress_pct=75,
        progress_message="starting",
        lease_until_ms=lease.until_ms + 50,
        renewed_ms=clock.now_ms() - 50,
        updated_ms=clock.now_ms(),
    )


async def test_the_tokens_of_requests_stay_through_a_life(
    store: Store, clock: VirtualClock
) -> None:
    """Whoever repeats a request is known by them, also after the row was claimed and ended."""
    lease = await put_and_take(store, clock, order(0))
    patch: dict[str, Value] = {"requests": "t1 t2", "updated_ms": clock.now_ms()}
    guard = Seen(lease.head.rev, lease.head.state)
    await apply(store, clock, Transition(lease.id, guard, Writer.ENGINE, patch))
    await apply(store, clock, complete(lease, clock.now_ms(), b""))
    found = await head(store, lease.id)
    assert (lease.head.requests, found.requests) == ("", "t1 t2")


async def test_a_renewal_does_not_move_the_timer(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    await apply(store, clock, renew(lease, clock.advance(1_000), TTL_MS))
    row = await head(store, lease.id)
    assert (row.due_ms, row.lease_until_ms) == (lease.head.due_ms, lease.until_ms + 1_000)


async def test_every_write_raises_the_revision_by_one(store: Store, clock: VirtualClock) -> None:
    row = (await put(store, clock, order(0, policy=policy(retries=1, pause_ms=10))))[0]
    revisions = [row.rev]

    async def note(transition: Transition) -> None:
        await apply(store, clock, transition)
        revisions.append((await head(store, row.id)).rev)

    await note(change_priority(row, clock.now_ms(), 3))
    await note(block(await head(store, row.id), clock.now_ms(), Reason.WAITING_FOR_BUDGET))
    clock.advance(5_000)
    await note(on_due(await head(store, row.id), clock.now_ms()).transition)
    lease = (await take(store, clock))[0]
    revisions.append(lease.head.rev)
    await note(renew(lease, clock.now_ms(), TTL_MS))
    await note(progress(lease, clock.now_ms(), 1, "one"))
    await note(complete(lease, clock.now_ms(), b""))
    await note(replay(await head(store, row.id), clock.now_ms()))
    assert revisions == list(range(1, len(revisions) + 1))


async def test_an_urgent_call_does_the_same(store: Store, clock: VirtualClock) -> None:
    leases = await put_and_take_many(store, clock, 3)
    now_ms = clock.now_ms()
    mixed = [
        renew(leases[0], now_ms, 2 * TTL_MS),
        renew(stale(leases[1]), now_ms, 2 * TTL_MS),
        renew(leases[2], now_ms, 2 * TTL_MS),
    ]
    assert await store.apply(mixed, now_ms, urgent=True) == [
        Applied(leases[0].id),
        Rejected(leases[1].id, leases[1].head),
        Applied(leases[2].id),
    ]
    ends = [(await head(store, lease.id)).lease_until_ms for lease in leases]
    assert ends == [now_ms + 2 * TTL_MS, now_ms + TTL_MS, now_ms + 2 * TTL_MS]
