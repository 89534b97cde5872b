"""Nothing starts in a flow whose pending members were cancelled: who runs may end, and is cancelled
when it comes back unfinished."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.core.flow.model import CancelPolicy
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.core.policy import OnAttemptTimeout
from flowfabric.core.states import AttemptLifecycle, Reason, State
from flowfabric.engine.flow_cancelling import CancelStatus
from flowfabric.errors import ExecutionNotActive, FlowAlreadyTerminal
from flowfabric.testing.build import policy
from flowfabric.testing.flows import FLOW, member, plan
from tests.flow.desk import FlowDesk

PENDING = CancelPolicy.CANCEL_PENDING
HOUR_MS = 3_600_000
BROKEN = Failure("broke")
RETRYING = policy(
    retries=3,
    pause_ms=HOUR_MS,
    attempt_timeout_ms=5_000,
    on_attempt_timeout=OnAttemptTimeout.RETRY,
)

Back = Callable[[FlowDesk, Lease], Awaitable[object]]


async def _times_out(desk: FlowDesk, lease: Lease) -> None:
    desk.clock.advance(5_000)
    await desk.sweep()


async def _is_lost(desk: FlowDesk, lease: Lease) -> None:
    """Its attempt has no limit of its own here: the lease is what ends."""
    await desk.silent(lease)


COMES_BACK: dict[str, tuple[Back, str]] = {
    "it fails with retries left": (lambda desk, lease: desk.engine.fail(lease, BROKEN), RETRYING),
    "it is delayed": (
        lambda desk, lease: desk.engine.delay(lease, desk.clock.now_ms() + HOUR_MS),
        RETRYING,
    ),
    "it is released": (lambda desk, lease: desk.engine.release(lease), RETRYING),
    "its attempt times out": (_times_out, RETRYING),
    "its worker is lost": (_is_lost, policy(retries=3)),
    "its lease is revoked": (lambda desk, lease: desk.engine.revoke(lease.id), RETRYING),
}


@pytest.mark.parametrize(("back", "terms"), COMES_BACK.values(), ids=COMES_BACK.keys())
async def test_a_member_that_comes_back_after_the_cancel_is_cancelled_at_once(
    desk: FlowDesk, back: Back, terms: str
) -> None:
    await desk.draw(plan("abc", "a>c", policy=terms))
    lease = await desk.start("a")
    await desk.engine.flows.cancel(FLOW, PENDING, "enough", wait_ms=1_000)
    assert await desk.states("abc") == {"a": "active", "b": "cancelled", "c": "cancelled"}
    await back(desk, lease)
    row = await desk.member("a")
    assert (row.state, row.outcome_detail) == (State.CANCELLED, "enough")
    assert (await desk.history(member("a"))).count("cancelled") == 1
    assert (await desk.attempts(member("a")))[-1].lifecycle.is_terminal
    await desk.dispatch()
    assert await desk.counters() == {"cancelled": 3}
    assert (await desk.flow()).settled
    assert await desk.claim(10) == []


@pytest.mark.parametrize(("back", "terms"), COMES_BACK.values(), ids=COMES_BACK.keys())
async def test_who_waits_for_the_cancel_hears_of_those_that_came_back_meanwhile(
    desk: FlowDesk, back: Back, terms: str
) -> None:
    """Between the cancel and the round that reaches it, a member may come back as any other."""
    await desk.draw(plan("ab", policy=terms))
    lease = await desk.start("a")
    await desk.engine.flows.cancel(FLOW, PENDING)
    await back(desk, lease)
    done = await desk.engine.flows.cancel(FLOW, PENDING, wait_ms=1_000)
    assert done.status is CancelStatus.CANCELLED
    assert done.cancelled == sorted([member("a"), member("b")])
    assert await desk.claim(10) == []


async def test_what_came_back_is_told_to_its_worker_and_told_again(desk: FlowDesk) -> None:
    await desk.draw(plan("a", policy=RETRYING))
    lease = await desk.start("a")
    await desk.engine.flows.cancel(FLOW, PENDING, wait_ms=1_000)
    first = await desk.engine.fail(lease, BROKEN)
    assert (first.state, first.repeated) == (State.CANCELLED, False)
    again = await desk.engine.fail(lease, BROKEN)
    assert (again.state, again.repeated) == (State.CANCELLED, True)
    (attempt,) = await desk.attempts(lease.id)
    assert (attempt.lifecycle, attempt.detail) == (AttemptLifecycle.ENDED_FAILURE, "broke")
    with pytest.raises(ExecutionNotActive):
        await desk.engine.complete(lease, b"late")


async def test_who_runs_goes_on_and_ends_as_it_does(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", policy=RETRYING))
    leases = [await desk.start(name) for name in "abc"]
    await desk.engine.flows.cancel(FLOW, PENDING, wait_ms=1_000)
    renewed = await desk.engine.renew(leases, 30_000)
    assert [each.error for each in renewed] == [None] * 3
    await desk.engine.progress(leases[0], 50)
    sentence = (await desk.engine.read.explain(member("a"))).sentence
    assert sentence.endswith("its flow was cancelled: it may finish, and is not retried")
    assert (await desk.vector(member("a"))).split("/")[3] == "none"
    await desk.engine.complete(leases[0], b"1")
    await desk.engine.fail(leases[1], Failure("broke", fatal=True))
    await desk.engine.cancel(member("c"), "by hand")
    await desk.dispatch()
    assert await desk.states("abc") == {"a": "completed", "b": "failed", "c": "cancelled"}
    assert await desk.counters() == {"completed": 1, "failed": 1, "cancelled": 1}
    done = await desk.engine.flows.cancel(FLOW, PENDING, wait_ms=1_000)
    assert done.cancelled == []


async def test_what_nobody_works_on_is_cancelled_whatever_it_waits_for(desk: FlowDesk) -> None:
    await desk.draw(plan("abcdefg", "a>b", policy=policy(retries=3, pause_ms=HOUR_MS)))
    lost, revoked, retried = [await desk.start(name) for name in "cde"]
    await desk.engine.block(member("f"), Reason.PAUSED_BY_OPERATOR)
    await desk.engine.fail(retried, BROKEN)
    await desk.engine.revoke(revoked.id)
    await desk.silent(lost)
    grant = await desk.take(member("g"), start=False)
    assert await desk.states("abcdefg") == {
        "a": "waiting",
        "b": "blocked_dependencies",
        "c": "orphaned",
        "d": "revoked",
        "e": "delayed",
        "f": "blocked_operator",
        "g": "active",
    }
    done = await desk.engine.flows.cancel(FLOW, PENDING, wait_ms=1_000)
    assert done.cancelled == sorted(member(name) for name in "abcdefg")
    assert await desk.states("abcdefg") == dict.fromkeys("abcdefg", "cancelled")
    with pytest.raises(ExecutionNotActive):
        await desk.engine.start(grant)


@pytest.mark.parametrize("policy", [CancelPolicy.CANCEL_ALL, PENDING])
@pytest.mark.parametrize("downstream", [False, True])
async def test_nobody_is_replayed_into_a_cancelled_flow(
    desk: FlowDesk, policy: CancelPolicy, downstream: bool
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a", outcome="failed")
    await desk.engine.flows.cancel(FLOW, policy)
    with pytest.raises(FlowAlreadyTerminal):
        await desk.engine.replay(member("a"), downstream=downstream)
    assert await desk.states("ab") == {"a": "failed", "b": "skipped"}


async def test_members_of_a_flow_that_was_cancelled_alone_can_be_replayed(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a", outcome="failed")
    await desk.engine.flows.cancel(FLOW, CancelPolicy.FLOW_ONLY)
    await desk.engine.replay(member("a"), downstream=True)
    await desk.ended("a")
    assert await desk.states("ab") == {"a": "completed", "b": "waiting"}


async def test_a_lost_line_is_written_again_for_members_that_run(desk: FlowDesk) -> None:
    """Who runs must be reached too, or it could be tried again."""
    from flowfabric.core.flow.changes import FlowPatch
    from flowfabric.core.transition import Changeset
    from flowfabric.engine.cancel_reconciler import CancelReconciler

    await desk.draw(plan("a", policy=RETRYING))
    lease = await desk.start("a")
    await desk.engine.flows.cancel(FLOW, PENDING)
    lines = await desk.lines()
    lost = Changeset(flows=[FlowPatch(FLOW, (await desk.flow()).rev, {})], done=lines)
    assert await desk.store.commit(lost, desk.clock.now_ms())
    reconciler = CancelReconciler(desk.store, desk.engine.clock)
    assert (await reconciler.run_once()).processed == 1
    await desk.dispatch()
    assert (await reconciler.run_once()).processed == 0
    assert (await desk.engine.fail(lease, BROKEN)).state is State.CANCELLED
