"""Replay of a member with more downstream than one commit holds: it goes in portions, nothing of it
runs before all of it is taken back, and whoever dies in the middle leaves a line that finishes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import EdgeKind, GroupState, Join, LineKind, OnSatisfied
from flowfabric.core.ids import FlowId
from flowfabric.core.model import Lease
from flowfabric.core.states import PublicState, State
from flowfabric.core.transition import BATCH_LIMIT, Changeset
from flowfabric.engine import reopening
from flowfabric.engine.dependency_reconciler import DependencyReconciler
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.errors import ExecutionNotTerminal, ReplaysExhausted
from flowfabric.store import Store
from flowfabric.store.hints import Hint
from flowfabric.testing import FaultyStore, Kind
from flowfabric.testing.build import policy
from flowfabric.testing.flow_invariants import broken_flow
from flowfabric.testing.flows import FLOW, flow_id, links, member, plan
from flowfabric.testing.invariants import broken_promises
from tests.flow.desk import FlowDesk
from tests.flow.dying import Died, Mortal
from tests.flow.scenario import Story, story

PORTION = 3
FIRST = Policy(Join.ANY_OF, 1, OnSatisfied.LET_RUN)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopening, "PORTION", PORTION)


def wide(flow: FlowId = FLOW) -> Plan:
    """One, four, one with more edges than a portion, and one below it; f fails, so s is skipped
    and y is; x has enough without b; w waits for a failure."""
    edges = links("a>b a>c a>d a>e b>z c>z d>z e>z z>y f>y b>x g>x a>s f>s", flow)
    edges += [Link(member("a", flow), member("w", flow), EdgeKind.COMPLETION)]
    return plan("abcdefgswxyz", edges, flow=flow, policies={"x": FIRST}, policy=policy())


async def played(desk: FlowDesk, flow: FlowId = FLOW) -> None:
    await desk.draw(wide(flow))
    await desk.ended("f", outcome="failed", flow=flow)
    for names in ("a", "bcde", "gwxz"):
        await desk.ended(*names, flow=flow)


class Sizes(FaultyStore):
    """Remembers how many records each commit of a flow wrote."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.found: list[int] = []

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        self.found += [
            len(changes.transitions) + len(changes.resolved) + len(changes.groups)
            for changes in batch
        ]
        return await super().commit_each(batch, now_ms)


async def test_what_goes_in_portions_comes_to_the_same(
    desk: FlowDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Story] = []
    for flow, portion in ((flow_id(1), BATCH_LIMIT), (flow_id(2), PORTION)):
        await played(desk, flow)
        monkeypatch.setattr(reopening, "PORTION", portion)
        await desk.engine.replay(member("a", flow), downstream=True)
        await desk.dispatch()
        found.append(await story(desk, flow))
        assert await desk.states("abcdewz", flow) == {
            "a": "waiting",
            **dict.fromkeys("bcdewz", "blocked_dependencies"),
        }
        assert await desk.states("sxy", flow) == {"s": "skipped", "x": "waiting", "y": "skipped"}
        assert broken_flow(await desk.whole(flow)) == []
    assert found[0] == found[1]


async def test_each_commit_is_small_and_nothing_runs_before_the_last(
    desk: FlowDesk, small: None
) -> None:
    await desk.draw(plan("abcdefz", "a>b a>c a>d a>e a>f b>z c>z d>z e>z f>z"))
    for names in ("a", "bcdef", "z"):
        await desk.ended(*names)
    shown = await desk.engine.replay(member("a"), downstream=True)
    assert shown is PublicState.WAITING_CHILDREN
    told = await desk.engine.read.explain(member("a"))
    assert (told.sentence, told.wakes) == (
        "replayed; held until its downstream members are reset",
        "dependencies",
    )
    (line,) = await desk.lines()
    assert (line.kind, line.execution, line.generation) == (LineKind.REOPEN, member("a"), 1)
    store = Sizes(desk.store)
    rival = FlowDesk(store, desk.clock)
    (job,) = await rival.dispatcher._take([FLOW])
    jobs = [job]
    while jobs and len(store.found) < 7:
        assert (await desk.claim(10), await desk.state("a")) == ([], State.BLOCKED_DEPENDENCIES)
        jobs = await rival.dispatcher._go_on(await rival.dispatcher._attempt(jobs))
    # z in two, each of the five above it, and then a is free.
    await rival.dispatcher._work(jobs)
    assert store.found == [3, 4, 3, 3, 3, 3, 3, 1]
    assert [lease.id for lease in await desk.claim(10)] == [member("a")]
    assert await desk.counters() == {}


async def test_a_death_around_any_write_of_it_changes_nothing(
    desk: FlowDesk, small: None, store_kind: str
) -> None:
    await played(desk, flow_id(1))
    alive = Mortal(desk.store)
    expected = await retold(desk, alive, flow_id(1))
    assert expected.counters == {"completed": 9, "failed": 1, "skipped": 2}
    every = range(1, len(alive.writes) + 1)
    for at in every if store_kind == "memory" else [*every][2::4]:
        flow = flow_id(1 + at)
        await played(desk, flow)
        assert await retold(desk, Mortal(desk.store, at, Kind.AFTER), flow) == expected
        assert broken_flow(await desk.whole(flow)) == []
    assert await broken_promises(desk.store, desk.clock.now_ms()) == []


async def retold(desk: FlowDesk, store: Mortal, flow: FlowId) -> Story:
    """Replayed by one who may die at it, then run to the end by another."""
    doomed = FlowDesk(store, desk.clock)
    await doomed.engine.open()
    try:
        await doomed.engine.replay(member("a", flow), downstream=True)
        await doomed.dispatch()
    except Died:
        desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    for names in ("a", "bcdewx", "z"):
        await desk.ended(*names, flow=flow)
    return await story(desk, flow)


async def one_round(desk: FlowDesk) -> None:
    """A dispatcher does one portion, and dies."""
    (job,) = await desk.dispatcher._take([FLOW])
    assert await desk.dispatcher._commit([job]) == [True]
    desk.clock.advance(LEASE_MS)


class Greedy(FaultyStore):
    """Somebody takes whatever can be taken after each commit."""

    def __init__(self, desk: FlowDesk) -> None:
        super().__init__(desk.store)
        self._desk = desk
        self.taken: list[Lease] = []

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        answers = await super().commit_each(batch, now_ms)
        self.taken.extend(await self._desk.claim(10))
        return answers


@pytest.mark.parametrize("by_hint", [False, True])
async def test_an_end_that_nobody_was_told_of_is_taken_back_with_the_rest(
    desk: FlowDesk, small: None, by_hint: bool
) -> None:
    """Its line is older than the replay: acted on in the middle, z would run with what b was."""
    await desk.draw(plan("abz", "a>b b>z"))
    for name in "abz":
        await desk.ended(name)
    await desk.engine.replay(member("b"))
    await desk.end("b")
    (line,) = await desk.lines()
    await desk.engine.replay(member("a"), downstream=True)
    await one_round(desk)
    assert await desk.states("abz") == {
        "a": "blocked_dependencies",
        "b": "completed",
        "z": "blocked_dependencies",
    }
    store = Greedy(desk)
    rival = FlowDesk(store, desk.clock)
    if by_hint:
        rival.dispatcher.hear(Hint(flows=(FLOW,), lines=(line,)))
        await rival.dispatcher.run_once(everything=False)
    else:
        await rival.dispatcher.dispatch(line)
    await rival.dispatch()
    assert [lease.id for lease in store.taken] == [member("a")]
    assert await desk.states("bz") == dict.fromkeys("bz", "blocked_dependencies")
    assert (await desk.lines(), await desk.counters()) == ([], {})


@pytest.mark.parametrize("store_kind", ["memory"])
async def test_a_member_cancelled_while_its_downstream_is_taken_back_ends_it(
    desk: FlowDesk, small: None
) -> None:
    await desk.draw(plan("abcde", "a>b a>c a>d a>e"))
    await desk.ended("a")
    await desk.ended(*"bcde")
    await desk.engine.replay(member("a"), downstream=True)
    await one_round(desk)
    await desk.engine.cancel(member("a"), "no, leave it")
    await desk.dispatch()
    assert await desk.states("abcde") == {"a": "cancelled", **dict.fromkeys("bcde", "skipped")}
    assert await desk.counters() == {"cancelled": 1, "skipped": 4}
    assert broken_flow(await desk.whole()) == []


@pytest.mark.parametrize("store_kind", ["memory"])
async def test_the_reconciler_leaves_alone_what_is_being_taken_back(
    desk: FlowDesk, small: None
) -> None:
    await desk.draw(plan("abcde", "a>b a>c a>d a>e b>e c>e d>e"))
    for names in ("a", "bcd", "e"):
        await desk.ended(*names)
    await desk.engine.replay(member("a"), downstream=True)
    await one_round(desk)
    assert (await desk.group("e")).state is GroupState.SATISFIED
    before = await desk.whole()
    reconciler = DependencyReconciler(desk.store, desk.engine.clock, desk.dispatcher)
    assert (await reconciler.run_once()).processed == 0
    after = await desk.whole()
    assert (after.members, after.groups) == (before.members, before.groups)
    assert (after.edges, after.lines) == (before.edges, before.lines)


@pytest.mark.parametrize("store_kind", ["memory"])
async def test_downstream_that_may_not_run_again_refuses_all_of_it(
    desk: FlowDesk, small: None
) -> None:
    await desk.draw(plan("abcd", "a>b a>c a>d", policy=policy(replays=1)))
    await desk.ended("a")
    await desk.ended(*"bcd")
    await desk.engine.replay(member("c"))
    await desk.ended("c")
    before = await desk.whole()
    with pytest.raises(ReplaysExhausted):
        await desk.engine.replay(member("a"), downstream=True)
    assert await desk.whole() == before
    await desk.engine.replay(member("a"))
    with pytest.raises(ExecutionNotTerminal):
        await desk.engine.replay(member("a"), downstream=True)
