"""Cancel of a flow against what its members do meanwhile; waiting for it, its backlog."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.model import CancelPolicy
from flowfabric.testing.flows import FLOW, plan
from tests.flow.desk import FlowDesk

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
