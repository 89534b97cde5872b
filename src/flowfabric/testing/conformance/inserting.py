"""New executions: what is written, what is left alone, and what is answered."""

from __future__ import annotations

from flowfabric.core.lifecycle import Order, complete
from flowfabric.core.model import NO_ATTEMPT, Feed, Inserted, Want
from flowfabric.core.states import LaneState, State
from flowfabric.core.transition import Changeset, LaneChange
from flowfabric.store.protocol import Store
from flowfabric.testing.build import execution_id, order, policy, submissions
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, contents, head, loaded, put, result, take


def rich_orders(now_ms: int) -> list[Order]:
    """One of each: ready, delayed, with limits, with everything."""
    timed = policy(retries=3, attempt_timeout_ms=9_000)
    return [
        order(0),
        order(1, delay_until_ms=now_ms + 5_000, priority=9_000),
        order(2, deadline_ms=now_ms + 60_000, policy=timed, tags={"a.b": "c", "a.c": ""}),
        order(3, namespace="other", lane="second lane", kind="ünï.kind", payload=b"\x00\xff"),
    ]


async def test_a_new_execution_reads_back_as_it_was_submitted(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    batch = submissions(rich_orders(now_ms), now_ms)
    await store.insert(batch, now_ms)
    for submission in batch:
        found = await loaded(store, submission.execution.id)
        assert found.head == submission.execution
        assert found.payload == submission.payload
        assert found.tags == submission.tags
        assert found.attempts == ()
        assert await result(store, found.head.id) == b""


async def test_answers_come_in_the_order_given(store: Store, clock: VirtualClock) -> None:
    now_ms = clock.now_ms()
    await put(store, clock, order(4))
    asked = [order(number) for number in (9, 4, 7, 1)]
    assert await store.insert(submissions(asked, now_ms), now_ms) == [
        Inserted(execution_id(9), created=True),
        Inserted(execution_id(4), created=False),
        Inserted(execution_id(7), created=True),
        Inserted(execution_id(1), created=True),
    ]


async def test_an_id_that_exists_is_left_alone(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0, payload=b"first", tags={"a.b": "first"}))
    before = await contents(store)
    clock.advance(10)
    again = order(0, payload=b"second", tags={"a.b": "second", "a.c": "new"}, priority=5)

    answers = await store.insert(submissions([again], clock.now_ms()), clock.now_ms())

    assert answers == [Inserted(execution_id(0), created=False)]
    assert await contents(store) == before


async def test_a_finished_execution_is_not_started_again_by_its_id(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(0))
    lease = (await take(store, clock))[0]
    await apply(store, clock, complete(lease, clock.now_ms(), b"done"))
    before = await contents(store)

    answers = await store.insert(submissions([order(0)], clock.now_ms()), clock.now_ms())

    assert [answer.created for answer in answers] == [False]
    assert await contents(store) == before


async def test_the_first_of_two_equal_ids_in_a_batch_is_written(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    twins = [order(0, payload=b"first"), order(0, payload=b"second")]

    answers = await store.insert(submissions(twins, now_ms), now_ms)

    assert [answer.created for answer in answers] == [True, False]
    assert (await loaded(store, execution_id(0))).payload == b"first"
    assert len(await store.tail(Feed())) == 1


async def test_a_known_id_does_not_keep_the_others_of_its_batch_out(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(1))
    batch = submissions([order(number) for number in range(3)], clock.now_ms())

    answers = await store.insert(batch, clock.now_ms())

    assert [answer.created for answer in answers] == [True, False, True]
    found = await store.load(Want(ids=[execution_id(number) for number in range(3)]))
    assert [each is not None for each in found] == [True, True, True]


async def test_an_empty_batch_writes_nothing(store: Store, clock: VirtualClock) -> None:
    assert await store.insert([], clock.now_ms()) == []
    assert await contents(store) == ([], [], [], [], [], [], [])


async def test_a_new_execution_has_one_line_in_the_log(store: Store, clock: VirtualClock) -> None:
    now_ms = clock.now_ms()
    await put(store, clock, order(0), order(1, delay_until_ms=now_ms + 1))

    first, second = await store.tail(Feed())

    assert first.cursor != second.cursor
    assert (first.execution, second.execution) == (execution_id(0), execution_id(1))
    assert (first.state, second.state) == (State.WAITING, State.DELAYED)
    for event in (first, second):
        assert (event.kind, event.at_ms, event.detail) == ("submitted", now_ms, {})
        assert (event.attempt, event.epoch) == (NO_ATTEMPT, 0)


async def test_a_new_row_has_the_first_revision(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    assert (await head(store, execution_id(0))).rev == 1


async def test_lanes_come_to_be_with_their_first_execution(
    store: Store, clock: VirtualClock
) -> None:
    await put(store, clock, order(0, lane="b"), order(1, lane="a"), order(2, lane="b"))
    found = await store.lanes("", 10)
    assert [(lane.name, lane.state) for lane in found] == [
        ("a", LaneState.ACTIVE),
        ("b", LaneState.ACTIVE),
    ]


async def test_a_lane_that_exists_keeps_its_state(store: Store, clock: VirtualClock) -> None:
    change = LaneChange("main", 0, LaneState.PAUSED)
    assert await store.commit(Changeset(lanes=[change]), clock.now_ms())
    before = await store.lanes("", 10)

    await put(store, clock, order(0, lane="main"))

    assert await store.lanes("", 10) == before
