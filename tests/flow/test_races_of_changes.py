"""Whoever changes a flow against a dispatcher, and ends against other ends, with real concurrency.

In each race one has looked and decided, and the other is through before it writes: what would have
to happen by bad luck happens every time. Where many race at once, luck is given its chance.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import EdgeState, GroupState, Join, OnSatisfied
from flowfabric.core.model import Lease
from flowfabric.core.states import State
from flowfabric.core.transition import BATCH_LIMIT, Changeset
from flowfabric.engine.outcomes import Completed, Finished
from flowfabric.errors import ExecutionNotActive
from flowfabric.store import Store
from flowfabric.testing import FaultyStore
from flowfabric.testing.build import order as solo
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.conftest import Size
from tests.flow.desk import FlowDesk
from tests.flow.racing import PATIENCE_SECONDS, Stage

TTL_MS = 5_000
RECORD_MS = 4
RACE = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)


async def attach(desk: FlowDesk) -> None:
    await desk.engine.flows.build.link(FLOW, Link(member("a"), member("b")))


async def dispatch(desk: FlowDesk) -> None:
    await desk.dispatch()


async def replay(desk: FlowDesk) -> None:
    await desk.engine.replay(member("a"))


async def test_an_edge_attached_while_its_upstream_finishes_is_not_forgotten(
    desk: FlowDesk, stage: Stage
) -> None:
    await desk.draw(plan("ab"))
    lease = await desk.start("a")

    async def finish(rival: FlowDesk) -> None:
        await rival.engine.complete(lease, b"1")
        await rival.dispatch()

    await stage.overtaken(attach, finish)
    assert (await desk.edge("a", "b")).state is EdgeState.SATISFIED
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES
    await desk.engine.flows.build.seal(FLOW, member("b"))
    assert await desk.state("b") is State.WAITING
    assert (await desk.counters(), await desk.lines()) == ({"completed": 1}, [])


async def test_an_end_dispatched_while_an_edge_is_attached_resolves_it(
    desk: FlowDesk, stage: Stage
) -> None:
    await desk.draw(plan("ab"))
    await desk.end("a")
    await stage.overtaken(dispatch, attach)
    group = await desk.group("b")
    assert (group.n, group.succeeded) == (1, 1)
    assert (await desk.edge("a", "b")).state is EdgeState.SATISFIED
    assert (await desk.counters(), await desk.lines()) == ({"completed": 1}, [])


@pytest.mark.lab
async def test_edges_attached_and_ends_of_upstreams_meet_by_chance(
    desk: FlowDesk, stage: Stage, size: Size
) -> None:
    flows = [flow_id(number) for number in range(1, 101 if size == "long" else 9)]
    leases: list[Lease] = []
    for flow in flows:
        await desk.draw(plan("ab", flow=flow))
        leases.append(await desk.start("a", flow))

    async def attach_all(rival: FlowDesk) -> None:
        for flow in flows:
            link = Link(member("a", flow), member("b", flow))
            await rival.engine.flows.build.link(flow, link)

    async def finish_all(rival: FlowDesk) -> None:
        for lease in leases:
            await rival.engine.complete(lease, b"1")
            await rival.dispatch()

    await stage.together(attach_all, finish_all)
    await desk.dispatch()
    for flow in flows:
        await desk.engine.flows.build.seal(flow, member("b", flow))
        assert await desk.state("b", flow) is State.WAITING
        assert (await desk.group("b", flow)).succeeded == 1
        assert await desk.counters(flow) == {"completed": 1}


async def test_a_dispatcher_that_saw_a_failure_is_overtaken_by_a_replay(
    desk: FlowDesk, stage: Stage
) -> None:
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.end("a", outcome="failed")
    await stage.overtaken(dispatch, replay)
    assert await desk.states("abc") == {
        "a": "waiting",
        "b": "blocked_dependencies",
        "c": "blocked_dependencies",
    }
    assert (await desk.counters(), await desk.lines()) == ({}, [])
    await desk.ended("a")
    assert await desk.state("b") is State.WAITING
    group = await desk.group("b")
    assert (group.state, group.succeeded, group.failed) == (GroupState.SATISFIED, 1, 0)


async def test_a_replay_that_saw_an_open_line_is_overtaken_by_a_dispatcher(
    desk: FlowDesk, stage: Stage
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a", outcome="failed")
    await stage.overtaken(replay, dispatch)
    assert await desk.states("ab") == {"a": "waiting", "b": "skipped"}
    assert (await desk.counters(), await desk.lines()) == ({"skipped": 1}, [])
    await desk.ended("a")
    assert await desk.counters() == {"completed": 1, "skipped": 1}


async def test_a_completion_that_a_cancel_overtook_is_told_what_happened(
    desk: FlowDesk, stage: Stage
) -> None:
    await desk.draw(plan("ab", "a>b"))
    lease = await desk.start("a")
    answers: list[Finished] = []

    async def complete(rival: FlowDesk) -> None:
        answers.extend(await rival.engine.finish([Completed(lease, b"1")]))

    async def cancel(rival: FlowDesk) -> None:
        await rival.engine.cancel(lease.id, "enough")

    await stage.overtaken(complete, cancel)
    (answer,) = answers
    assert answer.state is State.CANCELLED
    assert isinstance(answer.error, ExecutionNotActive)
    assert (answer.error.details["state"], answer.error.details["reason"]) == (
        "cancelled",
        "enough",
    )
    await desk.dispatch()
    assert await desk.counters() == {"cancelled": 1, "skipped": 1}


async def test_a_cancel_that_a_completion_overtook_is_told_what_happened(
    desk: FlowDesk, stage: Stage
) -> None:
    await desk.draw(plan("ab", "a>b"))
    lease = await desk.start("a")

    async def cancel(rival: FlowDesk) -> None:
        with pytest.raises(ExecutionNotActive) as raised:
            await rival.engine.cancel(lease.id, "enough")
        assert raised.value.details["state"] == "completed"

    async def complete(rival: FlowDesk) -> None:
        await rival.engine.complete(lease, b"1")

    await stage.overtaken(cancel, complete)
    await desk.dispatch()
    assert await desk.state("b") is State.WAITING
    assert await desk.counters() == {"completed": 1}


@pytest.mark.lab
async def test_cancels_and_completions_meet_by_chance(
    desk: FlowDesk, stage: Stage, size: Size
) -> None:
    """Each execution ends once, both are told the same, and it is counted once."""
    width = 400 if size == "long" else 40
    await desk.draw(plan(range(1_000, 1_000 + width)))
    leases = await desk.claim(width)
    told: list[Finished] = []
    refused: dict[str, str] = {}

    async def complete(rival: FlowDesk) -> None:
        for start in range(0, width, 4):
            some = [Completed(lease, b"1") for lease in leases[start : start + 4]]
            told.extend(await rival.engine.finish(some))

    async def cancel(rival: FlowDesk) -> None:
        for lease in leases:
            try:
                await rival.engine.cancel(lease.id, "enough")
            except ExecutionNotActive as error:
                refused[lease.id] = str(error.details["state"])

    await stage.together(complete, cancel)
    await desk.dispatch()
    rows = {lease.id: str((await desk.head(lease.id)).state) for lease in leases}
    assert {answer.id: str(answer.state) for answer in told} == rows
    assert refused == {id: state for id, state in rows.items() if state == "completed"}
    assert (await desk.flow()).ended == width


async def test_a_loser_that_completes_before_its_cancel_is_counted_as_completed(
    desk: FlowDesk, stage: Stage
) -> None:
    await desk.draw(plan("abcx", "a>x b>x c>x", policies={"x": RACE}))
    loser = await desk.start("b")
    await desk.end("a")

    async def complete(rival: FlowDesk) -> None:
        await rival.engine.complete(loser, b"1")

    # The first write of a dispatcher decides, the second one cancels.
    await stage.overtaken(dispatch, complete, write=2)
    await desk.dispatch()
    assert await desk.states("abc") == {"a": "completed", "b": "completed", "c": "cancelled"}
    group = await desk.group("x")
    assert (group.succeeded, group.failed, group.cancel_owed) == (2, 1, False)
    assert (await desk.counters(), await desk.lines()) == ({"completed": 2, "cancelled": 1}, [])


class Slow(FaultyStore):
    """What it writes takes time, so much for each record; after each call others have a turn."""

    def __init__(self, inner: Store, clock: VirtualClock, turns: threading.Barrier) -> None:
        super().__init__(inner)
        self._clock = clock
        self._turns = turns

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        done = await self.inner.commit(changes, now_ms)
        records = sum(map(len, (changes.members, changes.edges, changes.groups, changes.lines)))
        self._clock.advance(RECORD_MS * records)
        for _ in range(2):
            await asyncio.to_thread(self._turns.wait, PATIENCE_SECONDS)
        return done


@pytest.mark.lab
async def test_leases_are_kept_while_a_big_flow_is_submitted(
    desk: FlowDesk, stage: Stage, size: Size
) -> None:
    """It is written in portions, so nobody waits for all of it; nothing of it is seen meanwhile."""
    width, fan, held = (10_000, 3, 100) if size == "long" else (1_100, 1, 10)
    names = range(10_000, 10_000 + width)
    edges = [
        Link(member(name - back), member(name))
        for name in names[fan:]
        for back in range(1, fan + 1)
    ]
    made = await desk.engine.submit([solo(number) for number in range(held)])
    leases = await desk.claim(held, ttl_ms=TTL_MS)
    assert len(leases) == len(made) == held
    turns, over = threading.Barrier(2), threading.Event()
    renewals = 0

    async def submit(rival: FlowDesk) -> None:
        try:
            await rival.draw(plan(names, edges))
        finally:
            over.set()
            turns.abort()

    async def renew(rival: FlowDesk) -> None:
        nonlocal renewals
        while not over.is_set():
            try:
                await asyncio.to_thread(turns.wait, PATIENCE_SECONDS)
                answers = await rival.engine.renew(leases, TTL_MS)
                assert [answer.error for answer in answers if answer.error] == []
                renewals += 1
                assert await rival.claim(10) == []
                await asyncio.to_thread(turns.wait, PATIENCE_SECONDS)
            except threading.BrokenBarrierError:
                assert over.is_set()

    await stage.each(
        [(submit, lambda store: Slow(store, stage.clock, turns)), (renew, lambda store: store)]
    )
    assert renewals >= (width + len(edges)) / BATCH_LIMIT
    await desk.dispatch()
    flow = await desk.flow()
    assert (flow.is_open, flow.total, flow.edges) == (True, width, len(edges))
    assert len(await desk.claim(500)) == fan
    answers = await desk.engine.finish([Completed(lease, b"1") for lease in leases])
    assert [answer.error for answer in answers if answer.error] == []
