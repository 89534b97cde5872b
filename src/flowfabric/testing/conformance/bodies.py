"""Bodies are bytes and texts are Unicode: both come back as they went in."""

from __future__ import annotations

import pytest

from flowfabric.core.lifecycle import Failure, complete, fail, progress
from flowfabric.core.model import Feed
from flowfabric.store.protocol import Store
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import (
    apply,
    head,
    loaded,
    put,
    put_and_take,
    result,
    take,
)

BODIES = {
    "every byte": bytes(range(256)),
    "nothing": b"",
    "zeros": bytes(16),
    "not text": b"\xc3\x28\xff\xfe",
    "a mebibyte": bytes(range(256)) * 4_096,
}
TEXTS = {
    "quotes": """it's "quoted" \\ back`ticked`""",
    "lines": "one\ntwo\r\n\tthree",
    "controls": "\x01\x1f\x7f",
    "a zero": "before\0after",
    "scripts": "häß ключ 鍵 🗝️ e\u0301",
    "separators": "\u2028\u2029\ufeff",
    "braces": "{0} %s ? ?1 :name $1 {rows}",
}
bodies = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
texts = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())


@bodies
async def test_a_payload_comes_back_as_it_was(
    store: Store, clock: VirtualClock, body: bytes
) -> None:
    lease = await put_and_take(store, clock, order(0, payload=body))
    assert lease.payload == body
    assert (await loaded(store, lease.id)).payload == body


@bodies
async def test_a_result_comes_back_as_it_was(
    store: Store, clock: VirtualClock, body: bytes
) -> None:
    lease = await put_and_take(store, clock, order(0))
    await apply(store, clock, complete(lease, clock.now_ms(), body))
    assert await result(store, lease.id) == body
    attempts = (await loaded(store, lease.id)).attempts
    assert [attempt.result for attempt in attempts] == [body]


async def test_bodies_do_not_change_places(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, *(order(n, payload=b"input %d" % n) for n in range(30)))
    leases = await take(store, clock, 30)
    assert {lease.id: lease.payload for lease in leases} == {
        execution_id(n): b"input %d" % n for n in range(30)
    }
    done = [complete(lease, clock.now_ms(), b"from " + lease.payload) for lease in leases]
    await apply(store, clock, *done)
    for n in range(30):
        assert await result(store, execution_id(n)) == b"from input %d" % n


async def test_no_result_is_not_an_empty_one(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    await apply(store, clock, fail(lease, clock.now_ms(), Failure("broke")))
    attempts = (await loaded(store, lease.id)).attempts
    assert [attempt.result for attempt in attempts] == [None]


@texts
async def test_a_text_is_stored_as_the_decision_says(
    store: Store, clock: VirtualClock, text: str
) -> None:
    lease = await put_and_take(store, clock, order(0, tags={"a.b": "plain"}))
    said = progress(lease, clock.now_ms(), None, text)
    broke = fail(lease, clock.now_ms(), Failure(text, text))
    await apply(store, clock, said)
    await apply(store, clock, broke)

    found = await loaded(store, lease.id)

    assert found.head.progress_message == said.patch["progress_message"]
    assert found.head.outcome_detail == broke.patch["outcome_detail"]
    assert found.head.outcome_category == broke.patch["outcome_category"]
    assert found.attempts == (broke.attempt,)
    assert broke.log is not None
    assert (await store.tail(Feed()))[-1].detail == broke.log.detail


@pytest.mark.parametrize("text", [text for text in TEXTS.values() if "\0" not in text])
async def test_a_tag_value_comes_back_as_it_was(
    store: Store, clock: VirtualClock, text: str
) -> None:
    await put(store, clock, order(0, tags={"a.b": text, "a.c": ""}))
    assert (await loaded(store, execution_id(0))).tags == {"a.b": text, "a.c": ""}


async def test_names_of_any_script_come_back_as_they_were(
    store: Store, clock: VirtualClock
) -> None:
    """Names are printable; lanes are ASCII, and a space is allowed in them."""
    await put(store, clock, order(0, namespace="räume 部屋", lane="a b~!", kind="größe.测试"))
    row = await head(store, execution_id(0))
    assert (row.namespace, row.lane, row.kind) == ("räume 部屋", "a b~!", "größe.测试")
