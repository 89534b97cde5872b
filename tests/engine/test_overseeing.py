"""Verbs of operators: what they need, in which order they refuse, and races between them."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.core.operator import ExpireReason, RevokeOutcome
from flowfabric.core.states import PublicState, Reason, State
from flowfabric.engine.conflict import CONFLICT_PAUSES_SECONDS
from flowfabric.engine.engine import Engine
from flowfabric.errors import (
    Conflict,
    ExecutionNotActive,
    ExecutionNotEligible,
    FlowFabricError,
    InvalidInput,
    ReplaysExhausted,
)
from flowfabric.testing.build import execution_id, order, policy
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from tests.engine.desk import Desk

GATES = {
    Reason.PAUSED_BY_OPERATOR: ("blocked_by_operator", PublicState.WAITING),
    Reason.PAUSED_BY_POLICY: ("blocked_by_lane_state", PublicState.WAITING),
    Reason.WAITING_FOR_BUDGET: ("blocked_by_budget", PublicState.RATE_LIMITED),
    Reason.WAITING_FOR_QUOTA: ("blocked_by_quota", PublicState.RATE_LIMITED),
    Reason.WAITING_FOR_CAPABLE_WORKER: ("blocked_by_route", PublicState.WAITING),
}


async def test_a_higher_priority_goes_first(desk: Desk) -> None:
    ids = [await desk.submit(order(number)) for number in range(3)]
    await desk.engine.change_priority(ids[2], 10)
    assert [lease.id for lease in await desk.claim(limit=2)] == [ids[2], ids[0]]
    event = (await desk.events(ids[2]))[1]
    assert (event.kind, event.detail) == ("priority_changed", {"from": 0, "to": 10})


@pytest.mark.parametrize(("given", "stored"), [(-5, 0), (9_001, 9_000), (17, 17)])
async def test_a_priority_is_kept_within_its_bounds(desk: Desk, given: int, stored: int) -> None:
    id = await desk.submit()
    await desk.engine.change_priority(id, given)
    assert (await desk.snapshot(id)).priority == stored


async def test_only_what_waits_for_a_worker_has_a_priority_to_change(desk: Desk) -> None:
    lease = await desk.running()
    with pytest.raises(ExecutionNotEligible):
        await desk.engine.change_priority(lease.id, 5)
    await desk.engine.complete(lease, b"1")
    with pytest.raises(ExecutionNotEligible):
        await desk.engine.change_priority(lease.id, 5)


@pytest.mark.parametrize("reason", GATES)
async def test_a_block_keeps_it_back_until_it_is_taken_away(desk: Desk, reason: Reason) -> None:
    eligibility, public = GATES[reason]
    id = await desk.submit()
    assert await desk.engine.block(id, reason, detail="for now") is public
    vector = (await desk.snapshot(id)).vector
    assert (vector.eligibility, vector.blocking_reason) == (eligibility, reason)
    assert await desk.claim() == []
    assert await desk.engine.unblock(id, reason) is PublicState.WAITING
    assert (await desk.take(id)).head.attempt == 0


async def test_a_block_for_no_known_reason_is_refused(desk: Desk) -> None:
    id = await desk.submit()
    with pytest.raises(InvalidInput) as refused:
        await desk.engine.block(id, Reason.WAITING_FOR_CHILDREN)
    assert refused.value.code == "invalid_blocking_reason"


async def test_taking_one_reason_away_leaves_the_others(desk: Desk) -> None:
    id = await desk.submit(order(delay_until_ms=desk.clock.now_ms() + 60_000))
    await desk.engine.block(id, Reason.PAUSED_BY_OPERATOR)
    assert await desk.engine.unblock(id) is PublicState.DELAYED
    assert await desk.claim() == []


async def test_a_pause_outlives_the_timer_that_would_have_woken_it(desk: Desk) -> None:
    id = await desk.submit(order(delay_until_ms=desk.clock.now_ms() + 1_000))
    await desk.engine.block(id, Reason.PAUSED_BY_OPERATOR)
    desk.clock.advance(60_000)
    assert (await desk.sweep()).processed == 0
    assert await desk.claim() == []
    await desk.engine.unblock(id)
    assert [lease.id for lease in await desk.claim()] == [id]


async def test_an_unblock_that_expects_another_reason_is_refused(desk: Desk) -> None:
    id = await desk.submit()
    with pytest.raises(ExecutionNotEligible):
        await desk.engine.unblock(id)
    await desk.engine.block(id, Reason.PAUSED_BY_OPERATOR)
    with pytest.raises(ExecutionNotEligible):
        await desk.engine.unblock(id, Reason.WAITING_FOR_BUDGET)
    assert (await desk.head(id)).state is State.BLOCKED_OPERATOR


async def test_the_order_of_refusals_of_a_block(desk: Desk) -> None:
    """Not there, then over, then not waiting, then for no reason."""
    lease, over = await desk.running(order(1)), await desk.completed(order(2))
    codes: list[str] = []
    for id in (execution_id(9), over, lease.id):
        with pytest.raises(FlowFabricError) as refused:
            await desk.engine.block(id, Reason.WAITING_FOR_CHILDREN)
        codes.append(refused.value.code)
    assert codes == ["execution_not_found", "execution_not_active", "execution_not_eligible"]


async def test_a_revoke_says_what_there_was_instead_of_a_lease(desk: Desk) -> None:
    lease = await desk.running()
    await desk.engine.revoke(lease.id)
    assert await desk.engine.revoke(lease.id) == RevokeOutcome(False, 2, "already_revoked")
    lost = await desk.running(order(1))
    await desk.silent(lost)
    assert await desk.engine.revoke(lost.id) == RevokeOutcome(False, 2, "already_expired")


async def test_replays_are_counted_and_end(desk: Desk) -> None:
    id = await desk.completed(order(policy=policy(replays=2)))
    for _ in range(2):
        await desk.engine.replay(id, "once more")
        await desk.engine.complete(await desk.take(id), b"again")
    with pytest.raises(ReplaysExhausted):
        await desk.engine.replay(id)
    assert (await desk.snapshot(id)).replay_count == 2
    assert [attempt.kind for attempt in await desk.attempts(id)] == ["initial", "replay", "replay"]


async def test_a_replay_has_no_result_until_it_completes(desk: Desk) -> None:
    id = await desk.completed(result=b"old")
    await desk.engine.replay(id)
    assert await desk.engine.read.result(id) is None
    await desk.engine.complete(await desk.take(id), b"new")
    assert await desk.engine.read.result(id) == b"new"
    assert [attempt.result for attempt in await desk.attempts(id)] == [b"old", b"new"]


async def change_between(desk: Desk, id: ExecutionId, *, times: int) -> tuple[Engine, list[int]]:
    """An engine that loses the race for this row so many times."""
    changes: list[int] = []

    async def rival() -> None:
        changes.append(len(changes))
        await desk.engine.set_tags(id, {"demo.round": str(len(changes))})

    plan = [Fault(Verb.COMMIT, 1, Kind.DELAY, times=times, hook=rival)]
    return Engine(FaultyStore(desk.store, plan), clock=desk.clock), changes


async def test_a_lost_race_is_decided_again(desk: Desk) -> None:
    id = await desk.submit()
    engine, changes = await change_between(desk, id, times=2)
    await engine.change_priority(id, 9)
    assert len(changes) == 2
    assert (await desk.snapshot(id)).priority == 9
    assert await desk.engine.read.tags(id) == {"demo.round": "2"}


async def test_a_race_that_is_always_lost_is_a_conflict(desk: Desk) -> None:
    id = await desk.submit()
    engine, changes = await change_between(desk, id, times=99)
    with pytest.raises(Conflict) as refused:
        await engine.change_priority(id, 9)
    assert len(changes) == len(CONFLICT_PAUSES_SECONDS) + 1
    assert refused.value.details == {"execution": public_id(id)}
    assert (await desk.snapshot(id)).priority == 0


async def test_a_race_lost_to_the_end_is_told_as_that(desk: Desk) -> None:
    lease = await desk.running()

    async def rival() -> None:
        await desk.engine.complete(lease, b"1")

    plan = [Fault(Verb.COMMIT, 1, Kind.DELAY, hook=rival)]
    engine = Engine(FaultyStore(desk.store, plan), clock=desk.clock)
    with pytest.raises(ExecutionNotActive) as refused:
        await engine.cancel(lease.id)
    assert refused.value.details["terminal_outcome"] == "success"
    assert (await desk.head(lease.id)).state is State.COMPLETED


async def test_of_many_who_end_it_at_once_exactly_one_does(desk: Desk) -> None:
    lease = await desk.running()
    answers = await asyncio.gather(
        desk.engine.complete(lease, b"1"),
        desk.engine.expire(lease.id, ExpireReason.ATTEMPT_TIMEOUT),
        *(desk.another().engine.cancel(lease.id, str(number)) for number in range(5)),
        return_exceptions=True,
    )
    refused = [each for each in answers if isinstance(each, ExecutionNotActive)]
    late = [each for each in answers if each is False]
    assert len(refused) + len(late) == len(answers) - 1
    ends = [event for event in await desk.events(lease.id) if event.kind not in _BEFORE_THE_END]
    assert len(ends) == 1


_BEFORE_THE_END = ("submitted", "claimed")
