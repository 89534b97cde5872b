"""Submitting: batches, refusals that spoil nothing else, and keys that make it repeatable."""

from __future__ import annotations

import pytest

from flowfabric.core.ids import public_id
from flowfabric.core.model import Query
from flowfabric.core.states import LaneState, State
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.engine import Engine
from flowfabric.engine.submissions import Submitted
from flowfabric.errors import IdempotencyConflict, InvalidInput
from flowfabric.testing.build import KIND, TTL_MS, execution_id, order, policy
from flowfabric.testing.faults import FaultyStore, Verb
from tests.engine.desk import Desk

DAY_MS = 86_400_000


async def count(desk: Desk) -> int:
    return len((await desk.engine.read.find(Query(limit=1_000))).items)


async def test_a_large_submit_is_answered_in_order(desk: Desk) -> None:
    orders = [order(number) for number in range(BATCH_LIMIT + 7)]
    faulty = FaultyStore(desk.store)
    answers = await Engine(faulty, clock=desk.clock).submit(orders)
    assert answers == [Submitted(each.id, created=True) for each in orders]
    assert faulty.calls[Verb.INSERT] == 2
    assert await count(desk) == len(orders)


async def test_nothing_to_submit_is_no_call(desk: Desk) -> None:
    faulty = FaultyStore(desk.store)
    engine = Engine(faulty, clock=desk.clock)
    assert await engine.submit([]) == []
    refused = await engine.submit([order(policy="{")])
    assert refused[0].error is not None
    assert faulty.calls[Verb.INSERT] == 0


async def test_a_refused_order_spoils_no_other(desk: Desk) -> None:
    await desk.engine.set_lane("closed", LaneState.DISABLED)
    bad = {
        "invalid_policy_json": order(1, policy='{"colour":"red"}'),
        "lane_closed": order(2, lane="closed"),
        "invalid_input": order(3, deadline_ms=1),
    }
    good = [order(4), order(5)]
    first, *answers, last = await desk.engine.submit([good[0], *bad.values(), good[1]])
    assert (first.created, last.created) == (True, True)
    assert [answer.error.code for answer in answers if answer.error] == list(bad)
    assert [answer.id for answer in answers] == [each.id for each in bad.values()]
    assert await count(desk) == 2


async def test_answers_stay_with_their_orders_when_two_have_one_id(desk: Desk) -> None:
    answers = await desk.engine.submit([order(1), order(1, policy="{"), order(1), order(2)])
    assert [(answer.id, answer.created) for answer in answers] == [
        (execution_id(1), True),
        (execution_id(1), False),
        (execution_id(1), False),
        (execution_id(2), True),
    ]
    assert [answer.error is not None for answer in answers] == [False, True, False, False]


async def test_the_order_of_refusals_of_a_submit(desk: Desk) -> None:
    """The lane first, then the policy, then the deadline."""
    await desk.engine.set_lane("closed", LaneState.DRAINING)
    codes: list[str] = []
    for lane, text in (("closed", "{"), ("main", "{"), ("main", "")):
        answer = (await desk.engine.submit([order(lane=lane, policy=text, deadline_ms=1)]))[0]
        assert answer.error is not None
        codes.append(answer.error.code)
    assert codes == ["lane_closed", "invalid_policy_json", "invalid_input"]


async def test_a_key_with_another_payload_is_a_conflict(desk: Desk) -> None:
    first = await desk.submit(order(1, key="k", digest="one"))
    answers = await desk.engine.submit(
        [order(2, key="k", digest="two"), order(3), order(4, key="k", digest="one")]
    )
    conflict, other, same = answers
    assert isinstance(conflict.error, IdempotencyConflict)
    assert conflict.error.details == {"execution": public_id(first)}
    assert (other.error, other.created) == (None, True)
    assert same == Submitted(first, created=False)
    assert await count(desk) == 2


async def test_two_orders_with_one_key_in_one_call_are_one(desk: Desk) -> None:
    answers = await desk.engine.submit([order(n, key="k", digest="d") for n in (1, 2)])
    assert answers == [
        Submitted(execution_id(1), created=True),
        Submitted(execution_id(1), created=False),
    ]


async def test_keys_belong_to_a_namespace(desk: Desk) -> None:
    answers = await desk.engine.submit(
        [
            order(1, key="k", digest="a"),
            order(2, key="k", digest="b", namespace="other"),
            order(3, key="k", digest="b", namespace="other"),
        ]
    )
    assert [answer.created for answer in answers] == [True, True, False]
    assert answers[2].id == execution_id(2)


@pytest.mark.parametrize("window_ms", [None, 60_000])
async def test_a_key_lives_as_long_as_its_window(desk: Desk, window_ms: int | None) -> None:
    text = policy(dedup_window_ms=window_ms)
    first = await desk.submit(order(1, key="k", digest="d", policy=text))
    desk.clock.advance((window_ms or DAY_MS) - 1)
    again = await desk.engine.submit([order(2, key="k", digest="d", policy=text)])
    assert again == [Submitted(first, created=False)]
    desk.clock.advance(1)
    fresh = await desk.engine.submit([order(3, key="k", digest="e", policy=text)])
    assert fresh == [Submitted(execution_id(3), created=True)]


async def test_the_same_order_is_no_conflict_after_its_window(desk: Desk) -> None:
    wanted = order(1, key="k", digest="d", policy=policy(dedup_window_ms=1_000))
    id = await desk.submit(wanted)
    desk.clock.advance(2_000)
    assert await desk.engine.submit([wanted]) == [Submitted(id, created=False)]


async def test_a_key_answers_whatever_became_of_the_execution(desk: Desk) -> None:
    lease = await desk.running(order(1, key="k", digest="d"))
    await desk.engine.complete(lease, b"1")
    assert await desk.engine.submit([order(2, key="k", digest="d")]) == [
        Submitted(lease.id, created=False)
    ]
    assert (await desk.head(lease.id)).state is State.COMPLETED


async def test_what_is_submitted_is_claimed_by_priority_then_age(desk: Desk) -> None:
    for number, priority in enumerate([0, 5, 0, 9_000, 5]):
        await desk.submit(order(number, priority=priority))
        desk.clock.advance(1)
    leases = await desk.claim(limit=9)
    assert [lease.id for lease in leases] == [execution_id(number) for number in (3, 1, 4, 0, 2)]


async def test_a_claim_takes_from_its_namespace_and_lanes_alone(desk: Desk) -> None:
    await desk.engine.submit(
        [order(1), order(2, lane="side"), order(3, namespace="other"), order(4, lane="third")]
    )
    leases = await desk.claim(limit=9, lanes=("side", "main", "side"))
    assert {lease.id for lease in leases} == {execution_id(1), execution_id(2)}
    assert len(leases) == 2


@pytest.mark.parametrize(
    ("field", "worker", "token", "ttl_ms"),
    [
        ("ttl_ms", "w", "t", 4_999),
        ("token", "w", "", TTL_MS),
        ("worker", "a b", "t", TTL_MS),
        ("worker", "", "t", TTL_MS),
    ],
)
async def test_a_claim_that_cannot_be_right_is_refused_by_name(
    desk: Desk, field: str, worker: str, token: str, ttl_ms: int
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await desk.engine.claim(
            ["main"], 1, tasks=[KIND], worker=worker, token=token, ttl_ms=ttl_ms
        )
    assert refused.value.field == field


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_claim_of_nothing_takes_nothing(desk: Desk, limit: int) -> None:
    id = await desk.submit()
    assert await desk.claim(limit=limit) == []
    assert await desk.claim(lanes=()) == []
    assert (await desk.head(id)).state is State.WAITING


async def test_one_execution_can_be_asked_for_by_its_id(desk: Desk) -> None:
    await desk.engine.submit([order(1, priority=9), order(2), order(3, lane="side")])
    assert [lease.id for lease in await desk.claim(only=execution_id(2))] == [execution_id(2)]
    assert await desk.claim(only=execution_id(2)) == []
    assert await desk.claim(only=execution_id(3)) == []
