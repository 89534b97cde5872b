"""What the cancel of a flow answers: who was cancelled by it, who is owed, who could not be."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import CancelPolicy, Join, OnSatisfied
from flowfabric.engine.flow_cancelling import CancelStatus
from flowfabric.testing.flows import FLOW, member, plan
from tests.corrupter import Raw
from tests.flow.desk import FlowDesk

DAMAGED = [("state", "melted"), ("reason", "melted"), ("next_kind", "melted")]


async def test_who_was_cancelled_does_not_depend_on_two_clocks(desk: FlowDesk) -> None:
    """The flow is flipped by one process, and its members are ended by another."""
    await desk.draw(plan("ab"))
    ahead = desk.another()
    await ahead.engine.open()
    ahead.engine.clock.follow(desk.clock.now_ms() + 400)
    ahead.engine.flows._cancelling._dispatcher = desk.dispatcher
    done = await ahead.engine.flows.cancel(FLOW, wait_ms=5_000)
    assert done.cancelled == sorted([member("a"), member("b")])
    assert (await desk.member("a")).ended_ms == desk.clock.now_ms()


async def test_only_those_are_named_that_this_cancel_has_ended(desk: FlowDesk) -> None:
    """Not who was cancelled by hand, or as the loser of a race, at the same moment."""
    race = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)
    await desk.draw(plan("abcdx", "a>x b>x", policies={"x": race}))
    await desk.ended("a")
    await desk.end("c", outcome="cancelled")
    assert await desk.states("bc") == {"b": "cancelled", "c": "cancelled"}
    done = await desk.engine.flows.cancel(FLOW, reason="enough", wait_ms=5_000)
    assert done.cancelled == sorted([member("d"), member("x")])
    assert (done.status, done.owed, done.not_cancelled) == (CancelStatus.CANCELLED, [], [])


@pytest.mark.parametrize("policy", [CancelPolicy.CANCEL_ALL, CancelPolicy.CANCEL_PENDING])
@pytest.mark.parametrize(("column", "text"), DAMAGED)
async def test_a_member_that_cannot_be_read_is_not_said_to_be_cancelled(
    desk: FlowDesk, raw: Raw, column: str, text: str, policy: CancelPolicy
) -> None:
    await desk.draw(plan("abc"))
    whole = await desk.member("b")
    await raw.write(whole, column, text)
    every = sorted(member(name) for name in "abc")
    scheduled = await desk.engine.flows.cancel(FLOW, policy)
    assert (scheduled.status, scheduled.owed) == (CancelStatus.SCHEDULED, every)
    assert (scheduled.members, scheduled.not_cancelled) == (every, [])
    done = await desk.engine.flows.cancel(FLOW, policy, wait_ms=5_000)
    assert done.status is CancelStatus.PARTIALLY
    assert done.cancelled == sorted([member("a"), member("c")])
    assert (done.owed, done.not_cancelled) == ([], [member("b")])


async def test_a_line_that_cannot_be_read_keeps_nobody_from_cancelling(
    desk: FlowDesk, raw: Raw
) -> None:
    await desk.draw(plan("ab"))
    await desk.end("a")
    (line,) = await desk.lines()
    await raw.write(line, "kind", "melted")
    done = await desk.engine.flows.cancel(FLOW, wait_ms=5_000)
    assert (done.status, done.cancelled) == (CancelStatus.CANCELLED, [member("b")])


async def test_a_flow_that_is_cancelled_alone_has_cancelled_nobody(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    done = await desk.engine.flows.cancel(FLOW, CancelPolicy.FLOW_ONLY, wait_ms=1_000)
    assert (done.status, done.cancelled, done.owed) == (CancelStatus.CANCELLED, [], [])


async def test_without_waiting_those_are_named_that_are_owed_a_cancel(desk: FlowDesk) -> None:
    await desk.draw(plan("abcd", "a>d"))
    await desk.start("b")
    await desk.ended("c")
    done = await desk.engine.flows.cancel(FLOW, CancelPolicy.CANCEL_PENDING)
    assert (done.status, done.cancelled) == (CancelStatus.SCHEDULED, [])
    assert done.owed == sorted([member("a"), member("d")])
