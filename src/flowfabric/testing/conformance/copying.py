"""What a claim writes: it copies what the last decision left in the row, for every kind of claim.

Each road below brings an execution to a point where it can be claimed; what the claim then makes
of the row is compared with the core column by column.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.core.lifecycle import Failure, complete, delay, fail, renew
from flowfabric.core.model import Execution, Loss
from flowfabric.core.operator import replay, revoke
from flowfabric.core.states import AttemptKind, AttemptState, Reason, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Transition, claimed, patched
from flowfabric.store.protocol import Store
from flowfabric.testing.build import OTHER_TOKEN, TTL_MS, ask, execution_id, order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, head, put, put_and_take, take

Road = Callable[[Store, VirtualClock], Awaitable[None]]

LIMIT_MS = 8_000
POLICY = policy(retries=3, pause_ms=500, attempt_timeout_ms=LIMIT_MS)


async def initial(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, policy=POLICY))


async def initial_without_limits(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))


async def initial_before_a_deadline(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, policy=POLICY, deadline_ms=clock.now_ms() + 4_000))


async def promoted(store: Store, clock: VirtualClock) -> None:
    row = (await put(store, clock, order(0, delay_until_ms=clock.now_ms() + 500)))[0]
    clock.advance(500)
    await apply(store, clock, on_due(row, clock.now_ms()).transition)


async def retried(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, policy=POLICY))
    await apply(store, clock, fail(lease, clock.now_ms(), Failure("broke")))
    clock.advance(500)
    await apply(store, clock, on_due(await head(store, lease.id), clock.now_ms()).transition)


async def replayed(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, policy=POLICY))
    await apply(store, clock, complete(lease, clock.now_ms(), b"first"))
    await apply(store, clock, replay(await head(store, lease.id), clock.now_ms()))


async def orphaned(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, policy=policy(attempt_timeout_ms=90_000)))
    await apply(store, clock, renew(lease, clock.advance(1_000), TTL_MS))
    clock.advance(TTL_MS)
    await apply(store, clock, on_due(await head(store, lease.id), clock.now_ms()).transition)


async def revoked(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, policy=POLICY))
    lost = revoke(lease.head, clock.now_ms(), "operator")
    assert isinstance(lost, Transition)
    await apply(store, clock, lost)


async def resumed(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, policy=POLICY))
    clock.advance(3_000)
    await apply(store, clock, delay(lease, clock.now_ms(), None))


ROADS: dict[str, tuple[Road, AttemptKind, int, int]] = {
    "initial": (initial, AttemptKind.INITIAL, 0, 1),
    "initial_without_limits": (initial_without_limits, AttemptKind.INITIAL, 0, 1),
    "initial_before_a_deadline": (initial_before_a_deadline, AttemptKind.INITIAL, 0, 1),
    "promoted": (promoted, AttemptKind.INITIAL, 0, 1),
    "retry": (retried, AttemptKind.RETRY, 1, 2),
    "replay": (replayed, AttemptKind.REPLAY, 1, 2),
    "reclaim_of_an_expired_lease": (orphaned, AttemptKind.RECLAIM, 1, 3),
    "reclaim_of_a_revoked_lease": (revoked, AttemptKind.RECLAIM, 1, 3),
    "resumed": (resumed, AttemptKind.RESUME, 0, 2),
}
roads = pytest.mark.parametrize(
    ("road", "kind", "attempt", "epoch"), ROADS.values(), ids=ROADS.keys()
)


@roads
async def test_a_claim_begins_the_attempt_that_was_decided(
    store: Store, clock: VirtualClock, road: Road, kind: AttemptKind, attempt: int, epoch: int
) -> None:
    await road(store, clock)
    before = await head(store, execution_id(0))
    asked = ask(clock.advance(3), token=OTHER_TOKEN, worker="worker-2")

    leases = await store.claim(asked)

    assert [lease.head for lease in leases] == [patched(before, claimed(before, asked))]
    row = leases[0].head
    assert (row.attempt_kind, row.attempt, row.epoch) == (kind, attempt, epoch)
    assert (row.state, row.reason) == (State.ACTIVE, Reason.NONE)
    assert row.attempt_state is AttemptState.RUNNING
    assert row.rev == before.rev + 1
    assert row.lost is Loss.NONE
    assert await head(store, row.id) == row


@roads
async def test_a_grant_touches_nothing_of_the_attempt(
    store: Store, clock: VirtualClock, road: Road, kind: AttemptKind, attempt: int, epoch: int
) -> None:
    await road(store, clock)
    before = await head(store, execution_id(0))
    asked = ask(clock.advance(3), token=OTHER_TOKEN, worker="worker-2", start=False)

    leases = await store.claim(asked)

    assert [lease.head for lease in leases] == [patched(before, claimed(before, asked))]
    row = leases[0].head
    assert (row.state, row.reason, row.epoch) == (State.ACTIVE, Reason.GRANTED, epoch)
    assert (row.next_kind, row.next_attempt) == (kind, attempt)
    assert _about_the_attempt(row) == _about_the_attempt(before)
    assert not leases[0].started
    assert await head(store, row.id) == row


def _about_the_attempt(row: Execution) -> tuple[object, ...]:
    return (
        row.attempt,
        row.attempt_kind,
        row.attempt_state,
        row.attempt_started_ms,
        row.attempt_until_ms,
        row.started_ms,
        row.lost,
    )


async def test_the_timer_of_a_claim_is_the_end_of_its_lease(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    row = (await take(store, clock))[0].head
    assert row.due_ms == row.lease_until_ms == clock.now_ms() + TTL_MS
    assert row.attempt_until_ms is None


async def test_the_timer_of_a_claim_is_the_end_of_its_attempt_if_that_is_sooner(
    store: Store, clock: VirtualClock
) -> None:
    await initial(store, clock)
    row = (await take(store, clock))[0].head
    assert row.due_ms == row.attempt_until_ms == clock.now_ms() + LIMIT_MS


async def test_the_timer_of_a_claim_is_the_deadline_if_that_is_sooner(
    store: Store, clock: VirtualClock
) -> None:
    await initial_before_a_deadline(store, clock)
    row = (await take(store, clock))[0].head
    assert row.due_ms == row.deadline_ms == clock.now_ms() + 4_000


async def test_the_timer_of_a_grant_does_not_know_the_attempt(
    store: Store, clock: VirtualClock
) -> None:
    await initial(store, clock)
    row = (await take(store, clock, start=False))[0].head
    assert row.due_ms == row.lease_until_ms == clock.now_ms() + TTL_MS


async def test_a_resumed_attempt_has_what_was_left_of_its_time(
    store: Store, clock: VirtualClock
) -> None:
    await resumed(store, clock)
    row = (await take(store, clock, token=OTHER_TOKEN))[0].head
    assert row.attempt_until_ms == clock.now_ms() + LIMIT_MS - 3_000


async def test_the_first_start_is_remembered(store: Store, clock: VirtualClock) -> None:
    began_ms = clock.now_ms()
    await retried(store, clock)
    row = (await take(store, clock, token=OTHER_TOKEN))[0].head
    assert (row.started_ms, row.attempt_started_ms) == (began_ms, clock.now_ms())
    assert clock.now_ms() > began_ms
