"""Submit, claim, progress, complete, cancel, replay, and what reads say after each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.app import App
from flowfabric.core.ids import public_id
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease, Query
from flowfabric.core.operator import ExpireReason, Source
from flowfabric.core.states import TERMINAL, AttemptKind, AttemptLifecycle, PublicState
from flowfabric.engine.submissions import Submitted
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    ExecutionNotTerminal,
    IdempotencyConflict,
    InvalidInput,
)
from flowfabric.store import Store
from flowfabric.testing.build import TTL_MS, execution_id, order
from flowfabric.worker.context import Context
from tests.engine.desk import BROKEN, VERBS, Desk, forged

WAITING = "runnable/unowned/eligible_now/waiting_for_worker/none/pending_first_attempt/waiting"
ACTIVE = "active/leased/not_applicable/none/none/running_attempt/active"
COMPLETED = "terminal/unowned/not_applicable/none/success/attempt_terminal/completed"
NEVER = execution_id(999)


@pytest.mark.case("LC-001")
async def test_a_new_execution_waits_for_a_worker(desk: Desk) -> None:
    wanted = order()
    assert await desk.engine.submit([wanted]) == [Submitted(wanted.id, created=True)]
    snapshot = await desk.snapshot(wanted.id)
    assert await desk.vector(wanted.id) == WAITING
    assert snapshot.public_state is PublicState.WAITING
    assert (snapshot.attempt, (await desk.head(wanted.id)).next_attempt) == (None, 0)
    assert snapshot.created_ms == desk.clock.now_ms()
    listed = await desk.engine.read.find(Query())
    assert [row.id for row in listed.items] == [wanted.id]
    assert (await desk.take(wanted.id)).head.attempt == 0


@pytest.mark.case("LC-002")
async def test_a_claim_begins_the_first_attempt(desk: Desk) -> None:
    id = await desk.submit()
    grant = await desk.take(id, ttl_ms=5_000, start=False)
    started = await desk.engine.start(grant)
    lease = (await desk.engine.renew([started], 30_000))[0].lease
    assert (lease.epoch, lease.head.attempt) == (1, 0)
    assert lease.token
    assert await desk.vector(id) == ACTIVE
    held = (await desk.snapshot(id)).lease
    assert held is not None
    assert (held.epoch, held.expires_ms) == (lease.epoch, desk.clock.now_ms() + 30_000)
    (attempt,) = await desk.attempts(id)
    assert (attempt.kind, attempt.lifecycle) == (AttemptKind.INITIAL, AttemptLifecycle.STARTED)
    assert await desk.claim() == []


@pytest.mark.case("LC-003")
async def test_completing_keeps_the_result_byte_by_byte(desk: Desk) -> None:
    lease = await desk.running()
    result = b'{"status":"ok"}'
    await desk.engine.complete(lease, result)
    assert await desk.vector(lease.id) == COMPLETED
    assert (await desk.snapshot(lease.id)).lease is None
    (attempt,) = await desk.attempts(lease.id)
    assert attempt.lifecycle is AttemptLifecycle.ENDED_SUCCESS
    assert await desk.engine.read.result(lease.id) == result


@pytest.mark.case("LC-005")
async def test_a_waiting_execution_can_be_cancelled(desk: Desk) -> None:
    id = await desk.submit()
    assert await desk.engine.cancel(id, "not needed") is PublicState.CANCELLED
    assert await desk.vector(id) == (
        "terminal/unowned/not_applicable/none/cancelled/pending_first_attempt/cancelled"
    )
    assert (await desk.snapshot(id)).lease is None
    assert await desk.claim() == []


@pytest.mark.case("LC-006")
async def test_a_running_execution_can_be_cancelled(desk: Desk) -> None:
    lease = await desk.running()
    await desk.engine.cancel(lease.id, "not needed")
    assert await desk.vector(lease.id) == (
        "terminal/unowned/not_applicable/none/cancelled/attempt_terminal/cancelled"
    )
    assert (await desk.snapshot(lease.id)).lease is None
    (attempt,) = await desk.attempts(lease.id)
    assert attempt.lifecycle is AttemptLifecycle.ENDED_CANCELLED


@pytest.mark.case("LC-007")
async def test_a_cancel_from_outside_raises_the_epoch_and_is_logged_once(desk: Desk) -> None:
    id = await desk.submit()
    for _ in range(4):
        await desk.engine.release(await desk.take(id))
    lease = await desk.take(id, worker="wiid-alpha")
    assert lease.epoch == 5
    before = await desk.history(id)
    assert await desk.engine.cancel(id, "stop") is PublicState.CANCELLED
    head = await desk.head(id)
    assert (head.epoch, head.worker, head.lease_until_ms) == (6, "", None)
    event = (await desk.events(id))[-1]
    assert await desk.history(id) == [*before, "cancelled"]
    assert event.detail == {"reason": "stop", "source": Source.OPERATOR}


@pytest.mark.case("LC-010")
async def test_what_succeeded_cannot_be_cancelled(desk: Desk) -> None:
    id = await desk.completed()
    before = await desk.head(id)
    with pytest.raises(ExecutionNotActive) as refused:
        await desk.engine.cancel(id)
    assert refused.value.details["terminal_outcome"] == "success"
    assert await desk.head(id) == before


@pytest.mark.case("LC-011")
async def test_cancelling_an_unknown_execution_is_not_found(desk: Desk) -> None:
    with pytest.raises(ExecutionNotFound) as refused:
        await desk.engine.cancel(NEVER)
    assert refused.value.details == {"execution": public_id(NEVER)}


@pytest.mark.case("LC-012")
async def test_a_holder_who_cancels_must_show_its_lease(desk: Desk) -> None:
    lease = await desk.running()
    with pytest.raises(InvalidInput) as refused:
        await desk.engine.cancel(lease.id, source=Source.LEASE_HOLDER)
    assert refused.value.code == "fence_required"
    assert await desk.vector(lease.id) == ACTIVE
    await desk.engine.cancel(lease.id, source=Source.LEASE_HOLDER, lease=lease)
    assert (await desk.snapshot(lease.id)).public_state is PublicState.CANCELLED


@pytest.mark.case("LC-015")
async def test_the_same_key_answers_the_execution_that_it_made(desk: Desk) -> None:
    first = await desk.submit(order(1, key="order-7", digest="d1"))
    again = order(2, key="order-7", digest="d1")
    other = order(3, key="order-7", digest="d2")
    assert await desk.engine.submit([again]) == [Submitted(first, created=False)]
    conflict = (await desk.engine.submit([other]))[0]
    assert isinstance(conflict.error, IdempotencyConflict)
    assert conflict.id == first
    assert len((await desk.engine.read.find(Query())).items) == 1


@pytest.mark.case("LC-017")
async def test_every_step_of_a_life_shows_all_seven_dimensions(desk: Desk) -> None:
    id = await desk.submit(order(priority=50))
    seen = [await desk.vector(id)]
    lease = await desk.take(id)
    seen.append(await desk.vector(id))
    await desk.engine.delay(lease, desk.clock.now_ms() + 1_000)
    seen.append(await desk.vector(id))
    desk.clock.advance(1_000)
    await desk.sweep()
    seen.append(await desk.vector(id))
    again = await desk.take(id)
    seen.append(await desk.vector(id))
    await desk.engine.complete(again, b"1")
    seen.append(await desk.vector(id))
    assert seen == [
        WAITING,
        ACTIVE,
        "runnable/unowned/not_eligible_until_time/waiting_for_delay/none/attempt_interrupted/delayed",
        "runnable/unowned/eligible_now/waiting_for_worker/none/attempt_interrupted/waiting",
        ACTIVE,
        COMPLETED,
    ]
    assert (await desk.snapshot(id)).priority == 50


@pytest.mark.case("LC-018")
async def test_every_verb_says_that_an_unknown_execution_is_not_found(desk: Desk) -> None:
    engine = desk.engine
    for call in (
        engine.read.load(NEVER),
        engine.change_priority(NEVER, 5),
        engine.replay(NEVER),
        engine.cancel(NEVER),
        engine.revoke(NEVER),
        engine.set_tags(NEVER, {"demo.tenant": "acme"}),
        engine.read.explain(NEVER),
    ):
        with pytest.raises(ExecutionNotFound, match="not found"):
            await call


@pytest.mark.case("LC-019", "LC-020")
async def test_progress_keeps_what_is_not_said(desk: Desk) -> None:
    lease = await desk.running()
    shown: list[tuple[int | None, str | None]] = []
    for pct, message in [(50, "halfway there"), (75, None), (None, "winding down")]:
        await desk.engine.progress(lease, pct, message)
        snapshot = await desk.snapshot(lease.id)
        shown.append((snapshot.progress_pct, snapshot.progress_message))
    assert shown == [(50, "halfway there"), (75, "halfway there"), (75, "winding down")]


@pytest.mark.case("LC-023")
async def test_an_interrupted_attempt_goes_on_as_itself(desk: Desk) -> None:
    lease = await desk.running()
    await desk.engine.progress(lease, 10, "on its way")
    lease = (await desk.engine.renew([lease], TTL_MS))[0].lease
    await desk.engine.delay(lease, desk.clock.now_ms() + 1_000)
    desk.clock.advance(1_000)
    await desk.sweep()
    again = await desk.take(lease.id)
    assert (again.head.attempt, again.epoch) == (0, 2)
    assert again.head.attempt_kind is AttemptKind.RESUME
    await desk.engine.complete(again, b"1")
    assert await desk.vector(lease.id) == COMPLETED
    assert [attempt.attempt for attempt in await desk.attempts(lease.id)] == [0]


@pytest.mark.case("LC-024")
async def test_three_in_turn_complete_fail_and_are_cancelled_by_their_holder(desk: Desk) -> None:
    await desk.engine.submit([order(n) for n in range(3)])
    (first,), (second,), (third,) = [await desk.claim() for _ in range(3)]
    await desk.engine.progress(first, 75)
    await desk.engine.complete(first, b"1")
    await desk.engine.fail(second, BROKEN)
    await desk.engine.cancel(third.id, source=Source.LEASE_HOLDER, lease=third)
    outcomes = [(await desk.snapshot(lease.id)).vector.outcome for lease in (first, second, third)]
    assert outcomes == ["success", "failed", "cancelled"]
    assert (await desk.snapshot(first.id)).progress_pct == 75


@pytest.mark.case("LC-025")
async def test_a_worker_runs_a_task_with_a_deadline_to_its_end(store: Store) -> None:
    app = App(store=store)

    @app.task
    async def work(context: Context) -> str:
        await context.progress(50, "half")
        return "done"

    async with app.running():
        handle = await work.options(deadline="60s").start()
        assert await handle.result(30) == "done"
        status = await handle.status()
    assert (status.public_state, status.total_attempt_count) == (PublicState.COMPLETED, 1)
    assert status.progress_message == "half"


@pytest.mark.case("LC-026")
async def test_a_completed_execution_can_be_replayed(desk: Desk) -> None:
    id = await desk.completed()
    assert await desk.engine.replay(id) is PublicState.WAITING
    assert await desk.vector(id) == WAITING.replace("pending_first", "pending_replay")
    again = await desk.take(id)
    assert (again.head.attempt, again.head.attempt_kind) == (1, AttemptKind.REPLAY)


@pytest.mark.case("LC-028")
async def test_only_what_has_ended_can_be_replayed(desk: Desk) -> None:
    id = await desk.submit()
    with pytest.raises(ExecutionNotTerminal):
        await desk.engine.replay(id)
    await desk.take(id)
    with pytest.raises(ExecutionNotTerminal):
        await desk.engine.replay(id)


@pytest.mark.case("LC-029")
async def test_what_was_cancelled_while_it_waited_can_be_replayed(desk: Desk) -> None:
    id = await desk.submit()
    await desk.engine.cancel(id)
    assert await desk.engine.replay(id) is PublicState.WAITING
    assert await desk.engine.read.state(id) is PublicState.WAITING


@pytest.mark.case("LC-032")
async def test_a_read_of_what_succeeded_says_how_and_when(desk: Desk) -> None:
    lease = await desk.running()
    desk.clock.advance(1_234)
    await desk.engine.complete(lease, b"1")
    desk.clock.advance(5_000)
    snapshot = await desk.snapshot(lease.id)
    assert snapshot.public_state is PublicState.COMPLETED
    assert (snapshot.vector.phase, snapshot.vector.outcome) == ("terminal", "success")
    assert snapshot.ended_ms == desk.clock.now_ms() - 5_000 == snapshot.created_ms + 1_234


@pytest.mark.case("LC-034")
async def test_only_what_completed_has_a_result(desk: Desk) -> None:
    read = desk.engine.read
    assert await read.result(NEVER) is None
    assert (await read.state(NEVER), await read.describe(NEVER)) == (None, None)
    lease = await desk.running()
    assert await read.result(lease.id) is None
    await desk.engine.complete(lease, b"\x00\xff")
    assert await read.result(lease.id) == b"\x00\xff"


@pytest.mark.case("LC-035")
async def test_an_end_is_logged_exactly_once(desk: Desk) -> None:
    good = await desk.running(order(1))
    bad = await desk.running(order(2))
    for _ in range(2):
        await desk.engine.complete(good, b"1")
        await desk.engine.fail(bad, Failure("no", fatal=True))
    ends = [
        [event.kind for event in await desk.events(lease.id) if event.state in TERMINAL]
        for lease in (good, bad)
    ]
    assert ends == [["completed"], ["failed"]]


@pytest.mark.case("LC-040")
async def test_a_grant_for_an_unknown_execution_is_not_found(desk: Desk) -> None:
    for start in (False, True):
        with pytest.raises(ExecutionNotFound) as refused:
            await desk.claim(only=NEVER, start=start)
        assert refused.value.code == "execution_not_found"


@pytest.mark.case("LS-009")
async def test_a_wrong_token_changes_nothing_and_the_right_one_still_completes(desk: Desk) -> None:
    lease = await desk.running()
    answer = await desk.engine.renew([forged(lease, lease_token="wrong-lease-id-00000000")], TTL_MS)
    assert [each.error.code for each in answer if each.error] == ["stale_lease"]
    await desk.engine.complete(lease, b"1")
    assert await desk.vector(lease.id) == COMPLETED


ENDS: dict[str, Callable[[Desk, Lease], Awaitable[object]]] = {
    "complete": VERBS["complete"],
    "fail": VERBS["fail"],
    "delay": VERBS["delay"],
    "release": VERBS["release"],
    "cancel": lambda desk, lease: desk.engine.cancel(lease.id, "enough"),
    "expire": lambda desk, lease: desk.engine.expire(lease.id, ExpireReason.ATTEMPT_TIMEOUT),
    "revoke": lambda desk, lease: desk.engine.revoke(lease.id, "gone"),
    "silence": lambda desk, lease: desk.silent(lease),
}


@pytest.mark.parametrize("verb", ENDS)
async def test_an_attempt_says_who_worked_on_it_however_it_ends(desk: Desk, verb: str) -> None:
    began_ms = desk.clock.now_ms()
    lease = await desk.running(worker="w-1")
    desk.clock.advance(5)
    await ENDS[verb](desk, lease)
    (attempt,) = await desk.attempts(lease.id)
    assert (attempt.worker, attempt.epoch) == ("w-1", lease.epoch)
    # What is only put off goes on later, and has not ended.
    ended_ms = None if verb in ("delay", "release") else desk.clock.now_ms()
    assert (attempt.started_ms, attempt.ended_ms) == (began_ms, ended_ms)
    assert (await desk.head(lease.id)).worker == ""


async def test_each_attempt_keeps_its_own_worker(desk: Desk) -> None:
    lease = await desk.running(worker="w-1")
    await desk.silent(lease)
    again = await desk.take(lease.id, worker="w-2")
    running = await desk.attempts(lease.id)
    assert [attempt.worker for attempt in running] == ["w-1", "w-2"]
    await desk.engine.complete(again, b"1")
    ended = await desk.attempts(lease.id)
    assert [(attempt.worker, attempt.epoch) for attempt in ended] == [
        ("w-1", lease.epoch),
        ("w-2", again.epoch),
    ]
