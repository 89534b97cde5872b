"""Post-completion dispatch (S0): from level to level, twice, and the same on every store."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.dispatch import Advanced, NoOp
from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import EdgeState, Join, OnSatisfied
from flowfabric.core.flow.views import EDGES_LIMIT
from flowfabric.core.states import PublicState, State
from flowfabric.engine.flow_projector import FlowProjector
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import add_lines, everything
from flowfabric.testing.flows import chain, links, member, plan
from tests.flow.desk import FlowDesk
from tests.flow.watched import Watched


async def test_s0_29_s0_30_a_chain_is_skipped_by_one_dispatch(desk: FlowDesk) -> None:
    await desk.draw(plan("abcd", chain("abcd")))
    await desk.end("a", outcome="failed")
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == Advanced(1, skipped=1)
    assert await desk.states("bcd") == dict.fromkeys("bcd", "skipped")
    assert await desk.lines() == []


async def test_s0_31_s0_38_a_level_is_committed_before_the_next_begins(desk: FlowDesk) -> None:
    await desk.draw(plan("abcde", "a>b a>c b>d c>e"))
    await desk.end("a", outcome="failed")
    watched = Watched(desk.store)
    await FlowDesk(watched, desk.clock).dispatch()
    levels = [{end.downstream for end in changes.resolved} for changes in watched.changes]
    names = ("bc", "de", "")
    assert levels == [{member(name) for name in level} for level in names]
    locked = [{t.id for t in changes.transitions} for changes in watched.changes]
    assert locked == levels
    assert {len(changes.flows) for changes in watched.changes} == {1}


async def test_s0_32_s2_36_no_depth_is_too_deep(desk: FlowDesk) -> None:
    names = ["a", *range(1_000, 1_060)]
    await desk.draw(plan(names, chain(names)))
    await desk.end("a", outcome="failed")
    (line,) = await desk.lines()
    watched = Watched(desk.store)
    answer = await FlowDesk(watched, desk.clock).dispatcher.dispatch(line)
    assert answer == Advanced(1, skipped=1)
    assert await desk.counters() == {"failed": 1, "skipped": 60}
    # A round for each level, and one that finds nobody below the last.
    assert len(watched.changes) == 61


async def test_s0_33_who_is_skipped_is_known_from_the_decision(desk: FlowDesk) -> None:
    policies = {"c": Policy(Join.ANY_OF)}
    await desk.draw(plan("abcz", "a>b a>c z>c", policies=policies))
    await desk.end("a", outcome="failed")
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == Advanced(2, skipped=1)
    assert await desk.states("bc") == {"b": "skipped", "c": "blocked_dependencies"}


@pytest.mark.parametrize("outcome", ["success", "failed"])
async def test_s0_34_s0_37_s2_4_a_second_dispatch_changes_nothing(
    desk: FlowDesk, outcome: str
) -> None:
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.end("a", outcome=outcome)
    (line,) = await desk.lines()
    assert isinstance(await desk.dispatcher.dispatch(line), Advanced)
    before = await everything(desk.store)
    assert isinstance(await desk.dispatcher.dispatch(line), NoOp)
    assert await everything(desk.store) == before


async def test_s0_34_a_line_that_comes_back_finds_its_edges_resolved(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    await desk.end("a")
    (line,) = await desk.lines()
    await desk.dispatch()
    edges, group = await desk.edges(), await desk.group("c")
    await add_lines(desk.store, desk.clock, line)
    assert await desk.dispatcher.dispatch(line) == Advanced(0)
    assert (await desk.edges(), await desk.group("c")) == (edges, group)
    # Its end was counted a second time: what the members are decides.
    await FlowProjector(desk.store, desk.engine.clock).run_once()
    assert (await desk.counters(), await desk.lines()) == ({"completed": 1}, [])


async def test_s0_36_a_line_is_about_one_end_and_not_about_a_member(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a", outcome="failed")
    (first,) = await desk.lines()
    assert await desk.engine.replay(member("a")) is PublicState.WAITING
    await desk.end("a")
    (second,) = await desk.lines()
    assert (first.execution, first.id != second.id) == (second.execution, True)
    assert isinstance(await desk.dispatcher.dispatch(first), NoOp)
    assert (await desk.edge("a", "b")).state is EdgeState.PENDING
    assert await desk.dispatcher.dispatch(second) == Advanced(1)
    assert await desk.state("b") is State.WAITING


async def test_s0_38_s2_11_a_batch_is_bounded_and_never_everything_below(desk: FlowDesk) -> None:
    names = list(range(1_000, 1_000 + EDGES_LIMIT + 20))
    edges = [Link(member("a"), member(name)) for name in names]
    await desk.draw(plan(["a", *names, "z"], [*edges, Link(member(names[0]), member("z"))]))
    await desk.dispatch()
    await desk.end("a", outcome="failed")
    watched = Watched(desk.store)
    await FlowDesk(watched, desk.clock).dispatch()
    sizes = [len(changes.resolved) for changes in watched.changes]
    assert max(sizes) == EDGES_LIMIT
    assert sum(sizes) == len(names) + 1
    for changes in watched.changes:
        ends = changes.resolved
        assert not {end.upstream for end in ends} & {end.downstream for end in ends}
        locked = [t.id for t in changes.transitions]
        assert len(locked) == len(set(locked)) <= EDGES_LIMIT
    assert await desk.counters() == {"failed": 1, "skipped": len(names) + 1}


async def test_s0_39_every_store_takes_the_same_path_to_the_same_records(
    desk: FlowDesk, clock: VirtualClock
) -> None:
    model = FlowDesk(MemoryStore(clock), clock)
    await model.engine.open()
    found = []
    for each in (desk, model):
        first = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)
        drawn = links("a>x b>x c>x x>y d>y a>e e>f")
        await each.draw(plan("abcdefxy", drawn, policies={"x": first}))
        await each.ended("a")
        await each.ended("d", outcome="failed")
        found.append((await everything(each.store))[:5])
    assert found[0] == found[1]
