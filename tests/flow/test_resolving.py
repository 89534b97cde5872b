"""Ends of members and those that wait for them: all_of, skips, counters, repeating."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.dispatch import Advanced, NoOp, on_ends
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import EdgeState, GroupState, Join, Unreadable
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import Sight
from flowfabric.core.states import State
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, chain, links, member, plan
from tests.flow.desk import FlowDesk


@pytest.mark.case("FL-020")
async def test_a_chain_is_released_step_by_step(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.ended("a")
    assert await desk.states("abc") == {
        "a": "completed",
        "b": "waiting",
        "c": "blocked_dependencies",
    }
    assert (await desk.edge("a", "b")).state is EdgeState.SATISFIED
    assert [lease.id for lease in await desk.claim(10)] == [member("b")]


@pytest.mark.case("FL-021")
async def test_a_fan_out_is_released_at_once(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b a>c"))
    await desk.ended("a")
    assert {lease.id for lease in await desk.claim(10)} == {member("b"), member("c")}


@pytest.mark.case("FL-022")
async def test_a_join_waits_for_all(desk: FlowDesk) -> None:
    await desk.draw(plan("abcd", "a>b a>c b>d c>d"))
    await desk.ended("a")
    await desk.ended("b")
    running = await desk.start("c")
    desk.clock.advance(1_000)
    await desk.dispatch()
    assert await desk.state("d") is State.BLOCKED_DEPENDENCIES
    assert await desk.claim(10) == []
    await desk.engine.complete(running, b"1")
    await desk.dispatch()
    assert [lease.id for lease in await desk.claim(10)] == [member("d")]


@pytest.mark.case("FL-023")
async def test_a_failed_branch_skips_the_join(desk: FlowDesk) -> None:
    await desk.draw(plan("abcd", "a>b a>c b>d c>d"))
    await desk.ended("a")
    await desk.ended("b", outcome="failed")
    await desk.ended("c")
    snapshot = await desk.snapshot(member("d"))
    assert (snapshot.vector.outcome, snapshot.public_state) == ("skipped", "skipped")
    assert snapshot.vector.phase == "terminal"
    assert snapshot.total_attempt_count == 0
    assert await desk.counters() == {"completed": 2, "failed": 1, "skipped": 1}


@pytest.mark.case("FL-024")
async def test_what_cannot_happen_any_more_is_skipped(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.ended("a")
    await desk.ended("b", outcome="failed")
    assert (await desk.edge("b", "c")).state is EdgeState.IMPOSSIBLE
    assert await desk.vector(member("c")) == (
        "terminal/unowned/not_applicable/none/skipped/none/skipped"
    )


@pytest.mark.case("FL-033", "FL-034")
@pytest.mark.parametrize("is_set", [True, False])
async def test_all_of_is_the_default_and_counts(desk: FlowDesk, *, is_set: bool) -> None:
    await desk.draw(plan("abcd"))
    build = desk.engine.flows.build
    if is_set:
        assert await build.set_policy(FLOW, member("d"), Policy(Join.ALL_OF))
    for link in links("a>d b>d c>d"):
        await build.link(FLOW, link)
    await build.seal(FLOW, member("d"))
    for name, succeeded in (("a", 1), ("b", 2)):
        await desk.ended(name)
        group = await desk.group("d")
        assert (group.n, group.succeeded, group.state) == (3, succeeded, GroupState.PENDING)
        assert await desk.state("d") is State.BLOCKED_DEPENDENCIES
    await desk.ended("c")
    group = await desk.group("d")
    assert (group.n, group.succeeded, group.state) == (3, 3, GroupState.SATISFIED)
    assert await desk.state("d") is State.WAITING


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_a_chain_below_a_failure_is_skipped_to_its_end(desk: FlowDesk, outcome: str) -> None:
    names = ["a", *range(1_000, 1_101)]
    await desk.draw(plan(names, chain(names)))
    await desk.ended("a", outcome=outcome)
    states = {await desk.state(name) for name in names[1:]}
    assert states == {State.SKIPPED}
    assert await desk.counters() == {outcome: 1, "skipped": 101}
    assert await desk.lines() == []


@pytest.mark.case("FL-076")
async def test_a_line_advances_once_and_is_then_a_no_op(desk: FlowDesk) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    await desk.ended("a")
    assert await desk.state("c") is State.BLOCKED_DEPENDENCIES
    await desk.end("b")
    (line,) = await desk.lines()
    assert await desk.dispatcher.dispatch(line) == Advanced(1)
    assert await desk.state("c") is State.WAITING
    assert await desk.lines() == []
    before = await desk.flow()
    assert isinstance(await desk.dispatcher.dispatch(line), NoOp)
    assert await desk.flow() == before


async def test_counters_and_lines_after_a_whole_flow(desk: FlowDesk) -> None:
    await desk.draw(plan("abcd", "a>b a>c b>d c>d"))
    for name in "abcd":
        await desk.ended(name)
    flow = await desk.flow()
    assert (flow.total, flow.completed, flow.ended, flow.busy_until_ms) == (4, 4, 4, 0)
    assert await desk.lines() == []
    assert flow.id == FLOW


async def test_edges_that_cannot_be_read_count_as_looked_at(clock: VirtualClock) -> None:
    """A look that ended early because of them is not taken for a look at everything."""
    desk = FlowDesk(MemoryStore(clock), clock)
    await desk.draw(plan("abcdef", "a>c a>d b>e b>f"))
    await desk.end("a", "b")
    ids = [member("a"), member("b")]
    view = (await desk.store.graph([Sight(flow=FLOW, heads=ids, leaving=ids, lines=True)]))[0]
    lost = Unreadable("edge", f"{member('a')} {member('d')} start", "melted")
    readable = [edge for edge in view.edges if edge.downstream in (member("c"), member("e"))]
    view = msgspec.structs.replace(view, edges=readable, unreadable=[lost])
    work = Round(await desk.flow(), clock.now_ms())
    ends = on_ends(work, view.lines, view, limit=3)
    assert [answer.goes_on for answer in ends.answers] == [False, True]
    assert [line.execution for line in work.lines] == [member("a")]
    assert work.done == []
