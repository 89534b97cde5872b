"""Saying the same twice: the answer of the first. Saying something else: what happened instead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease, Want
from flowfabric.core.operator import ExpireReason, RevokeOutcome, Source
from flowfabric.core.states import LaneState, PublicState, Reason, State
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed, Delayed, Failed, Finished, Outcome, Released
from flowfabric.engine.submissions import Submitted
from flowfabric.errors import (
    ExecutionNotActive,
    FlowFabricError,
    InvalidInput,
    LaneClosed,
    StaleLease,
)
from flowfabric.testing.build import KIND, LANE, TTL_MS, order, policy
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from tests.engine.desk import BROKEN, Desk

Say = Callable[[Lease, int], Outcome]

SAY: dict[str, Say] = {
    "complete": lambda lease, _: Completed(lease, b"1"),
    "complete otherwise": lambda lease, _: Completed(lease, b"2"),
    "retry": lambda lease, _: Failed(lease, BROKEN),
    "retry otherwise": lambda lease, _: Failed(lease, Failure("broke otherwise")),
    "retry another kind": lambda lease, _: Failed(lease, Failure("broke", "other")),
    "fail": lambda lease, _: Failed(lease, Failure("broke", fatal=True)),
    "delay": lambda lease, now_ms: Delayed(lease, now_ms + 1_000),
    "delay longer": lambda lease, now_ms: Delayed(lease, now_ms + 2_000),
    "release": lambda lease, _: Released(lease),
}


async def running(desk: Desk) -> Lease:
    return await desk.running(order(policy=policy(retries=1)))


async def say(desk: Desk, what: str, lease: Lease) -> Finished:
    return (await desk.engine.finish([SAY[what](lease, desk.clock.now_ms())]))[0]


@pytest.mark.parametrize("what", SAY)
async def test_a_repeated_call_gets_the_answer_of_the_first(desk: Desk, what: str) -> None:
    lease = await running(desk)
    said = SAY[what](lease, desk.clock.now_ms())
    (first,) = await desk.engine.finish([said])
    before = await desk.head(lease.id)
    (again,) = await desk.engine.finish([said])
    assert first.error is None
    assert again == msgspec.structs.replace(first, repeated=True)
    assert await desk.head(lease.id) == before
    # The same owner keeps its answer however late it asks.
    desk.clock.set(lease.until_ms + 1)
    assert (await desk.engine.finish([said]))[0].error is None


@pytest.mark.parametrize("what", SAY)
@pytest.mark.parametrize("other", SAY)
async def test_a_different_call_is_refused_with_what_happened(
    desk: Desk, what: str, other: str
) -> None:
    lease = await running(desk)
    first = await say(desk, what, lease)
    before = await desk.head(lease.id)
    second = await say(desk, other, lease)
    if what == other:
        assert second.error is None
    else:
        assert isinstance(second.error, ExecutionNotActive)
        assert second.error.details["state"] == first.state == second.state
    assert await desk.head(lease.id) == before


@pytest.mark.parametrize("what", SAY)
async def test_the_same_call_by_somebody_else_is_not_answered_for_them(
    desk: Desk, what: str
) -> None:
    lost = await running(desk)
    await desk.silent(lost)
    holder = await desk.take(lost.id)
    await say(desk, what, holder)
    late = await say(desk, what, lost)
    assert isinstance(late.error, ExecutionNotActive)
    assert not late.repeated


async def test_the_first_result_stays(desk: Desk) -> None:
    lease = await running(desk)
    await desk.engine.complete(lease, b"first")
    with pytest.raises(ExecutionNotActive):
        await desk.engine.complete(lease, b"second")
    assert await desk.engine.read.result(lease.id) == b"first"


async def test_a_grant_that_was_given_back_twice_is_answered_twice(desk: Desk) -> None:
    grant = await desk.take(await desk.submit(), start=False)
    first = await desk.engine.release(grant)
    again = await desk.engine.release(grant)
    assert again == msgspec.structs.replace(first, repeated=True)
    await desk.take(grant.id)
    with pytest.raises(StaleLease):
        await desk.engine.release(grant)


async def test_a_start_that_is_repeated_answers_the_same_lease(desk: Desk) -> None:
    grant = await desk.take(await desk.submit(), start=False)
    first = await desk.engine.start(grant)
    desk.clock.advance(10)
    assert await desk.engine.start(grant) == first
    assert await desk.history(grant.id) == ["submitted", "granted", "started"]


async def test_a_submit_that_is_repeated_makes_nothing_new(desk: Desk) -> None:
    id = await desk.submit(order(1))
    assert await desk.engine.submit([order(1)]) == [Submitted(id, created=False)]
    assert await desk.history(id) == ["submitted"]


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_submit_that_is_repeated_too_late_is_answered_like_the_first(
    desk: Desk, key: str | None
) -> None:
    wanted = order(1, key=key, deadline_ms=desk.clock.now_ms() + 1_000)
    id = await desk.submit(wanted)
    desk.clock.advance(1_000)
    new = order(2, deadline_ms=wanted.deadline_ms)
    again, refused = await desk.engine.submit([wanted, new])
    assert again == Submitted(id, created=False)
    assert isinstance(refused.error, InvalidInput)
    assert refused.error.field == "deadline"
    assert await desk.store.load(Want(ids=[new.id])) == [None]


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_submit_that_is_repeated_to_a_closed_lane_is_answered_like_the_first(
    desk: Desk, key: str | None
) -> None:
    id = await desk.submit(order(1, key=key))
    await desk.engine.set_lane(LANE, LaneState.DRAINING)
    again, refused = await desk.engine.submit([order(1, key=key), order(2, key="other")])
    assert again == Submitted(id, created=False)
    assert isinstance(refused.error, LaneClosed)
    await desk.engine.set_lane(LANE, LaneState.ACTIVE)
    assert (await desk.engine.submit([order(2, key="other")]))[0].created


async def test_a_claim_that_is_repeated_is_answered_although_its_lane_was_paused(
    desk: Desk,
) -> None:
    await desk.engine.submit([order(number) for number in range(2)])
    claim = partial(
        desk.engine.claim, [LANE], 1, tasks=[KIND], worker="w", token="mine", ttl_ms=TTL_MS
    )
    first = await claim()
    await desk.engine.set_lane(LANE, LaneState.PAUSED)
    assert await claim(repeated=True) == first
    await desk.engine.complete(first[0], b"1")
    assert await claim(repeated=True) == []


async def test_a_claim_that_is_repeated_answers_the_same_leases(desk: Desk) -> None:
    await desk.engine.submit([order(number) for number in range(4)])

    async def claim(*, repeated: bool) -> list[Lease]:
        return await desk.engine.claim(
            ["main"], 2, tasks=[KIND], worker="w", token="mine", ttl_ms=TTL_MS, repeated=repeated
        )

    first = await claim(repeated=False)
    assert await claim(repeated=True) == first
    assert len(await desk.claim(limit=9)) == 2
    for lease in first:
        await desk.engine.complete(lease, b"1")
    assert await claim(repeated=True) == []


async def test_a_holder_who_cancels_twice_is_answered_twice(desk: Desk) -> None:
    lease = await running(desk)
    for _ in range(2):
        answer = await desk.engine.cancel(lease.id, source=Source.LEASE_HOLDER, lease=lease)
        assert answer is PublicState.CANCELLED
    assert (await desk.history(lease.id)).count("cancelled") == 1


Oversee = Callable[[Engine, ExecutionId], Awaitable[object]]

# Each verb of an operator, the state it begins from, and its answer.
OPERATOR: dict[str, tuple[State, Oversee, object]] = {
    "cancel": (State.ACTIVE, lambda e, id: e.cancel(id, "stop"), PublicState.CANCELLED),
    "expire": (State.ACTIVE, lambda e, id: e.expire(id, ExpireReason.EXECUTION_DEADLINE), True),
    "revoke": (State.ACTIVE, lambda e, id: e.revoke(id, "gone"), RevokeOutcome(True, 2)),
    "replay": (State.COMPLETED, lambda e, id: e.replay(id), PublicState.WAITING),
    "priority": (State.WAITING, lambda e, id: e.change_priority(id, 9), None),
    "block": (
        State.WAITING,
        lambda e, id: e.block(id, Reason.PAUSED_BY_OPERATOR),
        PublicState.WAITING,
    ),
    "unblock": (State.BLOCKED_OPERATOR, lambda e, id: e.unblock(id), PublicState.WAITING),
    "tags": (State.WAITING, lambda e, id: e.set_tags(id, {"demo.tenant": "acme"}), 1),
}


async def begin(desk: Desk, state: State) -> ExecutionId:
    id = await desk.submit()
    match state:
        case State.ACTIVE | State.COMPLETED:
            lease = await desk.take(id)
            if state is State.COMPLETED:
                await desk.engine.complete(lease, b"1")
        case State.BLOCKED_OPERATOR:
            await desk.engine.block(id, Reason.PAUSED_BY_OPERATOR)
    return id


@pytest.mark.parametrize("verb", OPERATOR)
@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_an_operator_is_answered_although_the_reply_was_lost(
    desk: Desk, verb: str, kind: Kind
) -> None:
    state, call, answer = OPERATOR[verb]
    id = await begin(desk, state)
    before = await desk.head(id)
    faulty = FaultyStore(desk.store, [Fault(Verb.COMMIT, 1, kind)])
    engine = Engine(faulty, clock=desk.clock)
    assert await call(engine, id) == answer
    assert len(faulty.hit) == 1
    assert (await desk.head(id)).rev == before.rev + 1


async def test_an_operator_who_is_too_late_is_told_who_was_first(desk: Desk) -> None:
    id = await desk.completed()
    for call in (desk.engine.cancel(id), desk.engine.revoke(id), desk.engine.unblock(id)):
        with pytest.raises(FlowFabricError) as refused:
            await call
        assert refused.value.code == "execution_not_active"
        assert refused.value.details["terminal_outcome"] == "success"


@pytest.mark.parametrize("verb", ["complete", "retry", "delay", "release"])
@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_a_worker_is_answered_although_the_reply_was_lost(
    desk: Desk, verb: str, kind: Kind
) -> None:
    lease = await running(desk)
    faulty = FaultyStore(desk.store, [Fault(Verb.APPLY, 1, kind)])
    engine = Engine(faulty, clock=desk.clock)
    finished = (await engine.finish([SAY[verb](lease, desk.clock.now_ms())]))[0]
    assert (finished.error, finished.repeated) == (None, kind is Kind.AFTER)
    assert (await desk.head(lease.id)).rev == lease.head.rev + 1


async def test_a_claim_whose_reply_was_lost_takes_nothing_else(desk: Desk) -> None:
    await desk.engine.submit([order(number) for number in range(4)])
    faulty = FaultyStore(desk.store, [Fault(Verb.CLAIM, 1, Kind.AFTER)])
    engine = Engine(faulty, clock=desk.clock)
    leases = await engine.claim(["main"], 2, tasks=[KIND], worker="w", token="mine", ttl_ms=TTL_MS)
    assert [lease.id for lease in leases] == [order(0).id, order(1).id]
    assert len(await desk.claim(limit=9)) == 2
