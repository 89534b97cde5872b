"""A dispatcher that dies after any commit, or before it, loses and doubles nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import Join, OnSatisfied
from flowfabric.core.ids import ExecutionId
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.errors import FlowFabricError
from flowfabric.store import Store, open_store
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, chain, member, plan
from tests.conftest import Size, discard
from tests.flow.desk import BROKEN, FlowDesk
from tests.servers import store_url

ROOT, RACE, VOTE, JOIN, FAILS = 1, 2, 3, 4, 5
CANCEL = OnSatisfied.CANCEL_REMAINING


def scenario(width: int, depth: int) -> Plan:
    """A fan-out that joins again, a race, a vote, and a failure above a long chain."""
    fan = list(range(10_000, 10_000 + width))
    racers, voters = list(range(20_000, 20_004)), list(range(30_000, 30_005))
    below = [FAILS, *range(40_000, 40_000 + depth)]
    edges = [Link(member(ROOT), member(each)) for each in (*fan, *racers, *voters)]
    edges += [Link(member(each), member(JOIN)) for each in fan]
    edges += [Link(member(each), member(RACE)) for each in racers]
    edges += [Link(member(each), member(VOTE)) for each in voters]
    edges += chain(below)
    names = [ROOT, RACE, VOTE, JOIN, *fan, *racers, *voters, *below]
    policies = {RACE: Policy(Join.ANY_OF, 1, CANCEL), VOTE: Policy(Join.QUORUM, 3, CANCEL)}
    return plan(names, edges, policies=policies)


# One racer and three voters succeed; the others are slow and never claimed.
SLOW = {member(name) for name in (20_001, 20_002, 20_003, 30_003, 30_004)}


class Story(NamedTuple):
    """What is left in the end, without times and revisions."""

    members: list[tuple[ExecutionId, str, int]]
    edges: list[tuple[str, str, str, int]]
    groups: list[tuple[str, str, int, int, int, bool]]
    counters: dict[str, int]
    lines: int


async def play(desk: FlowDesk, faulty: FaultyStore, plan: Plan) -> None:
    """Work and dispatch until nothing moves; a dispatcher that dies is replaced."""
    await desk.draw(plan)
    for _ in range(40):
        try:
            await desk.dispatch()
        except FlowFabricError:
            faulty.plan.clear()
            desk = desk.another()
            await desk.engine.open()
        moved = await work(desk)
        desk.clock.advance(LEASE_MS)
        if not moved and not await desk.lines():
            return
    raise AssertionError("it never came to rest")


async def work(desk: FlowDesk) -> int:
    leases = await desk.claim(500)
    for lease in leases:
        if lease.id in SLOW:
            await desk.engine.release(lease)
        elif lease.id == member(FAILS):
            await desk.engine.fail(lease, BROKEN)
        else:
            await desk.engine.complete(lease, b"1")
    return sum(lease.id not in SLOW for lease in leases)


async def story(desk: FlowDesk) -> Story:
    seen = await desk.engine.flows.picture(FLOW)
    return Story(
        [(row.id, str(row.state), row.replay_count) for row in seen.members],
        sorted((e.upstream, e.downstream, str(e.state), e.attempt) for e in seen.edges),
        sorted(
            (g.downstream, str(g.state), g.succeeded, g.failed, g.skipped, g.cancel_owed)
            for g in seen.groups
        ),
        await desk.counters(),
        len(await desk.lines()),
    )


async def told(store: Store, clock: VirtualClock, plan: Plan, *faults: Fault) -> tuple[Story, int]:
    faulty = FaultyStore(store, faults)
    desk = FlowDesk(faulty, clock)
    await desk.engine.open()
    await play(desk, faulty, plan)
    return await story(desk), faulty.calls[Verb.COMMIT_EACH]


@pytest.mark.lab
@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
@pytest.mark.parametrize("verb", [Verb.COMMIT_EACH, Verb.PENDING])
async def test_a_death_around_any_commit_changes_nothing_in_the_end(
    store_kind: str, tmp_path: Path, size: Size, verb: Verb, kind: Kind
) -> None:
    width, depth = (80, 40) if size == "long" else (12, 8)
    wanted = scenario(width, depth)
    expected, commits = await fresh(store_kind, tmp_path / "0.db", wanted)
    assert expected.counters["skipped"] == depth
    assert expected.lines == 0
    assert commits > 5
    for call in range(1, commits + 1):
        # As often as the engine would ask again: it gives up as if it had died there.
        fault = Fault(verb, call, kind, times=3)
        seen, _ = await fresh(store_kind, tmp_path / f"{call}.db", wanted, fault)
        assert seen == expected, call


async def fresh(kind: str, path: Path, wanted: Plan, *faults: Fault) -> tuple[Story, int]:
    clock = VirtualClock()
    store = open_store(store_url(kind, path), clock=clock)
    await store.migrate()
    try:
        return await told(store, clock, wanted, *faults)
    finally:
        await discard(store)
