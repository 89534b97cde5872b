"""Timers and expiry, statement by statement (S4): what the attempt-timeout scanner promised."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from importlib import import_module

import msgspec
import pytest

from flowfabric.core import timers
from flowfabric.core.ids import ExecutionId, partition_of, public_id
from flowfabric.core.model import Execution, Lease, Loaded, Query, Want, Writer
from flowfabric.core.operator import ExpireReason
from flowfabric.core.states import AttemptLifecycle, Reason, State
from flowfabric.core.timers import POISON_PAUSE_MS, Due
from flowfabric.core.transition import Seen, Transition
from flowfabric.engine import timekeeper as keeping
from flowfabric.engine.index_reconciler import IndexReconciler
from flowfabric.engine.loop import AGAIN
from flowfabric.engine.sweeping import Scope
from flowfabric.engine.telemetry import TIMERS_DONE, TIMERS_FAILED
from flowfabric.engine.timekeeper import BATCH, Timekeeper
from flowfabric.errors import Corrupt, ExecutionNotActive
from flowfabric.store import Store
from flowfabric.store.hints import Hint
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.testing.build import KIND, LANE, TTL_MS, execution_id, order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import Corrupter
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import FLOW, member, plan
from tests.flow.desk import FlowDesk
from tests.store.valkey.raw import ask

LIMIT_MS = 10_000
LIMITED = policy(attempt_timeout_ms=LIMIT_MS)
OURS = {"demo.tenant": "ours"}


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


async def running(desk: FlowDesk, *numbers: int) -> list[Lease]:
    """Attempts that have a limited time, each on its way."""
    return [await desk.running(order(number, policy=LIMITED)) for number in numbers]


async def overdue(desk: FlowDesk, *numbers: int) -> list[Lease]:
    """Attempts whose time is over while their leases are not."""
    leases = await running(desk, *numbers)
    desk.clock.advance(LIMIT_MS)
    return leases


class Bad:
    """Decisions that fail, for the rows that a test names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: set[ExecutionId] = set()
        monkeypatch.setattr(keeping, "on_due", self._on_due)

    def _on_due(self, row: Execution, now_ms: int) -> Due:
        if row.id in self.ids:
            raise RuntimeError("cannot be decided")
        return timers.on_due(row, now_ms)


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Bad:
    return Bad(monkeypatch)


async def test_s4_1_the_duty_has_its_name_and_is_looked_at_when_it_is_due(
    desk: FlowDesk,
) -> None:
    assert "attempt_timeout" in {duty.value for duty in timers.Duty}
    keeper = Timekeeper(desk.store, desk.engine.clock)
    assert await keeper._round() == 15
    await running(desk, 0)
    assert await keeper._round() == 10
    desk.clock.advance(9_500)
    assert await keeper._round() == 0.5


async def test_s4_2_s4_33_what_is_due_is_served_oldest_first_in_bounded_batches(
    desk: FlowDesk,
) -> None:
    places = [execution_id(number, partition=200 - number) for number in range(5)]
    for id in places:
        await desk.take(await desk.submit(order(id=id, policy=LIMITED)))
        desk.clock.advance(1)
    desk.clock.advance(LIMIT_MS)
    keeper = Timekeeper(desk.store, desk.engine.clock, batch=2)
    ended: list[list[ExecutionId]] = []
    while (await keeper.run_once()).processed:
        ended.append([id for id in places if (await desk.head(id)).state is State.EXPIRED])
    assert ended == [places[:2], places[:4], places]
    assert BATCH == 500


async def test_s4_33_a_full_batch_is_followed_by_the_next_at_once(desk: FlowDesk) -> None:
    await overdue(desk, *range(3))
    keeper = Timekeeper(desk.store, desk.engine.clock, batch=2)
    assert [await keeper._round() for _ in range(2)] == [AGAIN, 15]


async def test_s4_3_a_limit_counts_from_its_very_millisecond(desk: FlowDesk) -> None:
    (lease,) = await running(desk, 0)
    desk.clock.advance(LIMIT_MS - 1)
    assert (await desk.sweep()).duties == {}
    assert (await desk.head(lease.id)).state is State.ACTIVE
    desk.clock.advance(1)
    assert (await desk.sweep()).duties == {"attempt_timeout": 1}


async def test_s4_4_the_clock_of_the_store_decides(desk: FlowDesk) -> None:
    (lease,) = await running(desk, 0)
    other = desk.another()
    # A process that believes it is later than it is.
    other.engine.clock.follow(desk.clock.now_ms() + LIMIT_MS)
    swept = await Timekeeper(desk.store, other.engine.clock).run_once()
    assert (swept.processed, swept.errors) == (0, 0)
    assert (await desk.head(lease.id)).state is State.ACTIVE


@pytest.mark.parametrize("verb", [Verb.NOW, Verb.DUE])
async def test_s4_5_s4_6_a_store_that_cannot_be_read_is_one_error(
    desk: FlowDesk, verb: Verb
) -> None:
    (lease,) = await overdue(desk, 0)
    before = await desk.head(lease.id)
    faulty = FaultyStore(desk.store, [Fault(verb, 1, Kind.BEFORE, times=99)])
    swept = await Timekeeper(faulty, desk.engine.clock).run_once()
    assert (swept.processed, swept.errors) == (0, 1)
    # Nothing was counted against the row either.
    assert await desk.head(lease.id) == before


async def test_s4_7_with_nothing_due_nothing_is_counted(desk: FlowDesk) -> None:
    await running(desk, 0)
    swept = await desk.sweep()
    assert (swept.processed, swept.errors, swept.again) == (0, 0, False)


async def test_s4_8_s4_12_s4_13_s4_14_what_fails_moves_forward_in_time_durably(
    desk: FlowDesk, bad: Bad
) -> None:
    (lease,) = await overdue(desk, 0)
    bad.ids = {lease.id}
    for failures in range(1, 4):
        assert (await desk.sweep()).errors == 1
        head = await desk.head(lease.id)
        due_ms = desk.clock.now_ms() + POISON_PAUSE_MS * 2 ** (failures - 1)
        assert (head.failures, head.due_ms, head.state) == (failures, due_ms, State.ACTIVE)
        # Until then it is no item, for this process and every other one.
        for keeper in (desk.timekeeper, desk.another().timekeeper):
            swept = await keeper.run_once()
            assert (swept.processed, swept.errors) == (0, 0)
        await desk.engine.renew([lease], TTL_MS)
        desk.clock.set(due_ms)
    bad.ids = set()
    assert (await desk.sweep()).duties == {"attempt_timeout": 1}
    assert (await desk.head(lease.id)).failures == 0


async def test_s4_12_what_always_fails_waits_longer_each_time_and_is_parked(
    desk: FlowDesk, bad: Bad
) -> None:
    (lease,) = await overdue(desk, 0)
    bad.ids = {lease.id}
    pauses: list[int] = []
    while (due_ms := (await desk.head(lease.id)).due_ms) is not None:
        desk.clock.set(due_ms)
        assert (await desk.sweep()).errors == 1
        head = await desk.head(lease.id)
        assert bool(head.parked) is (head.due_ms is None)
        pauses.append((head.due_ms or due_ms) - due_ms)
    growing = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000]
    assert pauses == [*growing, 300_000, 300_000, 0]
    assert (await desk.head(lease.id)).failures == 12


async def test_s4_9_what_is_due_is_expired_for_its_reason(desk: FlowDesk) -> None:
    leases = await overdue(desk, 0, 1)
    assert (await desk.sweep()).duties == {"attempt_timeout": 2}
    heads = [await desk.head(lease.id) for lease in leases]
    assert {(head.state, head.outcome_detail) for head in heads} == {
        (State.EXPIRED, "attempt_timeout")
    }


async def test_s4_10_s4_11_s4_18_one_that_fails_keeps_no_other_back(
    desk: FlowDesk, bad: Bad, caplog: pytest.LogCaptureFixture
) -> None:
    leases = await overdue(desk, 0, 1, 2)
    bad.ids = {leases[1].id}
    with caplog.at_level(logging.ERROR, "flowfabric.timekeeper"):
        swept = await desk.sweep()
    assert (swept.processed, swept.errors) == (2, 1)
    counts = desk.timekeeper.counts
    assert counts.labels(TIMERS_DONE) == {"attempt_timeout": 2}
    assert counts.value(TIMERS_FAILED) == 1
    (record,) = caplog.records
    told = record.__dict__
    id = leases[1].id
    assert (told["execution"], told["partition"]) == (public_id(id), partition_of(id))
    assert "cannot be decided" in told["problem"]
    # A row that waits for its next try is not looked at at all, whatever the filter.
    faulty = FaultyStore(desk.store)
    scope = Scope(tag=("demo.tenant", "ours"))
    keeper = Timekeeper(faulty, desk.engine.clock, scope=scope)
    assert (await keeper.run_once()).errors == 0
    assert faulty.calls[Verb.LOAD] == 0


class TestFilter:
    """With a filter, what it does not name is left as it is."""

    async def two(self, desk: FlowDesk) -> tuple[ExecutionId, ExecutionId]:
        theirs = (await desk.running(order(0, policy=LIMITED))).id
        ours = (await desk.running(order(1, policy=LIMITED, tags=OURS))).id
        desk.clock.advance(LIMIT_MS)
        return theirs, ours

    async def test_s4_15_what_is_not_served_is_left_and_not_counted(self, desk: FlowDesk) -> None:
        theirs, ours = await self.two(desk)
        before = await desk.head(theirs)
        nobody = Timekeeper(desk.store, desk.engine.clock, scope=Scope(namespace="elsewhere"))
        swept = await nobody.run_once()
        assert (swept.processed, swept.errors, swept.again) == (0, 0, False)
        # A batch of one: what is not served stands before what is.
        scope = Scope(namespace="default", tag=("demo.tenant", "ours"))
        keeper = Timekeeper(desk.store, desk.engine.clock, scope=scope, batch=1)
        assert (await keeper.run_once()).duties == {"attempt_timeout": 1}
        assert (await keeper.run_once()).again is False
        assert (await desk.head(ours)).state is State.EXPIRED
        assert await desk.head(theirs) == before
        assert await desk.is_timed(theirs, desk.clock.now_ms())

    async def test_s4_16_what_cannot_be_read_is_served_once_it_can_be(
        self, desk: FlowDesk, corrupter: Corrupter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        theirs, ours = await self.two(desk)
        await corrupter(theirs)
        scope = Scope(tag=("demo.tenant", "ours"))
        keeper = Timekeeper(desk.store, desk.engine.clock, scope=scope)
        load = desk.store.load

        async def unreadable(want: Want) -> list[Loaded | None]:
            raise Corrupt("no tags today")

        monkeypatch.setattr(desk.store, "load", unreadable)
        swept = await keeper.run_once()
        assert (swept.processed, swept.errors) == (0, 0)
        monkeypatch.setattr(desk.store, "load", load)
        assert (await desk.head(ours)).state is State.ACTIVE
        assert (await keeper.run_once()).duties == {"attempt_timeout": 1}
        assert (await desk.head(ours)).state is State.EXPIRED

    async def test_s4_17_without_a_filter_nothing_more_is_read(self, desk: FlowDesk) -> None:
        await self.two(desk)
        faulty = FaultyStore(desk.store)
        await Timekeeper(faulty, desk.engine.clock).run_once()
        assert faulty.calls == {Verb.NOW: 1, Verb.DUE: 1, Verb.APPLY: 1, Verb.ANY: 3}


async def test_s4_19_s4_20_the_row_that_was_read_is_what_is_decided_from(desk: FlowDesk) -> None:
    """Lane and attempt are columns of the row; one step writes all, guarded by its revision."""
    (lease,) = await overdue(desk, 0)
    taken: list[Lease] = []

    async def rival() -> None:
        await desk.engine.release(lease)
        taken.append(await desk.take(lease.id))

    plan = [Fault(Verb.APPLY, 1, Kind.DELAY, hook=rival)]
    keeper = Timekeeper(FaultyStore(desk.store, plan), desk.engine.clock)
    swept = await keeper.run_once()
    assert (swept.processed, swept.errors) == (0, 0)
    # The attempt that began in between has a time of its own, and goes on.
    head = await desk.head(lease.id)
    assert (head.state, head.attempt) == (State.ACTIVE, taken[0].head.attempt)
    assert (await keeper.run_once()).processed == 0


async def test_s4_21_an_active_execution_loses_its_lease_and_its_attempt_ends(
    desk: FlowDesk,
) -> None:
    (lease,) = await overdue(desk, 0)
    await desk.sweep()
    (attempt,) = await desk.attempts(lease.id)
    assert (attempt.lifecycle, attempt.detail) == (
        AttemptLifecycle.ENDED_FAILURE,
        "attempt_timeout",
    )
    assert (attempt.worker, attempt.ended_ms) == (lease.head.worker, desk.clock.now_ms())
    assert (await desk.snapshot(lease.id)).lease is None
    last = (await desk.events(lease.id))[-1]
    assert (last.kind, last.detail) == ("expired", {"reason": "attempt_timeout"})
    # Nobody holds it: a repeated claim with the token of the lease finds nothing.
    assert (
        await desk.engine.claim(
            [], 1, tasks=[KIND], worker="w", token=lease.token, ttl_ms=TTL_MS, repeated=True
        )
        == []
    )


@pytest.mark.parametrize(
    "room",
    [
        pytest.param(
            "flowfabric.core.frames",
            id="streams",
            marks=pytest.mark.xfail(strict=True, reason="not built: streams are closed as expired"),
        ),
    ],
)
def test_s4_21_the_stream_is_closed_as_expired(room: str) -> None:
    assert import_module(room).__name__ == room


@pytest.mark.xfail(strict=True, reason="not built: suspensions")
def test_s4_22_s4_24_a_suspended_execution_is_expired_with_its_suspension() -> None:
    assert import_module("flowfabric.core.waits").__name__ == "flowfabric.core.waits"


@pytest.mark.xfail(strict=True, reason="not built: budgets, quotas and capabilities block at claim")
def test_s4_23_what_admission_blocks_leaves_its_class() -> None:
    assert import_module("flowfabric.core.admission").__name__ == "flowfabric.core.admission"


Stage = Callable[[FlowDesk, ExecutionId], Awaitable[object]]

# Every way of not running that exists, as an operator or a plan brings it about.
WAITING: dict[State, Stage] = {
    State.WAITING: lambda desk, id: desk.head(id),
    State.BLOCKED_OPERATOR: lambda desk, id: desk.engine.block(id, Reason.PAUSED_BY_OPERATOR),
    State.BLOCKED_QUOTA: lambda desk, id: desk.engine.block(id, Reason.WAITING_FOR_QUOTA),
    State.BLOCKED_BUDGET: lambda desk, id: desk.engine.block(id, Reason.WAITING_FOR_BUDGET),
    State.BLOCKED_ROUTE: lambda desk, id: desk.engine.block(id, Reason.WAITING_FOR_CAPABLE_WORKER),
    State.BLOCKED_LANE: lambda desk, id: desk.engine.block(id, Reason.PAUSED_BY_POLICY),
}


async def test_s4_23_s4_31_whatever_waits_is_expired_by_its_deadline(desk: FlowDesk) -> None:
    deadline_ms = desk.clock.now_ms() + 1_000
    ids: dict[State, ExecutionId] = {}
    for number, (state, stage) in enumerate(WAITING.items()):
        ids[state] = await desk.submit(order(number, deadline_ms=deadline_ms))
        await stage(desk, ids[state])
    lease = await desk.running(order(90, deadline_ms=deadline_ms))
    await desk.engine.delay(lease, deadline_ms + 9_000)
    ids[State.DELAYED] = lease.id
    assert {state: (await desk.head(id)).state for state, id in ids.items()} == {
        state: state for state in ids
    }
    desk.clock.set(deadline_ms)
    assert (await desk.sweep()).duties == {"execution_deadline": len(ids)}
    assert await desk.claim(100) == []
    # Nor does any timer know it any more.
    desk.clock.advance(60_000)
    assert (await desk.sweep()).processed == 0
    assert {(await desk.head(id)).outcome_detail for id in ids.values()} == {"execution_deadline"}


@pytest.mark.parametrize("phase", ["active", "granted", "runnable", "orphaned"])
async def test_s4_24_s4_25_an_expired_execution_is_over_in_every_respect(
    desk: FlowDesk, phase: str
) -> None:
    id = await desk.submit()
    if phase != "runnable":
        lease = await desk.take(id, start=phase != "granted")
        if phase == "orphaned":
            await desk.silent(lease)
    assert await desk.engine.expire(id, ExpireReason.ATTEMPT_TIMEOUT)
    shown = await desk.snapshot(id)
    assert (shown.vector.phase, shown.vector.outcome) == ("terminal", "expired")
    assert (shown.public_state, shown.outcome_detail) == ("expired", "attempt_timeout")
    assert (shown.ended_ms, shown.lease) == (desk.clock.now_ms(), None)
    head = await desk.head(id)
    assert (head.due_ms, head.lease_until_ms, head.attempt_until_ms) == (None, None, None)
    assert head.worker == ""
    assert not await desk.is_timed(id, 10**14)
    assert await desk.claim() == []
    over = await desk.store.find(Query(lane=LANE, states=(State.EXPIRED,)))
    assert [each.id for each in over] == [id]
    assert await desk.store.find(Query(lane="other", states=(State.EXPIRED,))) == []


async def test_s4_26_what_is_over_only_loses_a_timer_that_was_left(desk: FlowDesk) -> None:
    id = await desk.completed()
    head = await desk.head(id)
    stray = Transition(id, Seen(head.rev, head.state), Writer.TIMEKEEPER, {"due_ms": 5})
    await desk.store.apply([stray], desk.clock.now_ms())
    assert await desk.is_timed(id, desk.clock.now_ms())
    swept = await desk.sweep()
    assert (swept.processed, swept.errors) == (0, 0)
    assert not await desk.is_timed(id, 10**14)
    after = await desk.head(id)
    assert after == msgspec.structs.replace(head, rev=after.rev)
    assert not await desk.engine.expire(id, ExpireReason.ATTEMPT_TIMEOUT)


async def test_s4_27_what_is_not_there_is_not_expired(desk: FlowDesk) -> None:
    assert not await desk.engine.expire(execution_id(99), ExpireReason.ATTEMPT_TIMEOUT)
    assert await desk.engine.read.describe(execution_id(99)) is None
    assert not await desk.is_timed(execution_id(99), 10**14)


@pytest.mark.parametrize("store_kind", ["valkey", "valkey-cluster"])
async def test_s4_27_a_timer_of_nobody_is_removed_and_keeps_no_other_back(
    desk: FlowDesk,
) -> None:
    """Only where timers are kept apart from what they are for can one be left alone."""
    (lease,) = await overdue(desk, 0)
    assert isinstance(desk.store, ValkeyStore)
    key = f"{desk.store.keys.partition(partition_of(execution_id(99)))}:due"
    await ask(desk.store, key, "ZADD", key, "5", uuid_of(execution_id(99)))
    assert (await desk.sweep()).duties == {"attempt_timeout": 1}
    net = IndexReconciler(desk.store, desk.engine.clock)
    await net.run_once()
    while net.cursor:
        await net.run_once()
    assert await ask(desk.store, key, "ZRANGE", key, "0", "-1") == []
    assert (await desk.head(lease.id)).state is State.EXPIRED


@pytest.mark.case("TO-010")
async def test_s4_28_an_expiry_is_announced_alone_and_in_a_flow(desk: FlowDesk) -> None:
    heard: list[Hint] = []
    await desk.draw(plan("a", policy=LIMITED))
    (solo,) = await running(desk, 0)
    await desk.start("a")
    desk.clock.advance(LIMIT_MS)
    desk.store.hints.subscribe(heard.append)
    await desk.sweep()
    ended = {id for hint in heard if not hint.foreign for id in hint.ended}
    assert ended == {solo.id, member("a")}
    (line,) = await desk.lines()
    assert (line.flow, line.execution, line.about) == (FLOW, member("a"), "expired")


async def test_s4_29_children_of_an_expired_member_go_as_those_of_a_failed_one(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("abc", "a>b b>c", policy=LIMITED))
    await desk.start("a")
    desk.clock.advance(LIMIT_MS)
    await desk.sweep()
    await desk.dispatch()
    assert await desk.states("abc") == {"a": "expired", "b": "skipped", "c": "skipped"}
    assert await desk.counters() == {"expired": 1, "skipped": 2}


async def test_s4_30_twice_is_as_once(desk: FlowDesk) -> None:
    (lease,) = await overdue(desk, 0)
    await desk.sweep()
    before = await desk.head(lease.id)
    assert (await desk.sweep()).processed == 0
    assert not await desk.engine.expire(lease.id, ExpireReason.ATTEMPT_TIMEOUT)
    assert await desk.head(lease.id) == before


async def test_s4_32_executions_of_every_lane_are_expired(desk: FlowDesk) -> None:
    lanes = ("main", "other", "nobody knows")
    for number, lane in enumerate(lanes):
        await desk.submit(order(number, lane=lane, policy=LIMITED))
    assert len(await desk.claim(9, lanes=lanes)) == 3
    desk.clock.advance(LIMIT_MS)
    assert (await desk.sweep()).duties == {"attempt_timeout": 3}


async def test_s4_34_every_store_has_the_same_pass(desk: FlowDesk) -> None:
    """One timekeeper for all of them, with the same counts, whatever is below it."""
    await overdue(desk, 0)
    await desk.submit(order(1, delay_until_ms=desk.clock.now_ms() + 5))
    desk.clock.advance(5)
    swept = await desk.sweep()
    assert swept.duties == {"attempt_timeout": 1, "delayed_promoter": 1}
    assert (swept.processed, swept.errors) == (2, 0)


async def test_s4_35_whoever_comes_too_late_is_refused(desk: FlowDesk) -> None:
    (lease,) = await overdue(desk, 0)
    await desk.sweep()
    with pytest.raises(ExecutionNotActive):
        await desk.engine.complete(lease, b"late")
    assert (await desk.head(lease.id)).state is State.EXPIRED
    assert await desk.engine.read.result(lease.id) is None
