"""A claim whose reply was lost is asked again with the same token and answered the same."""

from __future__ import annotations

import msgspec

from flowfabric.core.lifecycle import complete, renew
from flowfabric.core.model import Lease
from flowfabric.store.protocol import Store
from flowfabric.testing.build import OTHER_TOKEN, TOKEN, TTL_MS, ask, execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, contents, put, take


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
