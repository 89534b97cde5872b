"""Whatever is wrong with one flow or one execution, every other one goes on: planted failures in
each loop and each duty, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from flowfabric.core.flow import dispatch
from flowfabric.core.flow.graph import Drawn, Plan, draw
from flowfabric.core.flow.model import CancelPolicy, LineKind
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import FlowId
from flowfabric.core.timers import POISON_LIMIT, POISON_PAUSE_MAX_MS
from flowfabric.engine import flows, index_reconciler, rounds
from flowfabric.engine.cancel_reconciler import CancelReconciler
from flowfabric.engine.dependency_reconciler import STALE_MS, DependencyReconciler
from flowfabric.engine.flow_projector import FlowProjector
from flowfabric.engine.index_reconciler import IndexReconciler
from flowfabric.engine.outcomes import Completed
from flowfabric.engine.retention_trimmer import PUT_OFF_MS, RetentionTrimmer
from flowfabric.engine.sibling_reconciler import SiblingReconciler
from flowfabric.engine.sweeping import Done
from flowfabric.store import Store
from flowfabric.testing import Verb
from flowfabric.testing.build import TTL_MS, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import flow_id, member, plan
from tests.corrupter import Raw, raw_client
from tests.flow.allergic import Allergic
from tests.flow.desk import FlowDesk
from tests.flow.watched import told

GOOD = [flow_id(number) for number in (1, 3, 4, 5)]
BAD = flow_id(2)
EVERYBODY = sorted([*GOOD, BAD])


@pytest.fixture
async def desk(store: Store, clock: VirtualClock) -> FlowDesk:
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


@pytest.fixture
def raw(store: Store) -> Raw:
    return raw_client(store)


async def sick(desk: FlowDesk, *verbs: Verb, doomed: str = BAD) -> FlowDesk:
    """An engine whose store fails for one record."""
    sick = FlowDesk(Allergic(desk.store, doomed, verbs), desk.clock)
    sick._tokens = desk._tokens
    await sick.engine.open()
    return sick


def chain(flow: FlowId) -> Plan:
    return plan("abc", "a>b b>c", flow=flow)


async def states(desk: FlowDesk, name: str, flows: list[FlowId]) -> set[str]:
    return {str(await desk.state(name, flow)) for flow in flows}


# -- the dispatcher -----------------------------------------------------------------------------


def melt_on_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision about one flow fails, as none should."""
    usual = dispatch.on_ends

    def on_ends(work: Round, *rest: object) -> object:
        if work.flow.id == BAD:
            raise ValueError("melted")
        return usual(work, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(rounds, "on_ends", on_ends)


TROUBLE = ("decision", Verb.COMMIT_EACH, Verb.GRAPH)


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("is_hinted", [True, False])
async def test_a_flow_that_cannot_be_dispatched_keeps_no_other_back(
    desk: FlowDesk,
    trouble: str,
    is_hinted: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for flow in EVERYBODY:
        await desk.draw(chain(flow))
    if trouble == "decision":
        melt_on_ends(monkeypatch)
    ill = await sick(desk, *([Verb(trouble)] if trouble != "decision" else []))
    worker = ill if is_hinted else desk
    for flow in EVERYBODY:
        await worker.end("a", flow=flow)
    await ill.dispatch()
    assert await states(desk, "b", GOOD) == {"waiting"}
    bad = await desk.flow(BAD)
    assert (bad.failures, bad.parked, bad.busy_until_ms) == (1, "", 0)
    assert bad.next_try_ms > desk.clock.now_ms()
    about = [each for each in caplog.records if getattr(each, "flow", "") == BAD]
    assert {each.exc_info is not None for each in about} == {True}
    assert "ValueError" in {getattr(each, "error", "") for each in about}
    for flow in GOOD:
        await worker.end("b", flow=flow)
    await ill.dispatch()
    assert await states(desk, "c", GOOD) == {"waiting"}
    for _ in range(POISON_LIMIT):
        desk.clock.advance(POISON_PAUSE_MAX_MS)
        await ill.dispatch()
    bad = await desk.flow(BAD)
    assert (bad.failures, "melted" in bad.parked) == (POISON_LIMIT, True)
    assert await desk.state("b", BAD) == "blocked_dependencies"


async def test_a_group_that_says_three_and_a_half_keeps_no_other_flow_back(
    desk: FlowDesk, raw: Raw, store_kind: str
) -> None:
    """What an earlier version let pass may still be stored."""
    for flow in EVERYBODY:
        await desk.draw(chain(flow))
        await desk.end("a", flow=flow)
    if store_kind != "postgres":
        await raw.write(await desk.group("b", BAD), "k", "3.5")
    else:
        await raw.write(await desk.edge("a", "b", BAD), "kind", "melted")
    await desk.dispatch()
    assert await states(desk, "b", GOOD) == {"waiting"}
    assert await desk.state("b", BAD) == "blocked_dependencies"


# -- what is known here -------------------------------------------------------------------------


async def test_ends_of_one_flow_that_cannot_be_followed_spoil_no_other(
    desk: FlowDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.engine.known.begin()
    for flow in EVERYBODY:
        await desk.draw(chain(flow))
    leases = [await desk.start("a", flow) for flow in EVERYBODY]
    melt_on_ends(monkeypatch)
    answers = await desk.engine.finish([Completed(lease, b"1") for lease in leases])
    assert [answer.error for answer in answers] == [None] * len(EVERYBODY)
    await desk.dispatch()
    assert await states(desk, "b", GOOD) == {"waiting"}
    assert (await desk.flow(BAD)).failures == 1


async def test_a_flow_that_cannot_be_learned_keeps_no_other_from_it(desk: FlowDesk) -> None:
    for flow in EVERYBODY:
        await desk.draw(chain(flow))
    ill = await sick(desk, Verb.GRAPH)
    ill.engine.known.begin()
    found = [await desk.flow(flow) for flow in EVERYBODY]
    ill.engine.flows.learning.begin(found)
    await ill.engine.flows.learning.wait(EVERYBODY)
    known = [flow for flow in EVERYBODY if ill.engine.known.knows(flow)]
    assert known == GOOD
    assert not ill.engine.known.is_wanted(BAD)


# -- submits and leases -------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["draw", Verb.COMMIT_EACH])
async def test_a_plan_that_cannot_be_written_spoils_no_other(
    desk: FlowDesk, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def melted(plan: Plan, *rest: object, **named: object) -> Drawn:
        if plan.id == BAD:
            raise ValueError("melted")
        return draw(plan, *rest, **named)  # type: ignore[arg-type]

    ill = await sick(desk, *([Verb(trouble)] if trouble != "draw" else []))
    if trouble == "draw":
        monkeypatch.setattr(flows, "draw", melted)
    submits = [ill.engine.flows.submit(chain(flow)) for flow in EVERYBODY]
    answers = await asyncio.gather(*submits, return_exceptions=True)
    for flow, answer in zip(EVERYBODY, answers, strict=True):
        if flow == BAD:
            assert isinstance(answer, ValueError)
        else:
            assert not isinstance(answer, BaseException)
            assert answer.created


async def test_a_lease_that_cannot_be_renewed_costs_no_other(desk: FlowDesk) -> None:
    await desk.engine.submit([order(number) for number in range(5)])
    leases = await desk.claim(5)
    ill = await sick(desk, Verb.APPLY, doomed=leases[2].id)
    desk.clock.advance(1_000)
    answers = await ill.engine.renew(leases, TTL_MS)
    assert [answer.lease.id for answer in answers] == [lease.id for lease in leases]
    assert [answer.error is None for answer in answers] == [True, True, False, True, True]


# -- timers -------------------------------------------------------------------------------------


async def test_a_timer_that_cannot_be_written_keeps_no_other_back(desk: FlowDesk) -> None:
    soon = desk.clock.now_ms() + 10
    ids = [await desk.submit(order(number, delay_until_ms=soon)) for number in range(5)]
    ill = await sick(desk, Verb.APPLY, doomed=ids[2])
    desk.clock.advance(20)
    sweep = await ill.timekeeper.run_once()
    assert (sweep.processed, sweep.errors, sweep.again) == (4, 1, False)
    heads = [await desk.head(id) for id in ids]
    assert [str(head.state) for head in heads] == [
        *("waiting", "waiting", "delayed", "waiting", "waiting")
    ]
    assert (heads[2].failures, heads[2].due_ms is not None) == (1, True)
    for _ in range(POISON_LIMIT):
        desk.clock.advance(POISON_PAUSE_MAX_MS)
        await ill.timekeeper.run_once()
    parked = await desk.head(ids[2])
    assert (parked.failures, parked.due_ms, "melted" in parked.parked) == (POISON_LIMIT, None, True)


# -- sweepers -----------------------------------------------------------------------------------


async def done_by(run: Awaitable[Done]) -> tuple[int, int]:
    done = await run
    return done.processed, done.errors


@pytest.mark.parametrize("verb", [Verb.GRAPH, Verb.COMMIT])
async def test_the_projector_goes_on_past_a_flow_that_it_cannot_sum_up(
    desk: FlowDesk, verb: Verb
) -> None:
    for flow in EVERYBODY:
        await desk.draw(chain(flow))
    ill = await sick(desk, verb)
    assert await done_by(FlowProjector(ill.store, ill.engine.clock).run_once()) == (4, 1)


@pytest.mark.parametrize("verb", [Verb.GRAPH, Verb.COMMIT])
async def test_the_cancel_reconciler_goes_on_past_a_flow_that_it_cannot_take_up(
    desk: FlowDesk, raw: Raw, verb: Verb
) -> None:
    for flow in EVERYBODY:
        await desk.draw(chain(flow))
        await desk.engine.flows.cancel(flow, CancelPolicy.CANCEL_ALL)
        for line in await desk.lines(flow):
            await raw.remove(line)
    ill = await sick(desk, verb)
    assert await done_by(CancelReconciler(ill.store, ill.engine.clock).run_once()) == (4, 1)


@pytest.mark.parametrize("verb", [Verb.GRAPH, Verb.COMMIT_EACH])
async def test_the_dependency_reconciler_goes_on_past_a_flow_that_it_cannot_repair(
    desk: FlowDesk, raw: Raw, verb: Verb
) -> None:
    for flow in EVERYBODY:
        await desk.draw(chain(flow))
        await desk.end("a", flow=flow)
        for line in await desk.lines(flow):
            await raw.remove(line)
    ill = await sick(desk, verb)
    reconciler = DependencyReconciler(ill.store, ill.engine.clock, ill.dispatcher)
    assert await done_by(reconciler.run_once()) == (4, 1)
    await desk.dispatch()
    assert await states(desk, "b", GOOD) == {"waiting"}


async def test_old_ends_of_a_flow_that_cannot_be_dispatched_keep_no_other_back(
    desk: FlowDesk,
) -> None:
    for flow in EVERYBODY:
        await desk.draw(chain(flow))
        await desk.end("a", flow=flow)
    desk.clock.advance(STALE_MS)
    ill = await sick(desk, Verb.COMMIT_EACH)
    reconciler = DependencyReconciler(ill.store, ill.engine.clock, ill.dispatcher)
    processed, errors = await done_by(reconciler.run_once())
    assert (processed, errors >= 1) == (4, True)
    assert await states(desk, "b", GOOD) == {"waiting"}


async def test_the_sibling_reconciler_goes_on_past_a_group_that_it_cannot_see(
    desk: FlowDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def reconcile(self: object, flow: object, line: object) -> None:
        seen.append(getattr(flow, "id"))  # noqa: B009
        if seen[-1] == BAD:
            raise ValueError("melted")

    for flow in EVERYBODY:
        await desk.draw(chain(flow))
        found = await desk.flow(flow)
        owed = Round(found, desk.clock.now_ms())
        owed.owe(LineKind.CANCEL_SIBLINGS, member("c", flow), "start")
        assert await desk.store.commit(owed.changeset(), desk.clock.now_ms())
    monkeypatch.setattr(SiblingReconciler, "_reconcile", reconcile)
    reconciler = SiblingReconciler(desk.store, desk.engine.clock)
    assert (await done_by(reconciler.run_once()))[1] == len(EVERYBODY)
    assert sorted(seen) == EVERYBODY


LATE = "9999999999999"


@pytest.mark.parametrize("trouble", ["decision", Verb.APPLY])
async def test_the_index_reconciler_goes_on_past_an_execution(
    desk: FlowDesk, raw: Raw, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = desk.clock.now_ms() + 10
    ids = [await desk.submit(order(number, delay_until_ms=soon)) for number in range(5)]
    for id in ids:
        await raw.write(await desk.head(id), "due_ms", LATE)
    ill = await sick(desk, *([Verb(trouble)] if trouble != "decision" else []), doomed=ids[2])
    if trouble == "decision":
        _melt(monkeypatch, "repair", ids[2])
    assert await done_by(IndexReconciler(ill.store, ill.engine.clock).run_once()) == (4, 1)
    due = [(await desk.head(id)).due_ms for id in ids]
    assert [instant == soon for instant in due] == [True, True, False, True, True]


@pytest.mark.parametrize("trouble", ["decision", Verb.COMMIT_EACH])
async def test_the_index_reconciler_goes_on_past_a_flow(
    desk: FlowDesk,
    raw: Raw,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    soon = desk.clock.now_ms() + 5_000
    for flow in EVERYBODY:
        await desk.draw(plan("ab", "a>b", flow=flow, deadline_ms=soon))
        await raw.write(await desk.flow(flow), "due_ms", LATE)
    ill = await sick(desk, *([Verb(trouble)] if trouble != "decision" else []))
    if trouble == "decision":
        _melt(monkeypatch, "repair_flow", BAD)
    assert await done_by(IndexReconciler(ill.store, ill.engine.clock).run_once()) == (4, 1)
    assert {(await desk.flow(flow)).due_ms for flow in GOOD} == {soon}
    named = "record" if trouble == "decision" else "flow"
    assert [each[named] for each in told(caplog, named, "error")] == [BAD]


def _melt(monkeypatch: pytest.MonkeyPatch, name: str, doomed: str) -> None:
    usual = getattr(index_reconciler, name)

    def melting(record: Store, now_ms: int) -> object:
        if getattr(record, "id", "") == doomed:
            raise ValueError("melted")
        return usual(record, now_ms)

    monkeypatch.setattr(index_reconciler, name, melting)


async def test_the_trimmer_goes_on_past_a_flow_that_it_cannot_remove_and_puts_it_off(
    desk: FlowDesk,
) -> None:
    for flow in EVERYBODY:
        await desk.draw(plan("a", flow=flow))
        await desk.ended("a", flow=flow)
    desk.clock.advance(10 * 86_400_000)
    ill = await sick(desk, Verb.PURGE)
    done = await RetentionTrimmer(ill.store, ill.engine.clock).run_once()
    assert (done.processed, done.errors) == (2 * len(GOOD), 1)
    views = await desk.store.graph([Sight(flow=flow) for flow in EVERYBODY])
    left = [view.flow for view in views if view.flow is not None]
    assert [flow.id for flow in left] == [BAD]
    assert left[0].purge_ms == desk.clock.now_ms() + PUT_OFF_MS
    desk.clock.advance(PUT_OFF_MS)
    healthy = RetentionTrimmer(desk.store, desk.engine.clock)
    assert await done_by(healthy.run_once()) == (2, 0)


async def test_a_trimmer_that_fails_for_one_execution_removes_the_others(desk: FlowDesk) -> None:
    ids = [await desk.submit(order(number)) for number in range(4)]
    for id in ids:
        await desk.engine.cancel(id, "enough")
    desk.clock.advance(10 * 86_400_000)
    ill = await sick(desk, Verb.PURGE, doomed=ids[2])
    assert await done_by(RetentionTrimmer(ill.store, ill.engine.clock).run_once()) == (3, 1)
    left = await desk.head(ids[2])
    assert left.purge_ms == desk.clock.now_ms() + PUT_OFF_MS
