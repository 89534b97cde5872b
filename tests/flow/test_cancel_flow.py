"""Cancel of a whole flow: policies, backlog, repeating, deadline."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from flowfabric.core.flow.model import CancelPolicy, FlowState, LineKind
from flowfabric.core.flow.views import Turn, name_of
from flowfabric.core.states import State
from flowfabric.errors import FlowAlreadyTerminal, FlowNotFound, InvalidInput, LeaseLost, Refused
from flowfabric.testing.flows import FLOW, chain, flow_id, member, plan
from tests.flow.desk import FlowDesk


@pytest.mark.case("CF-001")
async def test_a_cancel_names_its_members_and_stores_its_reason(desk: FlowDesk) -> None:
    await desk.draw(plan("abc"))
    done = await desk.engine.flows.cancel(FLOW, reason="test_cancel")
    assert done.policy == "cancel_all"
    assert set(done.members) == {member(name) for name in "abc"}
    flow = await desk.flow()
    assert (flow.state, flow.cancel_reason, flow.cancel_policy) == (
        FlowState.CANCELLED,
        "test_cancel",
        "cancel_all",
    )


@pytest.mark.case("CF-002")
@pytest.mark.parametrize("wait_ms", [None, 1_000])
async def test_a_second_cancel_answers_what_the_first_did(
    desk: FlowDesk, wait_ms: int | None
) -> None:
    await desk.draw(plan("ab"))
    first = await desk.engine.flows.cancel(FLOW, reason="enough", wait_ms=wait_ms)
    before = await desk.flow()
    desk.clock.advance(1_000)
    assert await desk.engine.flows.cancel(FLOW, reason="too much", wait_ms=wait_ms) == first
    assert await desk.flow() == before
    await desk.dispatch()
    again = await desk.engine.flows.cancel(FLOW, wait_ms=wait_ms)
    assert (again.status, again.cancelled) == ("cancelled", sorted([member("a"), member("b")]))
    for name in "ab":
        assert (await desk.history(member(name))).count("cancelled") == 1


@pytest.mark.case("CF-002")
async def test_a_second_cancel_with_another_policy_is_refused(desk: FlowDesk) -> None:
    await desk.draw(plan("a"))
    await desk.engine.flows.cancel(FLOW, CancelPolicy.CANCEL_PENDING)
    before = await desk.flow()
    for policy in (CancelPolicy.CANCEL_ALL, CancelPolicy.FLOW_ONLY):
        with pytest.raises(FlowAlreadyTerminal) as raised:
            await desk.engine.flows.cancel(FLOW, policy)
        assert raised.value.code == "flow_already_terminal"
        assert raised.value.details["policy"] == "cancel_pending"
    assert await desk.flow() == before


async def test_two_cancels_at_once_are_one(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    other = desk.another()
    await other.engine.open()
    answers = await asyncio.gather(
        *(each.engine.flows.cancel(FLOW, wait_ms=5_000) for each in (desk, other))
    )
    assert answers[0] == answers[1]
    assert answers[0].cancelled == sorted([member("a"), member("b")])
    for name in "ab":
        assert (await desk.history(member(name))).count("cancelled") == 1


@pytest.mark.case("CF-019")
async def test_all_members_are_owed_and_then_cancelled(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", chain("abc")))
    lease = await desk.start("a")
    await desk.engine.flows.cancel(FLOW, reason="enough")
    assert set(await desk.engine.flows.owed(FLOW)) == {member(name) for name in "abc"}
    assert [line.kind for line in await desk.lines()] == [LineKind.CANCEL_FLOW]
    await desk.dispatch()
    assert await desk.states("abc") == dict.fromkeys("abc", "cancelled")
    assert await desk.engine.flows.owed(FLOW) == []
    assert await desk.lines() == []
    assert await desk.counters() == {"cancelled": 3}
    assert (await desk.member("a")).outcome_detail == "enough"
    with pytest.raises((LeaseLost, Refused)):
        await desk.engine.complete(lease, b"late")
    for name in "abc":
        assert (await desk.history(member(name))).count("cancelled") == 1


@pytest.mark.case("CF-007")
async def test_the_cancel_of_what_is_pending_is_owed_too(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    await desk.start("b")
    await desk.engine.flows.cancel(FLOW, CancelPolicy.CANCEL_PENDING)
    assert [line.kind for line in await desk.lines()] == [LineKind.CANCEL_FLOW]
    assert await desk.engine.flows.owed(FLOW) == [member("a")]


@pytest.mark.case("CF-007")
async def test_an_empty_flow_and_the_flow_alone_owe_nothing(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    await desk.engine.flows.cancel(FLOW, CancelPolicy.FLOW_ONLY)
    assert await desk.lines() == []
    assert await desk.engine.flows.owed(FLOW) == []
    await desk.dispatch()
    assert await desk.states("ab") == {"a": "waiting", "b": "waiting"}
    empty = flow_id(77)
    await desk.draw(plan("", flow=empty))
    await desk.engine.flows.cancel(empty)
    assert await desk.lines(empty) == []


async def test_cancel_pending_leaves_what_runs(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    lease = await desk.start("a")
    await desk.engine.flows.cancel(FLOW, CancelPolicy.CANCEL_PENDING)
    await desk.dispatch()
    assert await desk.states("abc") == {"a": "active", "b": "cancelled", "c": "cancelled"}
    await desk.engine.complete(lease, b"1")
    await desk.dispatch()
    assert await desk.counters() == {"completed": 1, "cancelled": 2}


async def test_a_member_that_could_start_at_the_same_moment_is_cancelled(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.end("a")
    await desk.engine.flows.cancel(FLOW)
    await desk.dispatch()
    assert await desk.states("bc") == {"b": "cancelled", "c": "cancelled"}
    assert await desk.counters() == {"completed": 1, "cancelled": 2}


@pytest.mark.case("CF-022")
def test_words_of_the_policies() -> None:
    assert {str(each) for each in CancelPolicy} == {"flow_only", "cancel_all", "cancel_pending"}
    assert all(CancelPolicy(str(each)) is each for each in CancelPolicy)


@pytest.mark.case("CF-023")
async def test_an_unknown_flow_cannot_be_cancelled(desk: FlowDesk) -> None:
    with pytest.raises(FlowNotFound) as raised:
        await desk.engine.flows.cancel(flow_id(404))
    assert raised.value.code == "flow_not_found"


async def test_a_big_flow_is_cancelled_in_portions(desk: FlowDesk) -> None:
    names = list(range(1_000, 2_300))
    await desk.draw(plan(names))
    await desk.dispatch()
    await desk.engine.flows.cancel(FLOW)
    await desk.dispatch()
    assert await desk.counters() == {"cancelled": 1_300}
    assert await desk.lines() == []


async def test_a_flow_whose_time_is_over_is_cancelled(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b", deadline_ms=desk.clock.now_ms() + 1_000))
    await desk.dispatch()
    assert (await desk.flow()).state is FlowState.OPEN
    desk.clock.advance(1_000)
    await desk.dispatch()
    flow = await desk.flow()
    assert (flow.state, flow.cancel_reason, flow.due_ms) == (
        FlowState.CANCELLED,
        "flow_deadline",
        None,
    )
    assert {await desk.state(name) for name in "ab"} == {State.CANCELLED}


@pytest.mark.parametrize("size", [2, 600], ids=["small", "big"])
async def test_a_flow_whose_time_is_over_is_made_no_more(desk: FlowDesk, size: int) -> None:
    """One that was made in time is answered, whenever its submit is repeated."""
    wanted = plan(list(range(1_000, 1_000 + size)), deadline_ms=desk.clock.now_ms() + 1_000)
    await desk.draw(wanted)
    desk.clock.advance(1_000)
    assert not (await desk.engine.flows.submit(wanted)).created
    other = plan(["a"], flow=flow_id(2), deadline_ms=desk.clock.now_ms())
    with pytest.raises(InvalidInput, match="in the past"):
        await desk.engine.flows.submit(other)
    with pytest.raises(FlowNotFound):
        await desk.engine.flows.flow(other.id)


@pytest.mark.parametrize("size", [2, 600], ids=["small", "big"])
async def test_a_flow_is_made_no_more_when_the_time_of_a_member_is_over(
    desk: FlowDesk, size: int
) -> None:
    wanted = plan(list(range(1_000, 1_000 + size)))
    orders = list(wanted.orders)
    orders[1] = msgspec.structs.replace(orders[1], deadline_ms=desk.clock.now_ms() + 1_000)
    wanted = msgspec.structs.replace(wanted, orders=orders)
    await desk.draw(wanted)
    desk.clock.advance(1_000)
    assert not (await desk.engine.flows.submit(wanted)).created
    late = msgspec.structs.replace(plan(["a"], flow=flow_id(2)).orders[0], deadline_ms=1)
    other = msgspec.structs.replace(plan(["a"], flow=flow_id(2)), orders=[late])
    with pytest.raises(InvalidInput, match="in the past"):
        await desk.engine.flows.submit(other)


async def test_a_flow_that_has_ended_in_time_is_not_cancelled(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b", deadline_ms=desk.clock.now_ms() + 1_000))
    await desk.ended("a")
    desk.clock.advance(999)
    await desk.end("b")
    desk.clock.advance(1)
    await desk.dispatch()
    flow = await desk.flow()
    assert (flow.state, flow.due_ms, flow.completed) == (FlowState.OPEN, None, 2)


async def test_a_flow_whose_time_is_over_is_found_among_flows_with_lines(desk: FlowDesk) -> None:
    """Also where there are always more of those than a dispatcher takes at once."""
    now_ms = desk.clock.now_ms()
    busy, late = [flow_id(1), flow_id(3)], flow_id(2)
    for flow in busy:
        await desk.draw(plan("a", flow=flow))
        await desk.end("a", flow=flow)
    await desk.draw(plan("a", flow=late, deadline_ms=now_ms + 1))
    desk.clock.advance(1)
    now_ms = desk.clock.now_ms()
    taken: list[str] = []
    for _ in range(3):
        turn = Turn(limit=1, now_ms=now_ms, until_ms=0, after=taken[-1] if taken else "")
        found = await desk.store.pending(turn)
        taken += [name_of(each) for each in found]
    assert len(taken) == 3
    assert late in taken
