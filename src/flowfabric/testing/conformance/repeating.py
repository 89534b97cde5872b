"""A claim whose reply was lost is asked again with the same token and answered the same."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from flowfabric.core.leases import lose
from flowfabric.core.lifecycle import Failure, complete, delay, fail, release, renew
from flowfabric.core.model import Lease, Loss, Value, Writer
from flowfabric.core.operator import Source, cancel, observed, revoke
from flowfabric.core.states import AttemptState, Reason, State
from flowfabric.core.transition import Transition
from flowfabric.store.protocol import Store
from flowfabric.testing.build import OTHER_TOKEN, TOKEN, TTL_MS, ask, execution_id, order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, contents, head, put, take


async def again(
    store: Store, clock: VirtualClock, limit: int, *, token: str = TOKEN, start: bool = True
) -> list[Lease]:
    now_ms = clock.now_ms()
    return await store.claim(ask(now_ms, limit=limit, token=token, start=start, repeated=True))


async def test_a_repeated_claim_answers_the_same_leases(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, *(order(n, priority=n % 3, payload=b"%d" % n) for n in range(8)))
    first = await take(store, clock, 5)
    before = await contents(store)
    clock.advance(20)
    assert await again(store, clock, 5) == first
    assert await contents(store) == before


async def test_a_repeated_claim_takes_nothing_more(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, *(order(n) for n in range(8)))
    first = await take(store, clock, 3)
    assert await again(store, clock, 8) == first


async def test_a_repeated_claim_that_never_arrived_takes_work(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(0), order(1))
    await take(store, clock, token=OTHER_TOKEN)
    leases = await again(store, clock, 5)
    assert [lease.id for lease in leases] == [execution_id(1)]
    assert await again(store, clock, 5) == leases


async def test_a_repeated_claim_answers_only_what_is_still_held(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, *(order(n) for n in range(4)))
    first = await take(store, clock, 3)
    await apply(store, clock, complete(first[1], clock.now_ms(), b""))
    assert await again(store, clock, 3) == [first[0], first[2]]


def _revoked(lease: Lease, now_ms: int) -> Transition:
    decided = revoke(lease.head, now_ms, "gone")
    assert isinstance(decided, Transition)
    return decided


def _lost(lease: Lease, now_ms: int) -> Transition:
    patch, attempt, line = lose(lease.head, now_ms, Loss.EXPIRED)
    return Transition(lease.id, observed(lease.head), Writer.TIMEKEEPER, patch, line, attempt)


def _half_left(lease: Lease, now_ms: int) -> Transition:
    """Only the state says that it is over: the end of the lease was left where it is."""
    patch: dict[str, Value] = {
        "state": State.BLOCKED_OPERATOR,
        "reason": Reason.PAUSED_BY_OPERATOR,
        "attempt_state": AttemptState.INTERRUPTED,
        "updated_ms": now_ms,
    }
    return Transition(lease.id, observed(lease.head), Writer.ENGINE, patch)


Leave = Callable[[Lease, int], Transition]

# Every way out of a lease that keeps its token on the row, and a timer: a deadline, a pause.
LEAVE: dict[str, Leave] = {
    "completed": lambda lease, now_ms: complete(lease, now_ms, b""),
    "failed": lambda lease, now_ms: fail(lease, now_ms, Failure("broke", fatal=True)),
    "tried again": lambda lease, now_ms: fail(lease, now_ms, Failure("broke")),
    "delayed": lambda lease, now_ms: delay(lease, now_ms, now_ms + 60_000),
    "released": release,
    "revoked": _revoked,
    "lost": _lost,
    "half left": _half_left,
    "cancelled": lambda lease, now_ms: cancel(lease.head, now_ms, "", source=Source.OPERATOR),
}


@pytest.mark.parametrize("how", LEAVE)
async def test_a_repeated_claim_answers_nothing_that_is_not_active(
    store: Store, clock: VirtualClock, how: str
) -> None:
    deadline_ms = clock.now_ms() + 3_600_000
    terms = policy(retries=2, pause_ms=60_000)
    await put(store, clock, *(order(n, policy=terms, deadline_ms=deadline_ms) for n in range(2)))
    held, left = await take(store, clock, 2)
    await apply(store, clock, LEAVE[how](left, clock.now_ms()))
    after = await head(store, left.id)
    assert (after.state is not State.ACTIVE, after.lease_token) == (True, left.token)
    assert await again(store, clock, 2) == [held]


async def test_a_repeated_claim_answers_no_lease_that_is_over_by_the_clock(
    store: Store, clock: VirtualClock
) -> None:
    """Whoever was answered such a lease would begin what somebody else may take at any moment."""
    await put(store, clock, order(0), order(1))
    short = (await take(store, clock, ttl_ms=TTL_MS))[0]
    long = (await take(store, clock, ttl_ms=2 * TTL_MS))[0]
    clock.set(short.until_ms - 1)
    assert await again(store, clock, 2) == [short, long]
    clock.set(short.until_ms)
    assert await again(store, clock, 2) == [long]
    clock.set(long.until_ms)
    assert await again(store, clock, 2) == []


async def test_a_repeated_claim_answers_renewed_leases_as_they_are(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    lease = (await take(store, clock))[0]
    clock.advance(100)
    await apply(store, clock, renew(lease, clock.now_ms(), TTL_MS))
    found = await again(store, clock, 1)
    assert [each.until_ms for each in found] == [clock.now_ms() + TTL_MS]
    assert [msgspec.structs.replace(each, head=lease.head) for each in found] == [lease]


async def test_a_repeated_grant_answers_the_same_grants(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, *(order(n) for n in range(4)))
    first = await take(store, clock, 2, start=False)
    assert await again(store, clock, 2, start=False) == first


async def test_a_new_claim_with_a_used_token_takes_new_work(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, *(order(n) for n in range(4)))
    first = await take(store, clock, 2)
    second = await take(store, clock, 2)
    assert [lease.id for lease in first + second] == [execution_id(n) for n in range(4)]
