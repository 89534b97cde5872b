"""The doctor names what is wrong, and nothing else; sweeping by hand serves what is left."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.explain import explain
from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.core.model import Shift, Value, Writer
from flowfabric.core.states import Reason, State
from flowfabric.core.transition import Changeset, Seen, Transition
from flowfabric.engine import doctor, round_by_hand
from flowfabric.engine.diagnosis import Diagnosis, Kind
from flowfabric.engine.doctor import DUTY_GRACE_MS, Doctor, require_store
from flowfabric.engine.janitor import CHORES
from flowfabric.engine.sweeping import Report
from flowfabric.errors import Refused
from flowfabric.store import Store
from flowfabric.store.memory import MemoryStore
from flowfabric.store.sqlite import SqliteStore
from flowfabric.testing.build import TTL_MS, order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import Corrupter
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from flowfabric.testing.invariants import broken_promises
from tests.corrupter import raw_client
from tests.flow.desk import FlowDesk


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


async def examined(desk: FlowDesk) -> Diagnosis:
    return await Doctor(desk.store, desk.engine.clock).examine()


async def named(desk: FlowDesk) -> set[tuple[Kind, str]]:
    return {(each.kind, each.subject) for each in (await examined(desk)).findings}


async def write(desk: FlowDesk, id: ExecutionId, patch: dict[str, Value]) -> None:
    """Past all decisions, as a bug could."""
    head = await desk.head(id)
    change = Transition(id, Seen(head.rev, head.state), Writer.ENGINE, patch)
    await desk.store.apply([change], desk.clock.now_ms())


async def test_a_store_with_all_kinds_of_work_is_well(desk: FlowDesk) -> None:
    now_ms = desk.clock.now_ms()
    await desk.submit(order(0, delay_until_ms=now_ms + 60_000))
    await desk.running(order(1, policy=policy(retries=2)))
    await desk.submit(order(2))
    await desk.engine.block(order(2).id, Reason.PAUSED_BY_OPERATOR)
    await desk.submit(order(3))
    await desk.engine.block(order(3).id, Reason.WAITING_FOR_QUOTA)
    await desk.take(await desk.submit(order(4)), start=False)
    await desk.draw(plan("abc", "a>b b>c"))
    found = await examined(desk)
    assert found.findings == []
    assert found.is_well
    assert (found.executions, found.flows) == (8, 1)
    # Each of them says in one sentence what will wake it.
    for id in [order(number).id for number in range(5)] + [member(name) for name in "abc"]:
        said = explain(await desk.head(id), now_ms)
        assert said.sentence
        assert said.wakes not in ("nothing", "")


async def test_a_timer_that_is_missing_or_late_leaves_it_stuck(desk: FlowDesk) -> None:
    later_ms = desk.clock.now_ms() + 60_000
    await desk.submit(order(0, delay_until_ms=later_ms))
    lease = await desk.running(order(1))
    await desk.submit(order(2, delay_until_ms=later_ms))
    await write(desk, order(0).id, {"due_ms": None})
    await write(desk, lease.id, {"due_ms": lease.until_ms + 1})
    assert await named(desk) == {(Kind.STUCK, public_id(each)) for each in (order(0).id, lease.id)}
    assert len(await broken_promises(desk.store, desk.clock.now_ms())) == 2


async def test_a_member_that_nobody_will_release_is_stuck(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.end("a")
    assert await named(desk) == set()
    # The line that would have told it is lost.
    (line,) = await desk.lines()
    flow = await desk.flow()
    lost = Changeset(flows=[FlowPatch(FLOW, flow.rev, {})], done=[line])
    assert await desk.store.commit(lost, desk.clock.now_ms())
    assert await named(desk) == {(Kind.STUCK, public_id(member("b")))}
    (said,) = await broken_promises(desk.store, desk.clock.now_ms())
    assert said.startswith(member("b"))


async def test_what_is_parked_or_fails_is_named(desk: FlowDesk) -> None:
    soon_ms = desk.clock.now_ms() + 60_000
    for number in range(2):
        await desk.submit(order(number, delay_until_ms=soon_ms))
    await write(desk, order(0).id, {"failures": 12, "parked": "bad luck", "due_ms": None})
    await write(desk, order(1).id, {"failures": 2})
    await desk.draw(plan("ab", "a>b"))
    patch: dict[str, Value] = {"failures": 12, "parked": "worse luck"}
    parked = Changeset(flows=[FlowPatch(FLOW, (await desk.flow()).rev, patch)])
    assert await desk.store.commit(parked, desk.clock.now_ms())
    found = {(each.kind, each.subject): each.sentence for each in (await examined(desk)).findings}
    assert found.keys() == {
        (Kind.PARKED, public_id(order(0).id)),
        (Kind.FAILING, public_id(order(1).id)),
        (Kind.PARKED, FLOW),
    }
    assert "bad luck" in found[Kind.PARKED, public_id(order(0).id)]


async def test_a_parked_flow_is_named_though_all_its_members_have_ended(
    desk: FlowDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PAGE", 1)
    for number in (1, 2):
        flow = flow_id(number)
        await desk.draw(plan("ab", flow=flow))
        await desk.end("a", "b", flow=flow)
    raw = raw_client(desk.store)
    parked = await desk.flow(flow_id(2))
    await raw.write(parked, "failures", "12")
    await raw.write(await desk.flow(flow_id(2)), "parked", "worse luck")
    (found,) = (await examined(desk)).findings
    assert (found.kind, found.subject) == (Kind.PARKED, flow_id(2))
    assert found.sentence == "flow: worse luck"
    await raw.write(await desk.flow(flow_id(1)), "state", "melted")
    assert await named(desk) == {(Kind.PARKED, flow_id(2)), (Kind.UNREADABLE, flow_id(1))}


async def test_what_cannot_be_read_is_named(desk: FlowDesk, corrupter: Corrupter) -> None:
    await desk.submit(order(0, delay_until_ms=desk.clock.now_ms() + 60_000))
    await desk.submit(order(1, delay_until_ms=desk.clock.now_ms() + 70_000))
    await corrupter(order(0).id)
    assert await named(desk) == {(Kind.UNREADABLE, public_id(order(0).id))}


async def test_what_nobody_serves_is_late_until_it_is_swept_by_hand(desk: FlowDesk) -> None:
    lease = await desk.running(order(0))
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    desk.clock.advance(TTL_MS + 60_000)
    found = await examined(desk)
    assert (found.timers_lag_ms, found.dispatch_lag_ms) == (60_000, TTL_MS + 60_000)
    assert {(each.kind, each.subject) for each in found.findings} == {
        (Kind.LATE, public_id(lease.id)),
        (Kind.STALLED, FLOW),
    }
    done = {each.name: each.processed for each in await round_by_hand.run(desk.engine)}
    swept = dict.fromkeys(CHORES, 0) | {"flow_projector": 1}
    assert done == {"lease_expiry": 1, "dispatch": 1, **swept}
    assert (await desk.head(lease.id)).state is State.ORPHANED
    assert await named(desk) == set()
    again = await round_by_hand.run(desk.engine)
    assert {each.processed + each.errors for each in again} == {0}


async def test_a_duty_that_has_not_run_is_late_when_there_is_work(desk: FlowDesk) -> None:
    now_ms = desk.clock.now_ms()
    report = Report(last_ms=now_ms, interval_ms=10_000, processed=3)
    text = msgspec.json.encode(report).decode()
    await desk.store.shifts([Shift("flow_projector", "one", now_ms, text)], now_ms)
    desk.clock.advance(10_000 + DUTY_GRACE_MS + 1)
    found = await examined(desk)
    (duty,) = found.duties
    assert (duty.name, duty.lag_ms, duty.processed) == ("flow_projector", DUTY_GRACE_MS + 1, 3)
    assert found.is_well
    await desk.submit()
    assert await named(desk) == {(Kind.LATE, "flow_projector")}


async def test_to_look_at_a_store_makes_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("nothing") / "store.db"
    with pytest.raises(Refused, match="not set up"):
        await require_store(SqliteStore(str(path)))
    assert not path.exists()


async def test_a_replayed_member_waits_for_the_replay_of_its_upstream(clock: VirtualClock) -> None:
    """Somebody has begun to replay from below: what comes next is his, and nothing is broken."""
    desk = FlowDesk(MemoryStore(clock), clock)
    await desk.engine.open()
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a", outcome="failed")
    await desk.engine.replay(member("b"))
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES
    assert await named(desk) == set()
    assert await broken_promises(desk.store, clock.now_ms()) == []
    await desk.engine.replay(member("a"))
    await desk.ended("a")
    assert await desk.state("b") is State.WAITING
