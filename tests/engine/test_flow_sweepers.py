"""The nets under flows: each finds what was broken past the store, repairs it, and does nothing
where nothing is wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import CancelPolicy, GroupState, Join, LineKind, OnSatisfied
from flowfabric.core.states import State
from flowfabric.engine import cancel_reconciler
from flowfabric.engine.cancel_reconciler import CancelReconciler
from flowfabric.engine.dependency_reconciler import DependencyReconciler
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.engine.flow_audit import MEMBERS
from flowfabric.engine.flow_projector import FlowProjector
from flowfabric.engine.sweeping import Done, Scope
from flowfabric.store import Store
from flowfabric.store.memory import MemoryStore
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, flow_id, links, member, order, plan
from tests.corrupter import Raw, raw_client
from tests.flow.desk import FlowDesk


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


@pytest.fixture
def raw(store: Store) -> Raw:
    return raw_client(store)


def dependencies(desk: FlowDesk, scope: Scope | None = None) -> DependencyReconciler:
    return DependencyReconciler(desk.store, desk.engine.clock, desk.dispatcher, scope=scope)


def cancels(desk: FlowDesk, scope: Scope | None = None) -> CancelReconciler:
    return CancelReconciler(desk.store, desk.engine.clock, scope=scope)


def projector(desk: FlowDesk) -> FlowProjector:
    return FlowProjector(desk.store, desk.engine.clock)


async def counted(run: Awaitable[Done]) -> tuple[int, int]:
    done = await run
    return done.processed, done.errors


async def lose_lines(desk: FlowDesk, raw: Raw) -> None:
    for line in await desk.lines():
        await raw.remove(line)


async def test_a_lost_line_is_written_again(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("abc", "a>b a>c"))
    await desk.end("a")
    await lose_lines(desk, raw)
    await desk.dispatch()
    assert await desk.states("bc") == dict.fromkeys("bc", "blocked_dependencies")
    assert await counted(dependencies(desk).run_once()) == (1, 0)
    await desk.dispatch()
    assert await desk.states("bc") == dict.fromkeys("bc", "waiting")
    assert await desk.counters() == {"completed": 1}
    assert await counted(dependencies(desk).run_once()) == (0, 0)


async def test_a_line_that_is_only_late_is_not_written_twice(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    before = await desk.lines()
    assert await counted(dependencies(desk).run_once()) == (0, 0)
    assert await desk.lines() == before


async def test_edges_that_a_replay_opened_wait_for_their_upstream(desk: FlowDesk) -> None:
    """Their upstream has ended and has no line; that is as it should be."""
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a", outcome="failed")
    await desk.engine.replay(member("b"))
    await desk.dispatch()
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES
    assert await counted(dependencies(desk).run_once()) == (0, 0)
    await desk.engine.replay(member("a"))
    await desk.ended("a")
    assert await desk.state("b") is State.WAITING


@pytest.mark.parametrize("column", ["succeeded", "failed", "n"])
async def test_a_group_that_does_not_say_what_its_edges_say_is_counted_anew(
    desk: FlowDesk, raw: Raw, column: str
) -> None:
    await desk.draw(plan("abc", "a>c b>c"))
    await desk.ended("a")
    right = await desk.group("c")
    await raw.write(right, column, "7")
    assert await desk.group("c") != right
    assert await counted(dependencies(desk).run_once()) == (1, 0)
    assert await desk.group("c") == right
    await desk.ended("b")
    assert await desk.state("c") is State.WAITING


async def test_a_half_resolved_group_is_decided_and_its_member_moved(
    desk: FlowDesk, raw: Raw
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a")
    group = await desk.group("b")
    await raw.write(group, "state", "pending")
    await raw.write(await desk.group("b"), "succeeded", "0")
    head = await desk.member("b")
    await raw.write(head, "deps_open", "1")
    await raw.write(await desk.member("b"), "state", "blocked_dependencies")
    assert (await desk.group("b")).state is GroupState.PENDING
    assert (await counted(dependencies(desk).run_once()))[0] > 0
    assert (await desk.group("b")).state is GroupState.SATISFIED
    assert await desk.state("b") is State.WAITING


async def test_cancels_of_siblings_that_nobody_has_on_the_list_are_listed_again(
    desk: FlowDesk, raw: Raw
) -> None:
    race = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)
    await desk.draw(plan("abc", "a>c b>c", policies={"c": race}))
    await desk.end("a")
    await desk.die_after_ends()
    (line,) = await desk.lines()
    assert line.kind is LineKind.CANCEL_SIBLINGS
    await raw.remove(line)
    desk.clock.advance(LEASE_MS)
    await desk.dispatch()
    assert await desk.state("b") is State.WAITING
    assert await counted(dependencies(desk).run_once()) == (1, 0)
    assert [each.kind for each in await desk.lines()] == [LineKind.CANCEL_SIBLINGS]
    await desk.dispatch()
    assert await desk.state("b") is State.CANCELLED
    assert await counted(dependencies(desk).run_once()) == (0, 0)


async def test_owed_cancels_are_taken_up_again(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("abc", "a>b"))
    await desk.engine.flows.cancel(FLOW)
    await lose_lines(desk, raw)
    await desk.dispatch()
    assert await desk.state("a") is State.WAITING
    assert await counted(cancels(desk).run_once()) == (1, 0)
    await desk.dispatch()
    assert set((await desk.states("abc")).values()) == {"cancelled"}
    assert await counted(cancels(desk).run_once()) == (0, 0)


async def test_a_cancel_that_is_on_the_list_is_left_to_the_dispatcher(desk: FlowDesk) -> None:
    await desk.draw(plan("a"))
    await desk.engine.flows.cancel(FLOW)
    before = await desk.lines()
    assert await counted(cancels(desk).run_once()) == (0, 0)
    assert await desk.lines() == before


async def test_who_works_when_only_pending_ones_are_cancelled_may_go_on(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    lease = await desk.start("a")
    await desk.engine.flows.cancel(FLOW, CancelPolicy.CANCEL_PENDING)
    await desk.dispatch()
    desk.clock.advance(1)
    assert await counted(cancels(desk).run_once()) == (0, 0)
    assert await desk.states("ab") == {"a": "active", "b": "cancelled"}
    await desk.engine.release(lease)
    assert await counted(cancels(desk).run_once()) == (0, 0)
    assert await desk.states("ab") == {"a": "cancelled", "b": "cancelled"}


async def test_those_that_are_owed_a_cancel_are_found_behind_many_that_may_end(
    desk: FlowDesk, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel_reconciler, "MEMBERS", 2)
    await desk.draw(plan("abcd"))
    for name in "abc":
        await desk.start(name)
    await desk.engine.flows.cancel(FLOW, CancelPolicy.CANCEL_PENDING, wait_ms=1_000)
    await raw.write(await desk.member("d"), "state", "waiting")
    assert await counted(cancels(desk).run_once()) == (1, 0)
    await desk.dispatch()
    assert await desk.state("d") is State.CANCELLED


@pytest.mark.parametrize("column", ["completed", "failed", "total"])
async def test_stale_counters_are_set_right(desk: FlowDesk, raw: Raw, column: str) -> None:
    await desk.draw(plan("abc"))
    await desk.ended("a")
    await projector(desk).run_once()
    right = await desk.flow()
    await raw.write(right, column, "9")
    assert await counted(projector(desk).run_once()) == (1, 0)
    repaired = await desk.flow()
    assert (repaired.completed, repaired.failed, repaired.total) == (1, 0, 3)
    assert await counted(projector(desk).run_once()) == (0, 0)


async def test_a_flow_that_was_not_seen_to_be_settled_is(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("ab"))
    await desk.ended("a", "b")
    settled = await desk.flow()
    await raw.write(settled, "settled", "0")
    assert not (await desk.flow()).settled
    assert await counted(projector(desk).run_once()) == (1, 0)
    again = await desk.flow()
    assert again.settled
    assert again.purge_ms == settled.purge_ms


async def test_counters_are_left_alone_while_ends_are_to_be_counted(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    await desk.end("a")
    await projector(desk).run_once()
    assert (await desk.flow()).completed == 0
    await desk.dispatch()
    assert (await desk.flow()).completed == 1


@pytest.mark.parametrize("make", [dependencies, cancels])
async def test_a_filter_fails_closed(
    desk: FlowDesk,
    raw: Raw,
    make: Callable[[FlowDesk, Scope | None], DependencyReconciler | CancelReconciler],
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    await desk.engine.flows.cancel(FLOW)
    await lose_lines(desk, raw)
    assert await counted(make(desk, Scope(namespace="other")).run_once()) == (0, 0)
    assert await counted(make(desk, Scope(tag=("a.b", "c"))).run_once()) == (0, 0)
    assert (await counted(make(desk, Scope(namespace="default")).run_once()))[0] > 0


async def test_a_large_flow_is_gone_over_a_page_at_a_time(
    clock: VirtualClock,
) -> None:
    desk = FlowDesk(MemoryStore(clock), clock)
    await desk.engine.open()
    small, large = flow_id(1), flow_id(2)
    await desk.draw(plan("a", flow=small))
    count = MEMBERS + 10
    await desk.draw(plan(range(count), flow=large))
    await desk.draw(plan("a", flow=flow_id(3)))
    await desk.dispatch()
    net = dependencies(desk)
    await net.run_once()
    assert large in net.cursor
    await net.run_once()
    assert large not in net.cursor


async def test_a_flow_that_cannot_be_read_is_an_error_and_keeps_no_other_back(
    desk: FlowDesk, raw: Raw
) -> None:
    ids = sorted([flow_id(1), flow_id(2), flow_id(3)])
    for id in ids:
        await desk.draw(plan("ab", "a>b", flow=id))
    await raw.write(await desk.flow(ids[1]), "state", "melted")
    net = projector(desk)
    found = [await counted(net.run_once()) for _ in range(4)]
    assert sum(processed for processed, _ in found) == 2
    assert sum(errors for _, errors in found) >= 1
    for id in (ids[0], ids[2]):
        assert (await desk.flow(id)).summary


async def test_a_member_that_ends_between_two_looks_is_not_told_of_twice(
    clock: VirtualClock,
) -> None:
    """Its line came after the lines were read, and its end before the heads were."""
    desk = FlowDesk(MemoryStore(clock), clock)
    await desk.engine.open()
    await desk.draw(plan("abc", "a>b b>c"))
    await desk.ended("a")
    lease = await desk.start("b")

    async def end() -> None:
        await desk.engine.complete(lease, b"null")
        clock.advance(10)

    slow = FaultyStore(desk.store, [Fault(Verb.GRAPH, 2, Kind.DELAY, hook=end)])
    net = DependencyReconciler(slow, desk.engine.clock, desk.dispatcher)
    assert await counted(net.run_once()) == (0, 0)
    assert len(await desk.lines()) == 1
    await desk.dispatch()
    assert await desk.counters() == {"completed": 2}


async def test_a_member_that_is_about_to_be_skipped_needs_no_repair(clock: VirtualClock) -> None:
    desk = FlowDesk(MemoryStore(clock), clock)
    await desk.engine.open()
    await desk.draw(plan("a"))
    await desk.ended("a", outcome="failed")
    await desk.engine.flows.build.add(FLOW, Addition(orders=[order("b")], links=links("a>b")))
    assert await counted(dependencies(desk).run_once()) == (0, 0)
    await desk.dispatch()
    assert await desk.state("b") is State.SKIPPED
