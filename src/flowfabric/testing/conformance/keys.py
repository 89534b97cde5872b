"""Idempotency keys: one insert writes the key and what it protects, or neither."""

from __future__ import annotations

import pytest

from flowfabric.core.lifecycle import Order, submit
from flowfabric.core.model import Inserted, Want
from flowfabric.store.protocol import Store
from flowfabric.testing.build import NAMESPACE, execution_id, order, policy, submissions
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import contents, put

WINDOW_MS = 60_000


def keyed(
    number: int, key: str = "key", digest: str = "one", *, namespace: str = NAMESPACE
) -> Order:
    """An order whose key lives for a minute."""
    window = policy(dedup_window_ms=WINDOW_MS)
    return order(number, key=key, digest=digest, policy=window, namespace=namespace)


async def insert(store: Store, clock: VirtualClock, *orders: Order) -> list[Inserted]:
    return await store.insert(submissions(orders, clock.now_ms()), clock.now_ms())


async def look(store: Store, clock: VirtualClock, *orders: Order) -> list[Inserted]:
    batch = [submit(each, clock.now_ms(), create=False) for each in orders]
    return await store.insert(batch, clock.now_ms())


def answered(number: int, digest: str = "one") -> Inserted:
    return Inserted(execution_id(number), created=False, digest=digest)


@pytest.mark.case("LC-015")
async def test_the_same_submit_again_answers_the_execution_it_made(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, keyed(0))
    before = await contents(store)
    assert await insert(store, clock, keyed(0)) == [answered(0)]
    assert await contents(store) == before


async def test_a_key_in_use_answers_the_execution_it_belongs_to(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, keyed(0))
    before = await contents(store)
    assert await insert(store, clock, keyed(1)) == [answered(0)]
    assert await contents(store) == before


@pytest.mark.parametrize("number", [0, 1])
async def test_what_is_only_looked_for_is_found_by_its_key_or_its_id(
    store: Store, clock: VirtualClock, number: int
) -> None:
    await put(store, clock, keyed(0), order(1))
    before = await contents(store)
    asked = keyed(0) if number == 0 else order(1)
    found = answered(0) if number == 0 else Inserted(execution_id(1), created=False)
    assert await look(store, clock, asked) == [found]
    assert await contents(store) == before


async def test_what_is_only_looked_for_and_is_not_there_is_not_made(
    store: Store, clock: VirtualClock
) -> None:
    before = await contents(store)
    assert await look(store, clock, keyed(0)) == [
        Inserted(execution_id(0), created=False, exists=False)
    ]
    assert await contents(store) == before
    assert await insert(store, clock, keyed(1)) == [Inserted(execution_id(1), created=True)]


async def test_a_key_in_use_answers_the_digest_it_was_used_with(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, keyed(0, digest="one"))
    assert await insert(store, clock, keyed(1, digest="two")) == [answered(0, "one")]
    assert await store.load(Want(ids=[execution_id(1)])) == [None]


async def test_a_key_belongs_to_its_namespace(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, keyed(0, namespace="one"), keyed(1, namespace="two"))
    assert await insert(store, clock, keyed(2, namespace="two"), keyed(3, namespace="one")) == [
        answered(1),
        answered(0),
    ]


async def test_two_orders_of_one_batch_can_share_a_key(store: Store, clock: VirtualClock) -> None:
    answers = await insert(store, clock, keyed(0), keyed(1, digest="two"), keyed(2))
    assert answers == [Inserted(execution_id(0), created=True), answered(0), answered(0)]
    found = await store.load(Want(ids=[execution_id(number) for number in range(3)]))
    assert [each is not None for each in found] == [True, False, False]


async def test_a_key_is_in_use_until_its_window_ends(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, keyed(0))
    clock.advance(WINDOW_MS - 1)
    assert await insert(store, clock, keyed(1)) == [answered(0)]


async def test_a_key_is_free_when_its_window_ends(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, keyed(0))
    clock.advance(WINDOW_MS)
    await put(store, clock, keyed(1, digest="two"))
    clock.advance(WINDOW_MS - 1)
    assert await insert(store, clock, keyed(2)) == [answered(1, "two")]


async def test_a_key_without_a_window_protects_nothing(store: Store, clock: VirtualClock) -> None:
    none = policy(dedup_window_ms=0)
    await put(store, clock, *(order(number, key="key", policy=none) for number in range(2)))
    await put(store, clock, order(2, key="key", policy=none))


async def test_a_known_id_takes_no_key_with_it(store: Store, clock: VirtualClock) -> None:
    """Else the key would protect an execution that was submitted without it."""
    await put(store, clock, order(0))
    assert await insert(store, clock, keyed(0)) == [Inserted(execution_id(0), created=False)]
    await put(store, clock, keyed(1))


async def test_orders_without_a_key_are_never_the_same(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, digest="one"), order(1, digest="one"))


async def test_a_batch_with_a_key_in_use_writes_the_others(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, keyed(0))
    answers = await insert(store, clock, order(1), keyed(2), keyed(3, key="other"))
    assert [(answer.id, answer.created) for answer in answers] == [
        (execution_id(1), True),
        (execution_id(0), False),
        (execution_id(3), True),
    ]


@pytest.mark.parametrize(
    "key", ["a b", "'", '"', "\\", "%_*?", "new\nline", "ключ🔑", "[1]", "null", "é" * 255]
)
async def test_any_text_can_be_a_key(store: Store, clock: VirtualClock, key: str) -> None:
    await put(store, clock, keyed(0, key=key))
    assert await insert(store, clock, keyed(1, key=key)) == [answered(0)]
    await put(store, clock, keyed(2, key=key + " "))


async def test_keys_that_differ_in_case_are_different(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, keyed(0, key="Key"), keyed(1, key="key"))
