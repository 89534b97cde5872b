"""Big submits that are interrupted: whoever repeats one goes on, and all end with the same flow."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec
import pytest

from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import EdgeKind, FlowState, Join
from flowfabric.core.flow.views import Sight
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.policy import RetentionPolicy
from flowfabric.engine import flow_staging
from flowfabric.engine.flow_staging import UNOPENED_MS
from flowfabric.engine.flows import Picture
from flowfabric.engine.retention_trimmer import RetentionTrimmer
from flowfabric.errors import FlowNotFound, IdempotencyConflict, InvalidInput
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flow_invariants import broken_flow
from flowfabric.testing.flows import NAME_BITS, flow_id, member, plan
from tests.flow.desk import FlowDesk
from tests.flow.dying import Died, Mortal

SMALL = 40
WIDTH = 90
ROOT, JOIN = 1, 2


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of a few records, so that a graph of many portions is quick."""
    monkeypatch.setattr(flow_staging, "SMALL", SMALL)
    monkeypatch.setattr("flowfabric.engine.flows.SMALL", SMALL)


def big(flow: FlowId, *, digest: str = "same") -> Plan:
    """One that frees many, of which two are enough for one."""
    many = range(100, 100 + WIDTH)
    edges = [Link(member(ROOT, flow), member(each, flow)) for each in many]
    edges += [
        Link(member(each, flow), member(JOIN, flow), EdgeKind.COMPLETION, argument=f"n/{each}")
        for each in many
    ]
    policies = {JOIN: Policy(Join.QUORUM, 2)}
    drawn = plan([ROOT, *many, JOIN], edges, flow=flow, policies=policies)
    retention = RetentionPolicy(completed_ms=9)
    return msgspec.structs.replace(drawn, digest=digest, retention=retention)


# The flow, members, groups and edges in portions, and the opening.
STEPS = 1 + 3 + 3 + 5 + 1


class Shape(NamedTuple):
    """All that a submit makes, whoever makes it and when."""

    members: object
    edges: object
    groups: object
    flow: object


def shape(seen: Picture) -> Shape:
    flow = seen.flow
    return Shape(
        [(_name(row.id), row.state, row.flow == flow.id, row.kind) for row in seen.members],
        sorted(
            (_name(e.upstream), _name(e.downstream), e.group, e.kind, e.position, e.argument)
            for e in seen.edges
        ),
        sorted((_name(g.downstream), g.name, g.join, g.k, g.n, g.sealed) for g in seen.groups),
        (flow.total, flow.edges, flow.graph_revision, flow.is_open, flow.digest, flow.purge_ms),
    )


def _name(id: ExecutionId) -> str:
    """What members of one name in two flows have in common."""
    return id[-NAME_BITS // 4 :]


async def other(desk: FlowDesk, store: object = None) -> FlowDesk:
    """Another process."""
    desk = FlowDesk(desk.store if store is None else store, desk.clock)  # type: ignore[arg-type]
    await desk.engine.open()
    return desk


async def killed(desk: FlowDesk, wanted: Plan, at: int, kind: Kind) -> Mortal:
    """A process dies at one of the writes of a submit."""
    mortal = Mortal(desk.store, at, kind)
    mine = await other(desk, mortal)
    with pytest.raises(Died):
        await mine.engine.flows.submit(wanted)
    return mortal


async def runs_to_its_end(desk: FlowDesk, flow: FlowId) -> None:
    await desk.dispatch()
    await desk.ended(ROOT, flow=flow)
    await desk.ended(100, 101, flow=flow)
    assert await desk.state(JOIN, flow) == "waiting"
    assert broken_flow(await desk.whole(flow)) == []


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_a_submit_that_died_at_any_portion_is_gone_on_with(
    desk: FlowDesk, kind: Kind
) -> None:
    whole = big(flow_id(1))
    mortal = Mortal(desk.store)
    assert (await (await other(desk, mortal)).engine.flows.submit(whole)).created
    assert len(mortal.writes) == STEPS
    wanted = shape(await desk.engine.flows.picture(whole.id))
    for at in range(1, STEPS + 1):
        again = big(flow_id(at + 1))
        await killed(desk, again, at, kind)
        desk.clock.advance(at)
        rest = Mortal(desk.store)
        made = await (await other(desk, rest)).engine.flows.submit(again)
        is_written = kind is Kind.AFTER
        assert made.created is not (is_written and at == STEPS)
        # Nothing that is there is written again, but for the flow that is looked for by making it.
        assert len(rest.writes) == max(STEPS - at + (not is_written), 0) + (at > 1 or is_written)
        seen = await desk.engine.flows.picture(again.id)
        assert shape(seen) == wanted
        assert not (await desk.engine.flows.submit(again)).created
    await runs_to_its_end(desk, flow_id(3))


async def test_nothing_of_it_is_seen_before_it_is_open(desk: FlowDesk) -> None:
    wanted = big(flow_id(1))
    await killed(desk, wanted, STEPS, Kind.BEFORE)
    with pytest.raises(FlowNotFound):
        await desk.flow(wanted.id)
    assert await desk.claim(5) == []
    await desk.engine.flows.submit(wanted)
    flow = await desk.flow(wanted.id)
    assert (flow.state, flow.graph_revision) == (FlowState.OPEN, flow.total + flow.edges)
    await runs_to_its_end(desk, wanted.id)


async def test_two_who_submit_at_once_both_end_well(desk: FlowDesk) -> None:
    for number in range(1, 4):
        wanted = big(flow_id(number))
        rivals = [await other(desk) for _ in range(3)]
        made = await asyncio.gather(*(each.engine.flows.submit(wanted) for each in rivals))
        assert {each.id for each in made} == {wanted.id}
        assert sum(each.created for each in made) == 1
        await runs_to_its_end(desk, wanted.id)


async def test_one_who_comes_back_to_life_and_one_who_went_on_both_end_well(
    desk: FlowDesk,
) -> None:
    """The first is held up at one of its writes until the second has done all of it."""
    for number, at in enumerate((2, 4, STEPS), 1):
        wanted = big(flow_id(number))
        second = await other(desk)

        async def go_on(wanted: Plan = wanted, second: FlowDesk = second) -> None:
            assert (await second.engine.flows.submit(wanted)).created

        store = FaultyStore(desk.store, [Fault(Verb.COMMIT, at, Kind.DELAY, hook=go_on)])
        first = await other(desk, store)
        assert not (await first.engine.flows.submit(wanted)).created
        await runs_to_its_end(desk, wanted.id)


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_a_lost_answer_at_any_portion_changes_nothing(desk: FlowDesk, kind: Kind) -> None:
    for at in range(1, STEPS + 1):
        wanted = big(flow_id(at))
        store = FaultyStore(desk.store, [Fault(Verb.COMMIT, at, kind)])
        assert (await (await other(desk, store)).engine.flows.submit(wanted)).created
        assert store.hit
    await runs_to_its_end(desk, flow_id(2))


async def test_another_graph_under_the_same_key_is_a_conflict_at_any_portion(
    desk: FlowDesk,
) -> None:
    for at in (2, 5, STEPS):
        wanted = big(flow_id(at))
        await killed(desk, wanted, at, Kind.AFTER)
        with pytest.raises(IdempotencyConflict):
            await desk.engine.flows.submit(big(wanted.id, digest="other"))
        await desk.engine.flows.submit(wanted)


async def test_one_that_was_left_for_an_hour_begins_anew(desk: FlowDesk) -> None:
    """Part of it may be gone by then."""
    for at in (1, 3, STEPS - 1):
        wanted = big(flow_id(at))
        await killed(desk, wanted, at, Kind.AFTER)
        desk.clock.advance(UNOPENED_MS)
        await desk.engine.flows.submit(wanted)
        assert len((await desk.engine.flows.picture(wanted.id)).members) == len(wanted.orders)
        await runs_to_its_end(desk, wanted.id)


async def test_one_that_nobody_goes_on_with_goes_in_time(desk: FlowDesk) -> None:
    wanted = big(flow_id(1))
    await killed(desk, wanted, STEPS, Kind.BEFORE)
    desk.clock.advance(UNOPENED_MS)
    trimmer = RetentionTrimmer(desk.store, desk.engine.clock)
    while (await trimmer.run_once()).again:
        pass
    assert (await desk.view(wanted.id)).flow is None
    assert (await desk.engine.flows.submit(wanted)).created
    await runs_to_its_end(desk, wanted.id)


async def test_each_portion_puts_off_when_it_would_be_forgotten(desk: FlowDesk) -> None:
    wanted = big(flow_id(1))
    for _ in range(4):
        await killed(desk, wanted, 2, Kind.AFTER)
        desk.clock.advance(UNOPENED_MS - 1)
    found = (await desk.store.graph([Sight(flow=wanted.id)]))[0].flow
    assert found is not None
    assert (found.is_open, found.graph_revision) == (False, 4)
    await desk.engine.flows.submit(wanted)
    await runs_to_its_end(desk, wanted.id)


async def test_the_time_of_a_flow_begins_when_it_is_open(desk: FlowDesk) -> None:
    wanted = big(flow_id(1))
    dated = msgspec.structs.replace(wanted, deadline_ms=desk.clock.now_ms() + 1_000)
    await killed(desk, dated, 4, Kind.AFTER)
    desk.clock.advance(5_000)
    later = msgspec.structs.replace(wanted, deadline_ms=desk.clock.now_ms() + 1_000)
    await desk.engine.flows.submit(later)
    flow = await desk.flow(wanted.id)
    assert (flow.deadline_ms, flow.due_ms) == (later.deadline_ms, later.deadline_ms)


async def test_a_member_that_is_there_already_is_refused(desk: FlowDesk) -> None:
    wanted = big(flow_id(1))
    await desk.engine.submit([wanted.orders[50]])
    with pytest.raises(InvalidInput, match="already exists"):
        await desk.engine.flows.submit(wanted)


async def test_a_flow_that_has_grown_is_still_the_one_that_was_submitted(desk: FlowDesk) -> None:
    wanted = big(flow_id(1))
    await desk.engine.flows.submit(wanted)
    await desk.engine.flows.build.add(wanted.id, Addition(orders=plan([7], flow=wanted.id).orders))
    again = await desk.engine.flows.submit(wanted)
    assert (again.id, again.created) == (wanted.id, False)


async def test_of_one_that_is_not_open_the_sizes_are_compared_where_digests_cannot_be(
    desk: FlowDesk,
) -> None:
    wanted = big(flow_id(1), digest="1:same")
    await killed(desk, wanted, 4, Kind.AFTER)
    smaller = plan([ROOT], flow=wanted.id)
    with pytest.raises(IdempotencyConflict):
        await desk.engine.flows.submit(msgspec.structs.replace(smaller, digest="of another form"))
