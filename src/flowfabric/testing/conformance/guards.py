"""Guards: each part that does not hold is enough to refuse, and refusing changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from flowfabric.core.lifecycle import Failure, complete, delay, fail, progress, renew, start
from flowfabric.core.model import Lease, Value, Writer
from flowfabric.core.operator import Source, cancel, revoke, set_tags
from flowfabric.core.refusal import refusal_of_lease
from flowfabric.core.states import Reason, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Changeset, Held, Seen, Transition
from flowfabric.errors import StaleLease
from flowfabric.store.protocol import Store
from flowfabric.testing.build import OTHER_TOKEN, TTL_MS, order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, head, put, put_and_take, refuse, take


def guarded(transition: Transition, guard: Held | Seen) -> Transition:
    return msgspec.structs.replace(transition, guard=guard)


WRONG: dict[str, Held] = {
    "an older epoch": Held(0, "token-1"),
    "a newer epoch": Held(2, "token-1"),
    "a far epoch": Held(1_000, "token-1"),
    "another token": Held(1, "token-2"),
    "a token that only begins alike": Held(1, "token-"),
    "a token in other letters": Held(1, "TOKEN-1"),
    "no token": Held(1, ""),
    "a grant": Held(1, "token-1", started=False),
}


@pytest.mark.parametrize("guard", WRONG.values(), ids=WRONG.keys())
@pytest.mark.case("LS-009")
async def test_a_wrong_lease_is_refused_and_the_right_one_still_works(
    store: Store, clock: VirtualClock, guard: Held
) -> None:
    lease = await put_and_take(store, clock, order(0))
    right = complete(lease, clock.now_ms(), b"right")

    refused = await refuse(store, clock, guarded(right, guard))

    assert refused.current == lease.head
    shown = msgspec.structs.replace(
        lease.head, epoch=guard.epoch, lease_token=guard.token, reason=_reason(guard)
    )
    assert isinstance(refusal_of_lease(refused.current, Lease(shown), clock.now_ms()), StaleLease)
    await apply(store, clock, right)
    assert (await head(store, lease.id)).state is State.COMPLETED


def _reason(guard: Held) -> Reason:
    return Reason.NONE if guard.started else Reason.GRANTED


async def test_a_grant_does_not_let_its_holder_act_as_if_it_had_started(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    lease = (await take(store, clock, start=False))[0]
    begun = Lease(msgspec.structs.replace(lease.head, reason=Reason.NONE))
    await refuse(store, clock, complete(begun, clock.now_ms(), b""))
    await apply(store, clock, start(lease, clock.now_ms()))


async def test_a_grant_is_started_once(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    lease = (await take(store, clock, start=False))[0]
    await apply(store, clock, start(lease, clock.now_ms()))
    await refuse(store, clock, start(lease, clock.now_ms()))


async def test_a_lease_is_alive_until_just_before_its_end(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    clock.set(lease.until_ms - 1)
    await apply(store, clock, complete(lease, clock.now_ms(), b""))


async def test_a_lease_is_over_at_its_end(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    clock.set(lease.until_ms)
    for late in (
        complete(lease, clock.now_ms(), b""),
        fail(lease, clock.now_ms(), Failure("broke")),
        delay(lease, clock.now_ms(), None),
        renew(lease, clock.now_ms(), TTL_MS),
    ):
        refused = await refuse(store, clock, late)
        assert refused.current == lease.head


async def test_the_end_of_a_lease_is_judged_by_the_stores_clock(
    store: Store, clock: VirtualClock
) -> None:
    """Not by the caller's, which may be behind or ahead by what is allowed."""
    lease = await put_and_take(store, clock, order(0))
    clock.set(lease.until_ms)
    slow_ms = lease.until_ms - 400
    answers = await store.apply([complete(lease, slow_ms, b"")], slow_ms)
    assert [type(answer).__name__ for answer in answers] == ["Rejected"]


async def test_a_lease_is_not_over_because_its_holders_clock_is_fast(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    clock.set(lease.until_ms - 1)
    fast_ms = lease.until_ms + 400
    answers = await store.apply([complete(lease, fast_ms, b"")], fast_ms)
    assert [type(answer).__name__ for answer in answers] == ["Applied"]


async def test_a_renewed_lease_ends_when_it_was_renewed_to(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    clock.set(lease.until_ms - 1)
    await apply(store, clock, renew(lease, clock.now_ms(), TTL_MS))
    clock.advance(TTL_MS - 1)
    await apply(store, clock, renew(lease, clock.now_ms(), 10))
    clock.advance(10)
    await refuse(store, clock, renew(lease, clock.now_ms(), TTL_MS))


ENDS: dict[str, Callable[[Lease, int], Transition]] = {
    "completed": lambda lease, now_ms: complete(lease, now_ms, b"first"),
    "retried": lambda lease, now_ms: fail(lease, now_ms, Failure("broke")),
    "delayed": lambda lease, now_ms: delay(lease, now_ms, now_ms + 1),
    "released": lambda lease, now_ms: delay(lease, now_ms, None),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_lease_that_its_holder_ended_is_over(
    store: Store, clock: VirtualClock, end: Callable[[Lease, int], Transition]
) -> None:
    """Epoch and token stay on the row, so the state must be part of the guard."""
    lease = await put_and_take(store, clock, order(0, policy=policy(retries=3)))
    await apply(store, clock, end(lease, clock.now_ms()))
    await refuse(store, clock, complete(lease, clock.now_ms(), b"second"))
    await refuse(store, clock, renew(lease, clock.now_ms(), TTL_MS))


UNWANTED: dict[str, Value] = {"state": State.ACTIVE, "reason": Reason.CANCEL_ON_RETURN}

GIVEN_BACK: dict[str, Callable[[Lease, int], Transition]] = {
    name: ENDS[name] for name in ("retried", "delayed", "released")
}

GONE_ON_WITH: dict[str, Callable[[Lease, int], Transition]] = {
    "renewed": lambda lease, now_ms: renew(lease, now_ms, TTL_MS),
    "at half": lambda lease, now_ms: progress(lease, now_ms, 50, None),
    "completed": ENDS["completed"],
    "failed": lambda lease, now_ms: fail(lease, now_ms, Failure("broke", fatal=True)),
}


async def unwanted(store: Store, clock: VirtualClock, count: int) -> list[Lease]:
    """Leases of work that is not to be tried again since; the leases do not say so."""
    orders = [order(number, policy=policy(retries=3)) for number in range(count)]
    await put(store, clock, *orders)
    leases = [(await take(store, clock, only=each.id))[0] for each in orders]
    for lease in leases:
        seen = Seen(lease.head.rev, State.ACTIVE)
        await apply(store, clock, Transition(lease.id, seen, Writer.ENGINE, UNWANTED))
    return leases


@pytest.mark.parametrize("how", GIVEN_BACK.values(), ids=GIVEN_BACK.keys())
async def test_work_that_is_not_wanted_any_more_cannot_be_given_back(
    store: Store, clock: VirtualClock, how: Callable[[Lease, int], Transition]
) -> None:
    (lease,) = await unwanted(store, clock, 1)
    back = how(lease, clock.now_ms())
    refused = await refuse(store, clock, back)
    assert refused.current == await head(store, lease.id)
    assert not await store.commit(Changeset([back]), clock.now_ms())
    known = Lease(await head(store, lease.id))
    await apply(store, clock, how(known, clock.now_ms()))
    assert (await head(store, lease.id)).state is State.CANCELLED


async def test_work_that_is_not_wanted_any_more_is_gone_on_with_and_ended(
    store: Store, clock: VirtualClock
) -> None:
    leases = await unwanted(store, clock, len(GONE_ON_WITH))
    for lease, how in zip(leases, GONE_ON_WITH.values(), strict=True):
        await apply(store, clock, how(lease, clock.now_ms()))
    states = [(await head(store, lease.id)).state for lease in leases]
    assert states == [State.ACTIVE, State.ACTIVE, State.COMPLETED, State.FAILED]


async def test_a_lease_that_was_taken_away_is_over(store: Store, clock: VirtualClock) -> None:
    first = await put_and_take(store, clock, order(0))
    revoked = revoke(first.head, clock.now_ms(), "operator")
    assert isinstance(revoked, Transition)
    await apply(store, clock, revoked)
    await refuse(store, clock, complete(first, clock.now_ms(), b""))

    second = (await take(store, clock, token=OTHER_TOKEN))[0]
    refused = await refuse(store, clock, complete(first, clock.now_ms(), b""))

    assert refused.current == second.head
    await apply(store, clock, complete(second, clock.now_ms(), b""))


async def test_a_lease_that_expired_and_was_taken_again_is_over(
    store: Store, clock: VirtualClock
) -> None:
    first = await put_and_take(store, clock, order(0))
    clock.advance(TTL_MS)
    await apply(store, clock, on_due(first.head, clock.now_ms()).transition)
    second = (await take(store, clock, token=OTHER_TOKEN))[0]
    await refuse(store, clock, complete(first, clock.now_ms(), b"late"))
    await apply(store, clock, complete(second, clock.now_ms(), b"right"))


@pytest.mark.parametrize("off_by", [-1, 1, 100])
async def test_a_decision_from_another_revision_is_refused(
    store: Store, clock: VirtualClock, off_by: int
) -> None:
    row = (await put(store, clock, order(0)))[0]
    right = cancel(row, clock.now_ms(), "", source=Source.OPERATOR)
    wrong = guarded(right, Seen(row.rev + off_by, row.state))
    assert (await refuse(store, clock, wrong)).current == row
    await apply(store, clock, right)


async def test_every_write_makes_an_earlier_look_stale(store: Store, clock: VirtualClock) -> None:
    """Also those that change nothing that a decision looks at: a renewal, a tag, a progress."""
    row = (await put(store, clock, order(0)))[0]
    lease = (await take(store, clock))[0]
    await refuse(store, clock, set_tags(row, clock.now_ms(), {"a.b": "c"}))
    await apply(store, clock, renew(lease, clock.now_ms(), TTL_MS))
    await refuse(store, clock, set_tags(lease.head, clock.now_ms(), {"a.b": "c"}))
    seen = await head(store, row.id)
    await apply(store, clock, set_tags(seen, clock.now_ms(), {"a.b": "c"}))
    await refuse(store, clock, set_tags(seen, clock.now_ms(), {"a.b": "d"}))
