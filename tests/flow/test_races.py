"""Several dispatchers on the same flows, in threads of their own, as other processes would be:
nobody is stuck and nothing is counted twice, also when every lease of a flow is lost at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.graph import Link, Plan
from flowfabric.core.flow.model import GroupState
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import FlowId
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.engine.dispatcher import BACK_MS
from flowfabric.store import Store
from flowfabric.testing import FaultyStore
from flowfabric.testing.flow_invariants import broken_flow
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.conftest import Size
from tests.flow.desk import FlowDesk
from tests.flow.racing import Forgetful, Greedy, Stage
from tests.flow.scenario import play, scenario, story

DISPATCHERS = 8


def fan_in(flow: FlowId, width: int) -> Plan:
    names = list(range(1_000, 1_000 + width))
    edges = [Link(member(name, flow), member("x", flow)) for name in names]
    return plan([*names, "x"], edges, flow=flow)


@pytest.mark.lab
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_fan_in_is_counted_exactly_by_dispatchers_with_disjoint_lines(
    desk: FlowDesk, stage: Stage, size: Size, is_lost: bool
) -> None:
    """With `is_lost`, each has looked at its own lines before the first of all writes."""
    flows = [flow_id(number) for number in range(1, 31 if size == "long" else 4)]
    width = 240 if size == "long" else 40
    for flow in flows:
        await desk.draw(fan_in(flow, width))
    await desk.dispatch()
    while leases := await desk.claim(500):
        for lease in leases:
            await desk.engine.complete(lease, b"1")
    all_looked = threading.Barrier(DISPATCHERS)

    async def dispatch(rival: FlowDesk) -> None:
        for _ in range(3 * width):
            await rival.dispatcher.run_once()
            if not [line for flow in flows for line in await rival.lines(flow)]:
                break

    def dressed(number: int, store: Store) -> Store:
        return Greedy(store, (number, DISPATCHERS), all_looked) if is_lost else store

    await stage.each([(dispatch, partial(dressed, number)) for number in range(DISPATCHERS)])
    for flow in flows:
        group = await desk.group("x", flow)
        assert (group.succeeded, group.n, group.state) == (width, width, GroupState.SATISFIED)
        assert await desk.state("x", flow) is State.WAITING
        assert await desk.counters(flow) == {"completed": width}
        assert await desk.lines(flow) == []


@pytest.mark.lab
async def test_dispatchers_that_keep_no_lease_end_a_flow_as_one_would(
    desk: FlowDesk, stage: Stage, stranger: Store, size: Size
) -> None:
    """A fan-out that joins again, a race, a vote and a long chain of skips, all at once."""
    wanted = scenario(*((200, 100) if size == "long" else (12, 8)))
    alone = FlowDesk(stranger, desk.clock)
    await alone.engine.open()
    await alone.draw(wanted)
    await play(alone)
    await desk.draw(wanted)
    over = threading.Event()

    async def work(rival: FlowDesk) -> None:
        try:
            await play(rival)
        finally:
            over.set()

    async def dispatch(rival: FlowDesk) -> None:
        while not over.is_set():
            await rival.dispatcher.run_once()

    rivals = [(work, Forgetful), *[(dispatch, Forgetful)] * (4 if size == "long" else 2)]
    await stage.each(rivals)
    assert await story(desk) == await story(alone)
    assert broken_flow(await desk.whole()) == []


async def test_a_dispatcher_that_lost_its_lease_changes_nothing_any_more(
    desk: FlowDesk, stage: Stage
) -> None:
    """Between its look and its write others end, and another dispatcher does all there is to do."""
    await desk.draw(fan_in(FLOW, 6))
    await desk.end(*range(1_000, 1_003))

    async def dispatch(rival: FlowDesk) -> None:
        await rival.dispatch()

    async def go_on(rival: FlowDesk) -> None:
        await rival.end(*range(1_003, 1_006))
        await rival.dispatch()

    await stage.overtaken(dispatch, go_on, dressed=Forgetful)
    group = await desk.group("x")
    assert (group.succeeded, group.state) == (6, GroupState.SATISFIED)
    assert await desk.state("x") is State.WAITING
    assert (await desk.counters(), await desk.lines()) == ({"completed": 6}, [])


class Meddled(FaultyStore):
    """Before each of its first commits somebody else changes the flow."""

    meddlings = 3

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        if self.meddlings:
            self.meddlings -= 1
            flow = (await self.inner.graph([Sight(flow=FLOW)]))[0].flow
            assert flow is not None
            assert await self.inner.commit(Changeset(flows=[FlowPatch(FLOW, flow.rev, {})]), now_ms)
        return await self.inner.commit_each(batch, now_ms)


async def test_a_flow_that_others_keep_changing_is_given_back_for_a_moment(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    store = Meddled(desk.store)
    rival = FlowDesk(store, desk.clock)
    await rival.engine.open()
    await rival.dispatcher.run_once()
    assert (store.meddlings, await desk.state("b")) == (0, State.BLOCKED_DEPENDENCIES)
    desk.clock.advance(BACK_MS)
    await desk.another().dispatch()
    assert await desk.state("b") is State.WAITING
    assert await desk.counters() == {"completed": 1}
