"""What is written beside a head: attempts, tags and lines of the log."""

from __future__ import annotations

from flowfabric.core.lifecycle import Failure, complete, delay, fail, renew
from flowfabric.core.model import Feed, Value, Writer
from flowfabric.core.operator import observed, replay, set_tags
from flowfabric.core.states import AttemptKind, AttemptLifecycle
from flowfabric.core.timers import on_due
from flowfabric.core.transition import LogLine, Transition
from flowfabric.store.protocol import Store
from flowfabric.testing.build import OTHER_TOKEN, THIRD_TOKEN, TTL_MS, execution_id, order, policy
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


async def test_an_attempt_is_stored_as_it_ended(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    done = complete(lease, clock.advance(40), b"result")
    await apply(store, clock, done)
    found = await loaded(store, lease.id)
    assert found.attempts == (done.attempt,)
    assert found.attempts[0].started_ms == clock.now_ms() - 40
    assert found.attempts[0].ended_ms == clock.now_ms()


async def test_an_attempt_that_goes_on_keeps_how_and_when_it_began(
    store: Store, clock: VirtualClock
) -> None:
    began_ms = clock.now_ms()
    first = await put_and_take(store, clock, order(0))
    await apply(store, clock, delay(first, clock.advance(10), None))
    clock.advance(10)
    second = (await take(store, clock, token=OTHER_TOKEN, worker="worker-2"))[0]
    assert second.head.attempt_kind is AttemptKind.RESUME
    await apply(store, clock, complete(second, clock.advance(10), b"done"))

    attempts = (await loaded(store, first.id)).attempts

    assert [(a.attempt, a.kind, a.started_ms) for a in attempts] == [
        (0, AttemptKind.INITIAL, began_ms)
    ]
    assert (attempts[0].lifecycle, attempts[0].result) == (AttemptLifecycle.ENDED_SUCCESS, b"done")
    assert (attempts[0].worker, attempts[0].epoch) == ("worker-2", 2)
    assert attempts[0].ended_ms == clock.now_ms()


async def test_every_attempt_is_kept_in_order(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, policy=policy(retries=1, pause_ms=10)))
    await apply(store, clock, fail(lease, clock.now_ms(), Failure("broke", "network")))
    clock.advance(10)
    await apply(store, clock, on_due(await head(store, lease.id), clock.now_ms()).transition)
    lease = (await take(store, clock, token=OTHER_TOKEN))[0]
    await apply(store, clock, complete(lease, clock.now_ms(), b"second"))
    await apply(store, clock, replay(await head(store, lease.id), clock.now_ms()))
    lease = (await take(store, clock, token=THIRD_TOKEN))[0]
    clock.advance(TTL_MS)
    await apply(store, clock, on_due(lease.head, clock.now_ms()).transition)

    attempts = (await loaded(store, lease.id)).attempts

    assert [(a.attempt, a.kind, a.lifecycle) for a in attempts] == [
        (0, AttemptKind.INITIAL, AttemptLifecycle.ENDED_FAILURE),
        (1, AttemptKind.RETRY, AttemptLifecycle.ENDED_SUCCESS),
        (2, AttemptKind.REPLAY, AttemptLifecycle.INTERRUPTED_RECLAIMED),
    ]
    assert [a.result for a in attempts] == [None, b"second", None]
    assert (attempts[0].detail, attempts[0].category) == ("broke", "network")


async def test_the_result_is_that_of_the_attempt_the_head_names(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    await apply(store, clock, complete(lease, clock.now_ms(), b"first"))
    await apply(store, clock, replay(await head(store, lease.id), clock.now_ms()))
    lease = (await take(store, clock, token=OTHER_TOKEN))[0]
    assert await result(store, lease.id) == b""
    await apply(store, clock, complete(lease, clock.now_ms(), b"second"))
    assert await result(store, lease.id) == b"second"


async def test_tags_are_set_and_others_stay(store: Store, clock: VirtualClock) -> None:
    row = (await put(store, clock, order(0, tags={"a.b": "1", "a.c": "2"})))[0]
    await apply(store, clock, set_tags(row, clock.now_ms(), {"a.c": "3", "a.a": "4"}))
    found = await loaded(store, row.id)
    assert found.tags == {"a.a": "4", "a.b": "1", "a.c": "3"}
    assert list(found.tags) == sorted(found.tags)


async def test_tags_belong_to_one_execution(store: Store, clock: VirtualClock) -> None:
    rows = await put(store, clock, order(0), order(1, tags={"a.b": "1"}))
    await apply(store, clock, set_tags(rows[0], clock.now_ms(), {"a.b": "2"}))
    assert (await loaded(store, rows[1].id)).tags == {"a.b": "1"}


async def test_a_line_says_what_the_row_says_after_it(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0, policy=policy(retries=1)))
    await apply(store, clock, fail(lease, clock.advance(9), Failure("broke")))
    event = (await store.tail(Feed()))[-1]
    row = await head(store, lease.id)
    assert (event.state, event.attempt, event.epoch) == (row.state, row.attempt, row.epoch)
    assert (event.kind, event.at_ms) == ("retry_scheduled", clock.now_ms())
    assert event.detail == {"reason": "broke", "category": "handler_error", "pause_ms": 1_000}


async def test_a_line_keeps_the_kinds_of_its_values(store: Store, clock: VirtualClock) -> None:
    row = (await put(store, clock, order(0)))[0]
    detail: dict[str, Value] = {
        "text": "1",
        "number": 1,
        "yes": True,
        "no": False,
        "none": None,
        "big": 2**53,
    }
    line = Transition(row.id, observed(row), Writer.ENGINE, {}, LogLine("noted", detail))
    await apply(store, clock, line)
    found = (await store.tail(Feed()))[-1].detail
    assert found == detail
    assert [type(value) for value in found.values()] == [type(each) for each in detail.values()]


async def test_a_transition_without_a_line_writes_none(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    before = await store.tail(Feed())
    await apply(store, clock, renew(lease, clock.now_ms(), TTL_MS))
    assert await store.tail(Feed()) == before


async def test_lines_of_one_call_come_in_its_order(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, *(order(n) for n in range(40)))
    leases = sorted(await take(store, clock, 40), key=lambda lease: lease.id, reverse=True)
    await apply(store, clock, *(complete(lease, clock.now_ms(), b"") for lease in leases))
    lines = (await store.tail(Feed()))[-40:]
    assert [line.execution for line in lines] == [execution_id(n) for n in reversed(range(40))]
