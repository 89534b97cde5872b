"""Leases: renewing, fencing, revoking, and taking up what a silent worker left."""

from __future__ import annotations

import pytest

from flowfabric.core.operator import RevokeOutcome
from flowfabric.core.states import AttemptKind, AttemptLifecycle, PublicState, State
from flowfabric.engine.overseeing import OPERATOR
from flowfabric.errors import (
    ExecutionNotActive,
    LeaseExpired,
    StaleLease,
)
from flowfabric.testing.build import KIND, TTL_MS, order, policy
from tests.engine.desk import VERBS, Desk, forged

ACTIVE = "active/leased/not_applicable/none/none/running_attempt/active"
LOST = "/not_applicable/waiting_for_worker/none/attempt_interrupted/active"


@pytest.mark.case("LS-001")
async def test_a_renewal_moves_the_end_and_keeps_the_epoch(desk: Desk) -> None:
    lease = await desk.running()
    desk.clock.set(lease.until_ms - 5_000)
    renewed = (await desk.engine.renew([lease], 60_000))[0]
    assert renewed.error is None
    head = await desk.head(lease.id)
    assert head.lease_until_ms == renewed.lease.until_ms == desk.clock.now_ms() + 60_000
    assert head.lease_until_ms > lease.until_ms
    assert head.epoch == renewed.lease.epoch == lease.epoch
    held = (await desk.snapshot(lease.id)).lease
    assert held is not None
    assert held.last_heartbeat_ms == desk.clock.now_ms()


@pytest.mark.case("LS-003", "LS-011")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("added", [7, 998, -1])
async def test_a_wrong_epoch_is_stale(desk: Desk, verb: str, added: int) -> None:
    lease = await desk.running()
    before = await desk.head(lease.id)
    with pytest.raises(StaleLease):
        await VERBS[verb](desk, forged(lease, epoch=lease.epoch + added))
    assert await desk.head(lease.id) == before


@pytest.mark.case("LS-004")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_lease_that_ended_is_refused_to_its_holder(desk: Desk, verb: str) -> None:
    lease = await desk.running()
    desk.clock.set(lease.until_ms)
    with pytest.raises(LeaseExpired):
        await VERBS[verb](desk, lease)


@pytest.mark.case("LS-007")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_holder_hears_that_the_execution_is_over(desk: Desk, verb: str) -> None:
    lease = await desk.running()
    await desk.engine.cancel(lease.id, "stop")
    with pytest.raises(ExecutionNotActive) as refused:
        await VERBS[verb](desk, lease)
    details = refused.value.details
    assert (details["lifecycle_phase"], details["terminal_outcome"]) == ("terminal", "cancelled")
    assert details["reason"] == "stop"


@pytest.mark.case("LS-008")
async def test_an_operator_can_complete_in_place_of_the_holder(desk: Desk) -> None:
    held = await desk.running()
    adopted = await desk.engine.adopt(held.id)
    await desk.engine.complete(adopted, b"by hand")
    assert (await desk.snapshot(held.id)).public_state is PublicState.COMPLETED
    assert await desk.engine.read.result(held.id) == b"by hand"


async def test_an_operator_cannot_adopt_what_nobody_holds(desk: Desk) -> None:
    id = await desk.submit()
    with pytest.raises(ExecutionNotActive):
        await desk.engine.adopt(id)
    lease = await desk.take(id)
    desk.clock.set(lease.until_ms)
    with pytest.raises(LeaseExpired):
        await desk.engine.adopt(id)


@pytest.mark.case("LS-017")
async def test_an_operator_can_take_one_execution_for_itself(desk: Desk) -> None:
    id = await desk.submit()
    lease = await desk.take(id, worker=OPERATOR)
    assert (lease.epoch, lease.head.attempt, bool(lease.token)) == (1, 0, True)
    assert await desk.vector(id) == ACTIVE
    held = (await desk.snapshot(id)).lease
    assert held is not None
    assert (held.worker, lease.started) == ("operator", True)


@pytest.mark.case("LS-019")
async def test_the_work_of_a_silent_worker_becomes_reclaimable(desk: Desk) -> None:
    lease = await desk.running()
    desk.clock.set(lease.until_ms + 100)
    assert (await desk.sweep()).duties == {"lease_expiry": 1}
    assert await desk.vector(lease.id) == f"active/lease_expired_reclaimable{LOST}"


@pytest.mark.case("LS-020", "LS-030")
async def test_a_reclaim_is_a_new_attempt_by_somebody_else(desk: Desk) -> None:
    lease = await desk.running()
    await desk.silent(lease)
    assert (await desk.head(lease.id)).reclaim_count == 1
    grant = await desk.take(lease.id, worker="w-rec", start=False)
    again = await desk.engine.start(grant)
    assert again.epoch > lease.epoch
    assert await desk.vector(lease.id) == ACTIVE
    old, new = await desk.attempts(lease.id)
    assert (old.attempt, old.lifecycle) == (0, AttemptLifecycle.INTERRUPTED_RECLAIMED)
    assert (new.attempt, new.kind) == (1, AttemptKind.RECLAIM)
    assert (new.lifecycle, new.worker) == (AttemptLifecycle.STARTED, "w-rec")
    head = await desk.head(lease.id)
    assert (head.reclaim_count, head.attempt) == (1, 1)
    assert await desk.claim(only=lease.id) == []


@pytest.mark.case("LS-023", "LS-048")
async def test_a_live_lease_gives_nobody_else_anything(desk: Desk) -> None:
    lease = await desk.running()
    assert await desk.claim(only=lease.id, worker="w-other") == []
    told = await desk.engine.read.explain(lease.id)
    assert lease.head.worker in told.sentence
    await desk.silent(lease)
    again = await desk.take(lease.id, worker="w-other")
    assert again.epoch > lease.epoch
    renewed = (await desk.engine.renew([again], TTL_MS))[0]
    assert renewed.error is None
    with pytest.raises(StaleLease, match="w-other"):
        await desk.engine.complete(lease, b"late")


@pytest.mark.case("LS-025")
async def test_a_lease_lost_too_often_ends_the_execution(desk: Desk) -> None:
    id = await desk.submit(order(policy=policy(reclaims=2)))
    for _ in range(2):
        await desk.silent(await desk.take(id))
        assert (await desk.head(id)).state is State.ORPHANED
    lease = await desk.take(id)
    await desk.silent(lease)
    snapshot = await desk.snapshot(id)
    assert snapshot.public_state is PublicState.FAILED
    assert (snapshot.outcome_detail, snapshot.reclaim_count) == ("max_reclaims_exceeded", 2)
    assert await desk.claim(only=id) == []


@pytest.mark.case("LS-035")
async def test_the_token_is_the_one_that_the_caller_chose(desk: Desk) -> None:
    lost = await desk.running()
    await desk.silent(lost)
    leases = await desk.engine.claim(
        ["main"], 1, tasks=[KIND], worker="w-rec", token="my-own-token", ttl_ms=TTL_MS
    )
    assert [lease.token for lease in leases] == ["my-own-token"]
    assert leases[0].epoch >= 1
    assert (await desk.head(lost.id)).lease_token == "my-own-token"


@pytest.mark.case("LS-036")
async def test_every_reclaim_has_a_higher_epoch(desk: Desk) -> None:
    id = await desk.submit()
    epochs: list[int] = []
    for _ in range(3):
        lease = await desk.take(id)
        epochs.append(lease.epoch)
        await desk.silent(lease)
    # The loss itself raises it as well, so that the old holder is fenced off at once.
    assert epochs == [1, 3, 5]


@pytest.mark.case("LS-049")
async def test_a_revoked_lease_is_gone_and_the_work_is_claimable(desk: Desk) -> None:
    id = await desk.submit()
    for _ in range(6):
        await desk.engine.release(await desk.take(id))
    lease = await desk.take(id, worker="wiid-x")
    before = await desk.history(id)
    assert lease.epoch == 7
    answer = await desk.engine.revoke(id, "lost touch", worker="wiid-x")
    assert answer == RevokeOutcome(True, 8)
    head = await desk.head(id)
    assert (head.epoch, head.worker, head.lease_until_ms) == (8, "", None)
    assert await desk.history(id) == [*before, "lease_revoked"]
    assert await desk.vector(id) == f"active/lease_revoked{LOST}"
    assert (await desk.snapshot(id)).blocking_detail == "lease revoked: lost touch"
    assert (await desk.take(id)).head.attempt_kind is AttemptKind.RECLAIM


@pytest.mark.case("LS-050")
async def test_revoking_what_is_not_there_changes_nothing(desk: Desk) -> None:
    id = await desk.submit()
    waiting = await desk.head(id)
    assert await desk.engine.revoke(id) == RevokeOutcome(False, 0, "no_active_lease")
    assert await desk.head(id) == waiting
    await desk.take(id, worker="w-1")
    held = await desk.head(id)
    answer = await desk.engine.revoke(id, worker="w-2")
    assert answer == RevokeOutcome(False, 1, "different_worker_instance_id")
    assert await desk.head(id) == held
    assert await desk.history(id) == ["submitted", "claimed"]


async def test_copies_of_a_lease_are_renewed_alike_on_every_store(desk: Desk) -> None:
    """One that was handed out says what it said then; one that was adopted is a name, and the row
    says the rest."""
    lease = await desk.running()
    adopted = await desk.engine.adopt(lease.id)
    revs = []
    for copy in (adopted, lease, adopted, adopted, lease):
        (answer,) = await desk.engine.renew([copy], TTL_MS)
        revs.append((answer.error, answer.lease.head.rev))
    assert revs == [(None, 2), (None, 2), (None, 4), (None, 5), (None, 2)]


@pytest.mark.case("LS-052")
async def test_the_log_tells_who_held_it_and_leaves_renewals_out(desk: Desk) -> None:
    lease = await desk.running(order(1))
    await desk.engine.renew([lease], TTL_MS)
    await desk.engine.complete(lease, b"1")
    assert await desk.history(lease.id) == ["submitted", "claimed", "completed"]
    lost = await desk.running(order(2))
    await desk.silent(lost)
    await desk.take(lost.id, worker="w-2")
    assert await desk.history(lost.id) == ["submitted", "claimed", "lease_expired", "claimed"]
    taken = (await desk.events(lost.id))[-1]
    assert taken.detail == {"worker": "w-2", "kind": "reclaim"}


@pytest.mark.case("LS-053")
async def test_a_lease_that_ended_long_ago_is_swept_and_claimed_as_usual(desk: Desk) -> None:
    lease = await desk.running()
    desk.clock.set(lease.until_ms + 300_000)
    swept = await desk.sweep()
    assert (swept.processed, swept.errors) == (1, 0)
    head = await desk.head(lease.id)
    assert (head.state, head.lease_until_ms, head.worker) == (State.ORPHANED, None, "")
    (attempt,) = await desk.attempts(lease.id)
    assert (attempt.lifecycle, attempt.category) == ("interrupted_reclaimed", "lease_expired")
    assert [each.id for each in await desk.claim()] == [lease.id]


@pytest.mark.case("LS-055")
@pytest.mark.parametrize("verb", ["delay", "release"])
async def test_whoever_gives_it_back_has_no_lease(desk: Desk, verb: str) -> None:
    lease = await desk.running()
    await VERBS[verb](desk, lease)
    head = await desk.head(lease.id)
    assert (head.lease_until_ms, head.worker) == (None, "")
    assert (await desk.snapshot(lease.id)).lease is None


@pytest.mark.parametrize("verb", VERBS)
async def test_a_revoked_holder_hears_of_it(desk: Desk, verb: str) -> None:
    lease = await desk.running()
    await desk.engine.revoke(lease.id, "moved away")
    with pytest.raises(Exception, match="moved away") as refused:
        await VERBS[verb](desk, lease)
    assert getattr(refused.value, "code", "") == "lease_revoked"


async def test_a_renewed_lease_is_not_taken_by_its_early_timer(desk: Desk) -> None:
    lease = await desk.running()
    desk.clock.set(lease.until_ms - 1_000)
    await desk.engine.renew([lease], TTL_MS)
    desk.clock.set(lease.until_ms)
    swept = await desk.sweep()
    assert (swept.processed, swept.errors) == (0, 0)
    assert await desk.vector(lease.id) == ACTIVE
    assert (await desk.sweep()).next_ms == lease.until_ms - 1_000 + TTL_MS
