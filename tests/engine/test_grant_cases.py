"""Grants: a lease that has not started, consumed once by whoever holds its token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.core.ids import public_id
from flowfabric.core.model import Lease
from flowfabric.core.states import AttemptKind, AttemptState, Reason, State
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    ExecutionNotLeaseable,
    InvalidInput,
    Reaction,
)
from flowfabric.testing.build import LANE, TTL_MS, execution_id
from tests.engine.desk import VERBS, Desk, forged

ACTIVE = "active/leased/not_applicable/none/none/running_attempt/active"
GRANTED = "active/leased/not_applicable/waiting_for_worker/none/pending_first_attempt/active"


async def granted(desk: Desk, *, worker: str = "worker-1") -> Lease:
    return await desk.take(await desk.submit(), worker=worker, ttl_ms=5_000, start=False)


async def resumable(desk: Desk) -> Lease:
    """A grant for an attempt that was interrupted and can go on."""
    lease = await desk.running()
    await desk.engine.release(lease)
    return await desk.take(lease.id, worker="worker-a", ttl_ms=5_000, start=False)


async def refusal(desk: Desk, grant: Lease) -> ExecutionNotLeaseable:
    before = await desk.head(grant.id)
    with pytest.raises(ExecutionNotLeaseable) as refused:
        await desk.engine.start(grant)
    assert await desk.head(grant.id) == before
    return refused.value


@pytest.mark.case("LS-012")
async def test_the_holder_of_a_grant_can_start_it(desk: Desk) -> None:
    grant = await granted(desk)
    assert not grant.started
    assert await desk.vector(grant.id) == GRANTED
    assert await desk.attempts(grant.id) == []
    lease = await desk.engine.start(grant)
    assert lease.started
    assert await desk.vector(grant.id) == ACTIVE
    assert (await desk.head(grant.id)).reason is Reason.NONE
    assert [attempt.attempt for attempt in await desk.attempts(grant.id)] == [0]


@pytest.mark.case("LS-013")
async def test_a_grant_that_is_over_cannot_be_started(desk: Desk) -> None:
    grant = await granted(desk)
    desk.clock.set(grant.until_ms + 1_000)
    refused = await refusal(desk, grant)
    assert (refused.code, refused.reaction) == ("claim_grant_expired", Reaction.RETRYABLE)


async def reclaimable(desk: Desk) -> Lease:
    """A grant for work whose worker is not heard of any more."""
    lease = await desk.running()
    await desk.silent(lease)
    return await desk.take(lease.id, worker="w-rec", ttl_ms=5_000, start=False)


@pytest.mark.case("LS-014", "LS-029", "LS-044")
@pytest.mark.parametrize("make", [granted, reclaimable, resumable])
async def test_a_grant_belongs_to_whoever_knows_its_token(
    desk: Desk, make: Callable[[Desk], Awaitable[Lease]]
) -> None:
    grant = await make(desk)
    theirs = forged(grant, lease_token="another", worker="w-other")
    assert (await refusal(desk, theirs)).code == "invalid_claim_grant"
    assert (await desk.engine.start(grant)).started


@pytest.mark.case("LS-014", "LS-027")
async def test_what_was_not_granted_cannot_be_started(desk: Desk) -> None:
    grant = await granted(desk)
    await desk.engine.release(grant)
    invented = forged(grant, lease_token="invented")
    refused = await refusal(desk, invented)
    assert (refused.code, public_id(grant.id) in refused.message) == ("invalid_claim_grant", True)
    lease = await desk.take(grant.id)
    await desk.silent(lease)
    refused = await refusal(desk, invented)
    assert (refused.code, public_id(grant.id) in refused.message) == ("claim_grant_expired", True)


@pytest.mark.case("LS-015")
async def test_a_grant_for_what_has_ended_says_so(desk: Desk) -> None:
    grant = await granted(desk)
    await desk.engine.cancel(grant.id)
    with pytest.raises(ExecutionNotActive):
        await desk.engine.start(grant)


@pytest.mark.case("LS-022")
async def test_a_reclaimable_execution_can_be_granted(desk: Desk) -> None:
    await desk.silent(await desk.running())
    (grant,) = await desk.claim(worker="w-rec", start=False)
    assert (grant.id, grant.head.lane) == (execution_id(0), LANE)
    assert grant.token
    assert grant.until_ms > desk.clock.now_ms()
    head = await desk.head(grant.id)
    assert (head.reason, head.worker) == (Reason.GRANTED, "w-rec")
    assert head.next_kind is AttemptKind.RECLAIM


@pytest.mark.case("LS-026")
async def test_a_reclaim_of_an_unknown_execution_is_not_found(desk: Desk) -> None:
    with pytest.raises(ExecutionNotFound):
        await desk.claim(only=execution_id(999), start=False)


@pytest.mark.case("LS-042")
async def test_a_grant_of_an_interrupted_attempt_goes_on_with_it(desk: Desk) -> None:
    lease = await desk.engine.start(await resumable(desk))
    assert lease.head.attempt == 0
    assert await desk.vector(lease.id) == ACTIVE
    assert [attempt.attempt for attempt in await desk.attempts(lease.id)] == [0]


@pytest.mark.case("LS-043")
@pytest.mark.parametrize("is_swept", [False, True])
async def test_a_resume_grant_that_is_over_cannot_be_started(desk: Desk, is_swept: bool) -> None:
    grant = await resumable(desk)
    desk.clock.set(grant.until_ms + 400)
    if is_swept:
        assert (await desk.sweep()).duties == {"grant_expiry": 1}
    code = "invalid_claim_grant" if is_swept else "claim_grant_expired"
    assert (await refusal(desk, grant)).code == code


async def test_an_unused_grant_goes_back_to_where_it_was(desk: Desk) -> None:
    grant = await granted(desk)
    await desk.silent(grant)
    head = await desk.head(grant.id)
    assert (head.state, head.attempt_state) == (State.WAITING, AttemptState.PENDING_FIRST)
    assert (head.reclaim_count, head.next_attempt) == (0, 0)
    assert await desk.history(grant.id) == ["submitted", "granted", "grant_expired"]


async def test_an_unused_grant_of_lost_work_leaves_it_lost(desk: Desk) -> None:
    await desk.silent(await desk.running())
    (grant,) = await desk.claim(start=False)
    await desk.silent(grant)
    head = await desk.head(grant.id)
    assert (head.state, head.reclaim_count) == (State.ORPHANED, 1)
    assert (await desk.take(grant.id)).head.attempt == 1


async def test_a_revoked_grant_counts_for_nothing(desk: Desk) -> None:
    grant = await granted(desk)
    assert (await desk.engine.revoke(grant.id)).revoked
    head = await desk.head(grant.id)
    assert (head.state, head.reclaim_count, head.epoch) == (State.WAITING, 0, grant.epoch + 1)
    assert (await refusal(desk, grant)).code == "invalid_claim_grant"


async def test_a_grant_can_be_renewed_before_it_starts(desk: Desk) -> None:
    grant = await granted(desk)
    renewed = (await desk.engine.renew([grant], TTL_MS))[0]
    assert renewed.error is None
    desk.clock.set(grant.until_ms)
    assert (await desk.engine.start(renewed.lease)).until_ms == renewed.lease.until_ms


async def test_a_started_lease_cannot_be_started(desk: Desk) -> None:
    lease = await desk.running()
    with pytest.raises(InvalidInput, match="has already started"):
        await desk.engine.start(lease)


@pytest.mark.parametrize("verb", ["complete", "fail", "delay", "progress"])
async def test_a_grant_says_nothing_before_it_starts(desk: Desk, verb: str) -> None:
    grant = await granted(desk)
    before = await desk.head(grant.id)
    with pytest.raises(InvalidInput, match="has not started"):
        await VERBS[verb](desk, grant)
    assert await desk.head(grant.id) == before
    # Nor with the grant's own words once it has: they know nothing of the attempt.
    await desk.engine.start(grant)
    with pytest.raises(InvalidInput, match="has not started"):
        await VERBS[verb](desk, grant)
    assert await desk.vector(grant.id) == ACTIVE
