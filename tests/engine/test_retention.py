"""Retention: what has ended goes when its time has come, whole, and nothing of it stays."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.entries import Append, Entry
from flowfabric.core.flow.model import Flow
from flowfabric.core.policy import DAY_MS, Policy, RetentionPolicy, encode_policy
from flowfabric.core.portions import portions
from flowfabric.core.retention import ENTRIES, PORTION, Departing, Departure
from flowfabric.core.states import Outcome, State
from flowfabric.core.transition import Held
from flowfabric.engine.retention_trimmer import RetentionTrimmer
from flowfabric.engine.sweeping import Scope, Swept
from flowfabric.errors import ExecutionNotFound, FlowNotFound
from flowfabric.store import Store
from flowfabric.store.clock import FollowingClock
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.purging import rows_of
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.flow.desk import FlowDesk

HOUR_MS = 3_600_000


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


def trimmer(desk: FlowDesk, scope: Scope | None = None) -> RetentionTrimmer:
    return RetentionTrimmer(desk.store, desk.engine.clock, scope=scope)


def keeping(**spans: int) -> str:
    return encode_policy(Policy(retention_policy=RetentionPolicy(**spans)))


async def test_what_has_ended_is_kept_for_a_day_and_then_gone(desk: FlowDesk) -> None:
    before = await rows_of(desk.store)
    id = await desk.completed()
    desk.clock.advance(DAY_MS - 1)
    assert await trimmer(desk).run_once() == Swept()
    desk.clock.advance(1)
    assert await trimmer(desk).run_once() == Swept(processed=1)
    with pytest.raises(ExecutionNotFound):
        await desk.head(id)
    assert await rows_of(desk.store) == before


async def test_more_entries_than_go_at_once_go_before_their_execution(desk: FlowDesk) -> None:
    """One sweep after another goes on, though none of them but the last removes an execution."""
    before = await rows_of(desk.store)
    lease = await desk.running(order(0))
    held = Held(lease.epoch, lease.token)
    for first in range(0, 2 * ENTRIES + 1, 1000):
        some = tuple(Entry("notes", f"{first + n:06}", b"") for n in range(1000))
        await desk.store.append([Append(lease.id, held, some)], desk.clock.now_ms())
    await desk.engine.complete(lease, b"")
    desk.clock.advance(DAY_MS)
    swept = await trimmer(desk).run_once()
    while swept.again:
        assert not swept.processed
        swept = await trimmer(desk).run_once()
    assert swept == Swept(processed=1)
    assert await rows_of(desk.store) == before


async def test_each_way_to_end_has_its_own_time(desk: FlowDesk) -> None:
    policy = keeping(completed_ms=1_000, cancelled_ms=2_000)
    good = await desk.completed(order(0, policy=policy))
    bad = await desk.submit(order(1, policy=policy))
    await desk.engine.cancel(bad, "no more")
    desk.clock.advance(1_000)
    assert (await trimmer(desk).run_once()).processed == 1
    assert (await desk.head(bad)).state is State.CANCELLED
    with pytest.raises(ExecutionNotFound):
        await desk.head(good)
    desk.clock.advance(1_000)
    assert (await trimmer(desk).run_once()).processed == 1


async def test_what_runs_or_waits_never_goes(desk: FlowDesk) -> None:
    lease = await desk.running(order(0, policy=keeping(completed_ms=0)))
    await desk.submit(order(1))
    desk.clock.advance(20_000)
    assert await trimmer(desk).run_once() == Swept()
    assert (await desk.head(lease.id)).state is State.ACTIVE


async def test_what_was_replayed_stays(desk: FlowDesk) -> None:
    id = await desk.submit(order(0, policy=keeping(cancelled_ms=1_000)))
    await desk.engine.cancel(id, "no more")
    await desk.engine.replay(id)
    desk.clock.advance(1_000)
    assert await trimmer(desk).run_once() == Swept()
    assert (await desk.head(id)).state is State.WAITING


async def test_a_key_keeps_its_execution_for_its_window(desk: FlowDesk) -> None:
    text = encode_policy(
        Policy(retention_policy=RetentionPolicy(completed_ms=0), dedup_window_ms=5_000)
    )
    id = await desk.completed(order(0, key="once", policy=text))
    assert await trimmer(desk).run_once() == Swept()
    assert await trimmer(desk).run_once() == Swept()
    assert (await desk.store.departing(desk.clock.now_ms() + 4_999, 10)).executions == []
    desk.clock.advance(5_000)
    assert (await trimmer(desk).run_once()).processed == 1
    with pytest.raises(ExecutionNotFound):
        await desk.head(id)


@pytest.mark.parametrize("outcome", ["success", "cancelled"])
async def test_a_key_keeps_its_flow_for_its_window(desk: FlowDesk, outcome: str) -> None:
    """However soon its members may go: the same key must find it."""
    soon = RetentionPolicy(completed_ms=0, cancelled_ms=0)
    keep_ms = desk.clock.now_ms() + 5_000
    keyed = msgspec.structs.replace(plan("a"), retention=soon, keep_until_ms=keep_ms)
    await desk.draw(keyed)
    await desk.ended("a", outcome=outcome)
    assert (await desk.flow()).purge_ms == keep_ms
    desk.clock.set(keep_ms - 1)
    assert await trimmer(desk).run_once() == Swept()
    desk.clock.advance(1)
    assert await trimmer(desk).run_once() == Swept(processed=2)
    with pytest.raises(FlowNotFound):
        await desk.flow()


async def test_a_flow_without_a_key_goes_as_soon_as_its_members_may(desk: FlowDesk) -> None:
    soon = RetentionPolicy(completed_ms=7)
    await desk.draw(msgspec.structs.replace(plan("a"), retention=soon))
    await desk.ended("a")
    assert (await desk.flow()).purge_ms == desk.clock.now_ms() + 7


async def test_a_flow_goes_as_a_whole_a_day_after_its_last_member_ended(desk: FlowDesk) -> None:
    before = await rows_of(desk.store)
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.ended("a")
    desk.clock.advance(DAY_MS)
    await desk.ended("b")
    assert await trimmer(desk).run_once() == Swept()
    desk.clock.advance(DAY_MS)
    assert await trimmer(desk).run_once() == Swept()
    await desk.ended("c")
    desk.clock.advance(DAY_MS)
    assert await trimmer(desk).run_once() == Swept(processed=4)
    with pytest.raises(FlowNotFound):
        await desk.flow()
    assert await rows_of(desk.store) == before


async def test_a_member_that_is_replayed_keeps_its_flow(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a", outcome="failed")
    settled = await desk.flow()
    assert (settled.settled, settled.purge_ms) == (True, desk.clock.now_ms() + DAY_MS)
    await desk.engine.replay(member("a"))
    await desk.dispatch()
    again = await desk.flow()
    assert (again.settled, again.purge_ms) == (False, None)
    desk.clock.advance(DAY_MS)
    assert await trimmer(desk).run_once() == Swept()


async def test_a_member_that_joins_keeps_its_flow(desk: FlowDesk) -> None:
    await desk.draw(plan("a"))
    await desk.ended("a")
    assert (await desk.flow()).settled
    extra = await desk.completed(order(id=member("z")))
    await desk.engine.flows.build.join(FLOW, extra)
    joined = await desk.flow()
    assert (joined.settled, joined.purge_ms) == (False, None)
    await desk.dispatch()
    assert (await desk.flow()).settled
    assert (await desk.head(extra)).purge_ms is None


async def test_a_flow_of_many_members_is_closed_first_and_goes_in_portions(
    desk: FlowDesk,
) -> None:
    count = PORTION + 3
    await desk.draw(plan(range(count)))
    await desk.engine.flows.cancel(FLOW)
    await desk.dispatch()
    desk.clock.advance(DAY_MS)
    assert await trimmer(desk).run_once() == Swept(again=True)
    stored = (await desk.view()).flow
    assert stored is not None
    assert not stored.is_open
    assert await trimmer(desk).run_once() == Swept(processed=PORTION, again=True)
    assert await trimmer(desk).run_once() == Swept(processed=count - PORTION + 1)
    assert (await desk.view()).flow is None


async def test_a_flow_that_was_never_opened_goes_after_an_hour(
    store: Store, clock: VirtualClock
) -> None:
    broken = FaultyStore(store, [Fault(Verb.COMMIT, 3, Kind.BEFORE, times=100)])
    desk = FlowDesk(broken, clock)
    await desk.engine.open()
    with pytest.raises(Exception, match="commit failed"):
        await desk.engine.flows.submit(plan(range(1_100)))
    broken.plan.clear()
    stored = (await desk.view()).flow
    assert stored is not None
    assert not stored.is_open
    desk.clock.advance(HOUR_MS - 1)
    assert (await trimmer(desk).run_once()).processed == 0
    desk.clock.advance(1)
    while (await trimmer(desk).run_once()).processed:
        pass
    assert (await desk.view()).flow is None


async def test_a_filter_leaves_the_work_of_others_alone(desk: FlowDesk) -> None:
    mine = await desk.completed(order(0, tags={"cairn.instance_id": "1"}))
    await desk.completed(order(1, tags={"cairn.instance_id": "2"}))
    desk.clock.advance(DAY_MS)
    assert (await trimmer(desk, Scope(namespace="other")).run_once()) == Swept()
    tagged = Scope(tag=("cairn.instance_id", "1"))
    assert (await trimmer(desk, tagged).run_once()).processed == 1
    with pytest.raises(ExecutionNotFound):
        await desk.head(mine)
    assert (await desk.head(execution_id(1))).state is State.COMPLETED


async def test_a_store_that_does_not_answer_is_one_error(desk: FlowDesk) -> None:
    broken = FaultyStore(desk.store, [Fault(Verb.DEPARTING, 1, Kind.BEFORE, times=3)])
    found = RetentionTrimmer(broken, desk.engine.clock)
    assert await found.run_once() == Swept(errors=1)


def test_portions_hold_no_more_than_one_call_may() -> None:
    def flow(number: int, total: int, *, is_open: bool = True) -> Flow:
        return Flow(
            id=flow_id(number),
            namespace="default",
            name="graph",
            creator="",
            created_ms=0,
            updated_ms=0,
            total=total,
            is_open=is_open,
        )

    alone = [Departure(execution_id(number), 1) for number in range(10)]
    flows = [
        flow(1, 400),
        flow(2, 200),
        flow(3, PORTION + 1),
        flow(4, 9_000, is_open=False),
    ]
    purges, closing = portions(Departing(alone, flows), 7)
    assert [[each.id for each in purge.flows] for purge in purges] == [
        [flow_id(1)],
        [flow_id(2)],
        [flow_id(4)],
    ]
    assert [len(purge.executions) for purge in purges] == [10, 0, 0]
    assert {purge.now_ms for purge in purges} == {7}
    assert [changes.flows[0].id for changes in closing] == [flow_id(3)]


def test_every_outcome_has_its_own_span() -> None:
    policy = RetentionPolicy(1, 2, 3, 4, 5)
    ends = [outcome for outcome in Outcome if outcome is not Outcome.NONE]
    assert sorted(policy.kept_ms(outcome) for outcome in ends) == [1, 2, 3, 4, 5]
    assert msgspec.json.encode(RetentionPolicy()) == b"{}"
    with pytest.raises(ValueError, match="unfinished"):
        policy.kept_ms(Outcome.NONE)


async def test_nothing_goes_early_by_a_clock_that_was_ahead(clock: VirtualClock) -> None:
    """It is set right after the look, by another duty of the same engine."""
    desk = FlowDesk(MemoryStore(clock), clock)
    await desk.engine.open()
    id = await desk.completed(order(0, policy=keeping(completed_ms=2_000)))
    ahead = FollowingClock(VirtualClock(clock.now_ms() + 2_000))

    async def set_right() -> None:
        ahead.follow(clock.now_ms())

    slow = FaultyStore(desk.store, [Fault(Verb.DEPARTING, 1, Kind.DELAY, hook=set_right)])
    assert (await RetentionTrimmer(slow, ahead).run_once()).processed == 0
    assert (await desk.head(id)).state is State.COMPLETED
