"""A flow that others keep changing is cancelled all the same: the wish goes into its outbox."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.cancel import cancel_flow
from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import CancelPolicy, FlowState, LineKind
from flowfabric.core.transition import Changeset
from flowfabric.engine.flow_cancelling import CancelStatus
from flowfabric.errors import FlowAlreadyTerminal, FlowNotFound
from flowfabric.store import Store
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import FLOW, flow_id, member, order, plan
from tests.flow.desk import FlowDesk

PENDING = CancelPolicy.CANCEL_PENDING


async def busy(desk: FlowDesk, store: Store) -> FlowDesk:
    """Somebody whose every guarded change of the flow comes too late."""

    async def overtake() -> None:
        flow = await desk.flow()
        rival = Changeset(flows=[FlowPatch(FLOW, flow.rev, {"updated_ms": desk.clock.now_ms()})])
        assert await desk.store.commit(rival, desk.clock.now_ms())

    fault = Fault(Verb.COMMIT, 1, Kind.DELAY, times=3, hook=overtake)
    other = FlowDesk(FaultyStore(store, [fault]), desk.clock)
    await other.engine.open()
    return other


@pytest.mark.case("CF-021")
async def test_a_cancel_that_others_always_overtake_is_left_as_a_wish(
    desk: FlowDesk, store: Store
) -> None:
    await desk.draw(plan("ab", "a>b"))
    overtaken = await busy(desk, store)
    requested_ms = desk.clock.now_ms()
    done = await overtaken.engine.flows.cancel(FLOW, reason="enough")
    both = sorted([member("a"), member("b")])
    assert (done.status, done.owed, done.cancelled) == (CancelStatus.SCHEDULED, both, [])
    assert (await desk.flow()).state is FlowState.OPEN
    (wish,) = await desk.lines()
    assert (wish.kind, wish.at_ms) == (LineKind.REQUEST_CANCEL, requested_ms)
    backlog = await desk.engine.flows.backlog(FLOW)
    assert (backlog.requested_ms, backlog.is_listed, backlog.owed) == (requested_ms, True, both)
    status = await desk.engine.flows.status(FLOW)
    assert (status.state, status.cancel_requested_ms) == ("blocked", requested_ms)

    desk.clock.advance(10)
    await desk.dispatch()
    flow = await desk.flow()
    assert (flow.state, flow.cancel_policy, flow.cancel_reason) == (
        FlowState.CANCELLED,
        "cancel_all",
        "enough",
    )
    assert await desk.states("ab") == {"a": "cancelled", "b": "cancelled"}
    assert await desk.lines() == []
    status = await desk.engine.flows.status(FLOW)
    assert (status.state, status.cancel_requested_ms) == ("cancelled", flow.cancelled_ms)
    with pytest.raises(FlowAlreadyTerminal):
        await desk.engine.flows.build.add(FLOW, Addition(orders=[order("c")]))


async def test_whoever_waits_carries_the_wish_out(desk: FlowDesk, store: Store) -> None:
    await desk.draw(plan("ab"))
    await desk.start("a")
    overtaken = await busy(desk, store)
    done = await overtaken.engine.flows.cancel(FLOW, PENDING, wait_ms=5_000)
    assert (done.status, done.cancelled) == (CancelStatus.CANCELLED, [member("b")])
    assert await desk.states("ab") == {"a": "active", "b": "cancelled"}
    assert await desk.lines() == []


async def test_a_wish_is_fulfilled_by_the_next_cancel_and_refuses_another(
    desk: FlowDesk, store: Store
) -> None:
    await desk.draw(plan("a"))
    await (await busy(desk, store)).engine.flows.cancel(FLOW, PENDING)
    with pytest.raises(FlowAlreadyTerminal, match="cancel_pending"):
        await desk.engine.flows.cancel(FLOW, CancelPolicy.CANCEL_ALL)
    await desk.engine.flows.cancel(FLOW, PENDING)
    assert [line.kind for line in await desk.lines()] == [LineKind.CANCEL_FLOW]
    await desk.dispatch()
    assert await desk.states("a") == {"a": "cancelled"}


async def test_a_wish_that_another_cancel_overtook_is_done(desk: FlowDesk, store: Store) -> None:
    await desk.draw(plan("a"))
    await (await busy(desk, store)).engine.flows.cancel(FLOW, PENDING)
    wishes = await desk.lines()
    flow = await desk.flow()
    assert await desk.store.commit(
        cancel_flow(flow, desk.clock.now_ms(), PENDING, "first"), desk.clock.now_ms()
    )
    assert set(wishes) < set(await desk.lines())
    await desk.dispatch()
    assert (await desk.flow()).cancel_reason == "first"
    assert await desk.lines() == []


async def test_a_wish_ends_what_its_process_knows_of_the_flow(here: FlowDesk) -> None:
    """What it writes without a look would overtake the dispatcher again and again."""
    await here.draw(plan("ab"))
    assert here.engine.known.knows(FLOW)
    await here.engine.flows._cancelling._leave(FLOW, PENDING, "")
    assert not here.engine.known.knows(FLOW)


async def test_of_several_wishes_the_oldest_counts(desk: FlowDesk, store: Store) -> None:
    await desk.draw(plan("a"))
    for _ in range(2):
        await (await busy(desk, store)).engine.flows.cancel(FLOW, PENDING)
        desk.clock.advance(1)
    assert len(await desk.lines()) == 2
    await desk.dispatch()
    assert await desk.states("a") == {"a": "cancelled"}
    assert await desk.lines() == []


async def test_a_wish_for_a_flow_that_is_gone_is_not_left(desk: FlowDesk) -> None:
    cancelling = desk.engine.flows._cancelling
    with pytest.raises(FlowNotFound):
        await cancelling._leave(flow_id(404), PENDING, "")
    assert (await desk.view(flow_id(404))).lines == []
