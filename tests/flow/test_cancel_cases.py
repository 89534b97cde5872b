"""Cancel of a flow against what its members do meanwhile; waiting for it, its backlog."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.dispatch import NoOp
from flowfabric.core.flow.model import CancelPolicy, EdgeKind, FlowState, LineKind
from flowfabric.core.model import Feed
from flowfabric.core.transition import Changeset
from flowfabric.engine.flow_cancelling import Backlog, CancelStatus
from flowfabric.errors import FlowNotFound, ResultTimeout
from flowfabric.testing.conformance.flow_steps import everything
from flowfabric.testing.flows import FLOW, flow_id, links, member, plan
from tests.flow.desk import FlowDesk
from tests.flow.watched import Watched

ENDING = [CancelPolicy.CANCEL_ALL, CancelPolicy.CANCEL_PENDING]


@pytest.mark.parametrize("policy", ENDING)
async def test_an_end_after_the_cancel_releases_nobody(
    desk: FlowDesk, policy: CancelPolicy
) -> None:
    await desk.draw(plan("abc", "a>b b>c"))
    lease = await desk.start("a")
    await desk.engine.flows.cancel(FLOW, policy, "enough")
    await desk.engine.complete(lease, b"1")
    await desk.dispatch()
    assert await desk.states("abc") == {"a": "completed", "b": "cancelled", "c": "cancelled"}
    assert (await desk.member("b")).outcome_detail == "enough"
    assert "dependencies_satisfied" not in await desk.history((await desk.member("b")).id)
    assert await desk.counters() == {"completed": 1, "cancelled": 2}
    assert await desk.lines() == []


async def test_a_flow_that_is_cancelled_alone_goes_on_releasing(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    lease = await desk.start("a")
    await desk.engine.flows.cancel(FLOW, CancelPolicy.FLOW_ONLY)
    await desk.engine.complete(lease, b"1")
    await desk.dispatch()
    assert await desk.states("ab") == {"a": "completed", "b": "waiting"}


async def test_a_big_flow_that_is_cancelled_before_it_opens_begins_nothing(desk: FlowDesk) -> None:
    names = list(range(1_000, 1_510))
    await desk.draw(plan(names))
    desk.clock.advance(1)
    await desk.engine.flows.cancel(FLOW)
    await desk.dispatch()
    assert await desk.counters() == {"cancelled": len(names)}
    assert await desk.history((await desk.member(1_000)).id) == [
        "submitted",
        "cancelled",
        "dispatched",
    ]
    assert await desk.lines() == []


@pytest.mark.case("CF-005", "CF-006")
async def test_a_cancel_is_one_line_and_owes_every_member_until_it_has_ended(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("abc"))
    for name in "abc":
        await desk.start(name)
    assert await desk.engine.flows.backlog(FLOW) == Backlog(None, False, [], 0)
    before = len(await desk.engine.read.events(Feed()))
    await desk.engine.flows.cancel(FLOW, reason="enough")
    owed = sorted(member(name) for name in "abc")
    requested_ms = desk.clock.now_ms()
    assert await desk.engine.flows.backlog(FLOW) == Backlog(requested_ms, True, owed, 0)
    (line,) = await desk.lines()
    assert (line.kind, line.at_ms, line.next_try_ms) == (LineKind.CANCEL_FLOW, requested_ms, 0)
    await desk.dispatch()
    assert await desk.engine.flows.backlog(FLOW) == Backlog(requested_ms, False, [], 3)
    assert await desk.states("abc") == dict.fromkeys("abc", "cancelled")
    since = (await desk.engine.read.events(Feed()))[before:]
    cancelled = [each for each in since if each.kind == "cancelled"]
    assert sorted(each.execution for each in cancelled) == owed
    for told in cancelled:
        assert told.detail == {"reason": "enough", "source": "flow_cascade"}
    # Nothing is told of the flow itself; that each end was dispatched is told of its member.
    others = [each for each in since if each not in cancelled]
    assert sorted(each.execution for each in others) == owed
    assert {each.kind for each in others} == {"dispatched"}


@pytest.mark.case("CF-009")
async def test_what_is_not_in_the_backlog_can_be_worked_off_again(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    await desk.engine.flows.cancel(FLOW)
    (line,) = await desk.lines()
    await desk.dispatch()
    before = await everything(desk.store)
    log = [await desk.history(member(name)) for name in "ab"]
    assert isinstance(await desk.dispatcher.dispatch(line), NoOp)
    unknown = msgspec.structs.replace(line, flow=flow_id(404))
    assert isinstance(await desk.dispatcher.dispatch(unknown), NoOp)
    assert await everything(desk.store) == before
    assert [await desk.history(member(name)) for name in "ab"] == log


@pytest.mark.case("CF-011")
async def test_who_waits_for_a_cancel_hears_who_was_cancelled(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b"))
    await desk.ended("c")
    done = await desk.engine.flows.cancel(FLOW, wait_ms=5_000)
    assert (done.status, done.cancelled) == (
        CancelStatus.CANCELLED,
        sorted([member("a"), member("b")]),
    )
    assert set(done.members) == {member(name) for name in "abc"}
    assert await desk.states("abc") == {"a": "cancelled", "b": "cancelled", "c": "completed"}


async def test_who_waits_for_the_cancel_of_what_is_pending_does_not_wait_for_what_runs(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("ab"))
    await desk.start("a")
    done = await desk.engine.flows.cancel(FLOW, CancelPolicy.CANCEL_PENDING, wait_ms=5_000)
    assert done.cancelled == [member("b")]
    assert await desk.states("ab") == {"a": "active", "b": "cancelled"}


@pytest.mark.case("CF-015", "CF-016")
async def test_without_waiting_a_cancel_is_scheduled_unless_nobody_is_owed_one(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("abc"))
    scheduled = await desk.engine.flows.cancel(FLOW)
    assert (scheduled.status, scheduled.policy, len(scheduled.members), scheduled.cancelled) == (
        CancelStatus.SCHEDULED,
        CancelPolicy.CANCEL_ALL,
        3,
        [],
    )
    assert await desk.states("abc") == dict.fromkeys("abc", "waiting")
    # A process that dies here has lost nothing: the line is the backlog, for whoever comes.
    await desk.another().dispatch()
    assert await desk.states("abc") == dict.fromkeys("abc", "cancelled")
    empty = flow_id(9)
    await desk.draw(plan("", flow=empty))
    done = await desk.engine.flows.cancel(empty)
    assert (done.status, done.policy, done.members) == ("cancelled", "cancel_all", [])


@pytest.mark.case("CF-016")
async def test_members_are_cancelled_five_hundred_in_a_commit(desk: FlowDesk) -> None:
    await desk.draw(plan(range(1_000, 2_001)))
    await desk.dispatch()
    await desk.engine.flows.cancel(FLOW)
    watched = Watched(desk.store)
    other = FlowDesk(watched, desk.clock)
    await other.dispatch()
    cancels = [
        count
        for changes in watched.changes
        if (count := sum(t.patch.get("state") == "cancelled" for t in changes.transitions))
    ]
    assert cancels == [500, 500, 1]


@pytest.mark.case("CF-017")
async def test_waiting_for_the_cancel_of_an_empty_flow_ends_at_once(desk: FlowDesk) -> None:
    await desk.draw(plan(""))
    done = await desk.engine.flows.cancel(FLOW, wait_ms=500)
    assert done.status is CancelStatus.CANCELLED
    flow = await desk.engine.flows.read.describe(FLOW)
    assert flow is not None
    assert flow.state is FlowState.CANCELLED


@pytest.mark.case("CF-018")
async def test_waiting_for_a_cancel_that_nobody_asks_for_ends_in_time(desk: FlowDesk) -> None:
    await desk.draw(plan("a"))
    with pytest.raises(ResultTimeout, match="is not cancelled after 1 ms") as late:
        await desk.engine.flows.wait_cancelled(FLOW, 1)
    assert late.value.details == {"op": "cancel_flow", "elapsed_ms": 1}
    assert late.value.code == "timeout"


@pytest.mark.parametrize("store_kind", ["memory"])
@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_a_clean_up_runs_when_what_it_cleans_up_for_went_wrong(
    desk: FlowDesk, outcome: str
) -> None:
    """A cancelled upstream may have begun something, too."""
    edges = [*links("a>x", kind=EdgeKind.FAILURE), *links("a>y", kind=EdgeKind.ORDER)]
    await desk.draw(plan("axy", edges))
    await desk.ended("a", outcome=outcome)
    assert await desk.states("xy") == {"x": "waiting", "y": "waiting"}


@pytest.mark.parametrize("store_kind", ["memory"])
async def test_a_clean_up_is_skipped_when_nothing_was_begun(desk: FlowDesk) -> None:
    """The upstream was skipped, or succeeded: in neither case is there anything to clean up."""
    edges = [*links("a>b"), *links("b>x a>y", kind=EdgeKind.FAILURE)]
    await desk.draw(plan("abxy", edges))
    await desk.ended("a", outcome="failed")
    assert await desk.states("bxy") == {"b": "skipped", "x": "skipped", "y": "waiting"}
    other = flow_id(5)
    edges = links("a>x", other, EdgeKind.FAILURE)
    await desk.draw(plan("ax", edges, flow=other))
    await desk.ended("a", flow=other)
    assert await desk.state("x", other) == "skipped"


async def test_a_flow_that_is_being_submitted_cannot_be_cancelled(desk: FlowDesk) -> None:
    await desk.draw(plan(""))
    closed = Changeset(flows=[FlowPatch(FLOW, 1, {"is_open": False})])
    assert await desk.store.commit(closed, desk.clock.now_ms())
    with pytest.raises(FlowNotFound):
        await desk.engine.flows.cancel(FLOW)
    assert await desk.engine.flows.read.describe(FLOW) is None
