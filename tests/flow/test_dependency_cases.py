"""Old ends that nobody dispatched, what a member waits for, and ends in a process of their own."""

from __future__ import annotations

import asyncio

import asyncpg
import msgspec
import pytest

from flowfabric.core.flow.eligibility import Standing
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import Join, OnSatisfied, Unreadable
from flowfabric.core.flow.views import Pending, Turn
from flowfabric.core.ids import flow_partition, partition_of
from flowfabric.engine.dependency_reconciler import DependencyReconciler, Swept
from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.engine.janitor import Janitor, Shed
from flowfabric.engine.sibling_reconciler import FLOWS, SiblingReconciler
from flowfabric.engine.sweeping import Scope
from flowfabric.engine.telemetry import Telemetry
from flowfabric.store import Store
from flowfabric.store.hints import Hint
from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import COUNTS, FLOW, chain, flow_id, member, plan
from tests.flow.desk import FlowDesk


class Noting(FaultyStore):
    """A store that remembers which turns were asked for."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.turns: list[Turn] = []

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        self.turns.append(turn)
        return await super().pending(turn)


def reconciler(desk: FlowDesk, namespace: str | None = None) -> DependencyReconciler:
    return DependencyReconciler(
        desk.store, desk.engine.clock, desk.dispatcher, scope=Scope(namespace)
    )


@pytest.mark.case("FL-086")
async def test_an_old_end_is_dispatched_by_the_net(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    net = reconciler(desk)
    desk.clock.advance(999)
    assert await net.run_once() == Swept(0, 0, 0)
    assert await desk.state("b") == "blocked_dependencies"
    desk.clock.advance(1)
    assert await net.run_once() == Swept(scanned=1, processed=1, errors=0)
    assert await desk.state("b") == "waiting"
    assert await desk.lines() == []
    assert await net.run_once() == Swept(0, 0, 0)


@pytest.mark.case("FL-089")
async def test_the_net_of_a_namespace_leaves_all_others_alone(desk: FlowDesk) -> None:
    other = flow_id(2)
    await desk.draw(plan("ab", "a>b"))
    await desk.draw(msgspec.structs.replace(plan("ab", "a>b", flow=other), namespace="elsewhere"))
    await desk.end("a")
    await desk.end("a", flow=other)
    desk.clock.advance(5_000)
    assert await reconciler(desk, "default").run_once() == Swept(1, 1, 0)
    assert (await desk.state("b"), await desk.state("b", other)) == (
        "waiting",
        "blocked_dependencies",
    )
    assert len(await desk.lines(other)) == 1
    assert await reconciler(desk, "").run_once() == Swept(0, 0, 0)


async def test_the_net_leaves_a_flow_to_who_works_on_it(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    desk.clock.advance(5_000)
    now_ms = desk.clock.now_ms()
    await desk.store.pending(Turn(limit=1, now_ms=now_ms, until_ms=now_ms + 5_000))
    assert await reconciler(desk).run_once() == Swept(0, 0, 0)
    assert len(await desk.lines()) == 1


@pytest.mark.parametrize("store_kind", ["memory"])
@pytest.mark.parametrize("verb", [Verb.PENDING, Verb.GRAPH])
async def test_trouble_of_the_net_is_counted_and_left_for_the_next_cycle(
    desk: FlowDesk, verb: Verb
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    desk.clock.advance(5_000)
    faulty = FaultyStore(desk.store, [Fault(verb, 1, Kind.BEFORE, times=3)])
    clock = desk.engine.clock
    net = DependencyReconciler(faulty, clock, Dispatcher(faulty, clock))
    assert (await net.run_once()).errors == 1
    desk.clock.advance(5_000)
    assert (await reconciler(desk).run_once()).processed == 1


@pytest.mark.case("FL-067")
async def test_cadences_are_in_one_table_and_cycles_go_on_where_the_last_ended(
    desk: FlowDesk,
) -> None:
    janitor = Janitor(Shed(desk.store, desk.engine.clock, Telemetry()))
    seconds = {sweeper.name: sweeper.interval_seconds for sweeper in janitor.sweepers}
    assert seconds["edge_cancel_reconciler"] == 10
    # Siblings are cancelled by the dispatch that decides, with this net under it.
    assert desk.dispatcher.loop.every_seconds == 5
    assert FLOWS == 50
    noting = Noting(desk.store)
    for number in (1, 2):
        await desk.draw(plan("ab", "a>b", flow=flow_id(number)))
        await desk.end("a", flow=flow_id(number))
    cycle = SiblingReconciler(noting, desk.engine.clock)
    await cycle.run_once()
    await cycle.run_once()
    assert [(turn.limit, turn.after) for turn in noting.turns] == [
        (50, ""),
        (50, max(flow_id(1), flow_id(2))),
    ]


LOCKED = """SELECT DISTINCT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
    WHERE c.relnamespace = $1::regnamespace AND l.mode <> 'AccessShareLock'"""


async def locked_tables(store: Store) -> list[str]:
    """Tables in which somebody holds rows on a Postgres server; other stores hold none."""
    if not isinstance(store, PostgresStore):
        return []
    raw = await asyncpg.connect(store.address.dsn)
    try:
        return [str(row[0]) for row in await raw.fetch(LOCKED, store.address.schema)]
    finally:
        await raw.close()


@pytest.mark.case("FL-080")
async def test_many_hops_leave_no_flow_taken(desk: FlowDesk) -> None:
    """Each hop is one commit that also gives the flow back: nothing is held from hop to hop."""
    pairs = [(number, number + 1) for number in range(1_000, 1_100, 2)]
    links = [link for pair in pairs for link in chain(pair)]
    await desk.draw(plan([name for pair in pairs for name in pair], links))
    for hop, (up, _) in enumerate(pairs):
        await desk.ended(up)
        if hop % 10 == 0:
            assert (await desk.flow()).busy_until_ms == 0
            assert await locked_tables(desk.store) == []
    picture = await desk.engine.flows.picture(FLOW)
    assert {str(row.state) for row in picture.members} == {"completed", "waiting"}
    assert (picture.flow.completed, picture.flow.busy_until_ms) == (50, 0)


@pytest.mark.case("FL-084")
async def test_an_end_is_dispatched_without_being_asked_for(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    listening = Dispatcher(desk.store, desk.engine.clock)
    released = asyncio.Event()

    def hear(hint: Hint) -> None:
        if hint.ready:
            released.set()

    desk.store.hints.subscribe(listening.hear)
    running = asyncio.create_task(listening.loop.run())
    try:
        lease = await desk.start("a")
        desk.store.hints.subscribe(hear)
        await desk.engine.complete(lease, b"1")
        async with asyncio.timeout(5):
            await released.wait()
    finally:
        desk.store.hints.unsubscribe(listening.hear)
        desk.store.hints.unsubscribe(hear)
        listening.loop.stop()
        await running
    assert await desk.state("b") == "waiting"


@pytest.mark.case("FL-090")
async def test_whether_an_execution_may_run(desk: FlowDesk) -> None:
    of = desk.engine.read.eligibility
    solo = await desk.submit()
    assert await of(solo) is Standing.ELIGIBLE
    assert await of(member("x")) is Standing.NOT_FOUND
    lease = await desk.take(solo, start=False)
    assert await of(solo) is Standing.OWNED
    lease = await desk.engine.start(lease)
    assert await of(solo) is Standing.NOT_RUNNABLE
    await desk.engine.complete(lease, b"1")
    assert await of(solo) is Standing.TERMINAL


@pytest.mark.case("FL-091")
async def test_what_a_member_waits_for_and_whether_it_can_come(desk: FlowDesk) -> None:
    await desk.draw(plan("abx", "a>x b>x"))
    of, explain = desk.engine.read.eligibility, desk.engine.read.explain
    assert await of(member("a")) is Standing.ELIGIBLE
    told = await explain(member("x"))
    assert (told.eligibility, set(told.waits_for)) == (
        Standing.BLOCKED,
        {member("a"), member("b")},
    )
    assert told.sentence == "waiting for 2 of the 2 executions it depends on"
    await desk.ended("a")
    told = await explain(member("x"))
    assert (told.eligibility, told.waits_for) == (Standing.BLOCKED, (member("b"),))
    await desk.end("b", outcome="failed")
    told = await explain(member("x"))
    assert (told.eligibility, told.wakes) == (Standing.IMPOSSIBLE, "dependencies")
    assert await of(member("x")) is Standing.IMPOSSIBLE
    await desk.dispatch()
    assert await of(member("x")) is Standing.TERMINAL


async def test_a_quorum_that_is_reached_is_no_longer_waited_for(desk: FlowDesk) -> None:
    two = Policy(Join.QUORUM, 2, OnSatisfied.LET_RUN)
    await desk.draw(plan("abcx", "a>x b>x c>x", policies={"x": two}))
    await desk.end("a", "b")
    assert await desk.engine.read.eligibility(member("x")) is Standing.ELIGIBLE
    told = await desk.engine.read.explain(member("x"))
    assert "about to be released" in told.sentence
    await desk.dispatch()
    assert await desk.engine.read.eligibility(member("x")) is Standing.ELIGIBLE


@pytest.mark.case("FL-092")
async def test_a_flow_and_all_it_owns_are_in_one_scope(desk: FlowDesk) -> None:
    first = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)
    await desk.draw(plan("abx", "a>x b>x", policies={"x": first}))
    await desk.ended("a")
    await desk.engine.flows.cancel(FLOW)
    here = flow_partition(FLOW, COUNTS)
    view = await desk.view()
    ids = [*await desk.engine.flows.members(FLOW), *(edge.upstream for edge in view.edges)]
    ids += [edge.downstream for edge in view.edges]
    assert len(ids) == 3 + 4
    assert {partition_of(id) for id in ids} == {here}
    assert {line.flow for line in view.lines} == {edge.flow for edge in view.edges} == {FLOW}
