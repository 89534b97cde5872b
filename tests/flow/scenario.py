"""A flow with something of everything, workers that end it, and what is left of it in the end.

No test lives here.
"""

from __future__ import annotations

from typing import NamedTuple

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import Join, OnSatisfied
from flowfabric.core.ids import ExecutionId
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.engine.outcomes import Completed, Failed, Outcome, Released
from flowfabric.testing.flows import FLOW, chain, member, plan
from tests.flow.desk import BROKEN, FlowDesk

ROOT, RACE, VOTE, JOIN, FAILS = 1, 2, 3, 4, 5
CANCEL = OnSatisfied.CANCEL_REMAINING
ROUNDS = 60


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


# One racer and three voters succeed; the others are slow and never end by themselves.
SLOW = {member(name) for name in (20_001, 20_002, 20_003, 30_003, 30_004)}


async def play(desk: FlowDesk) -> None:
    """Work and dispatch until nothing moves."""
    for _ in range(ROUNDS):
        await desk.dispatch()
        moved = await work(desk)
        desk.clock.advance(LEASE_MS)
        if not moved and not await desk.lines():
            return
    raise AssertionError("it never came to rest")


async def work(desk: FlowDesk) -> int:
    """Claim all there is and end it; answers how many ended."""
    leases = await desk.claim(500)
    outcomes: list[Outcome] = []
    for lease in leases:
        if lease.id in SLOW:
            outcomes.append(Released(lease))
        elif lease.id == member(FAILS):
            outcomes.append(Failed(lease, BROKEN))
        else:
            outcomes.append(Completed(lease, b"1"))
    if outcomes:
        # A loser that is cancelled at this moment is refused, and that is all right.
        await desk.engine.finish(outcomes)
    return sum(lease.id not in SLOW for lease in leases)


class Story(NamedTuple):
    """What is left in the end, without times and revisions."""

    members: list[tuple[ExecutionId, str, int]]
    edges: list[tuple[str, str, str, int]]
    groups: list[tuple[str, str, int, int, int, bool, str, str]]
    counters: dict[str, int]
    lines: int


async def story(desk: FlowDesk) -> Story:
    seen = await desk.engine.flows.picture(FLOW)
    return Story(
        [(row.id, str(row.state), row.replay_count) for row in seen.members],
        sorted((e.upstream, e.downstream, str(e.state), e.attempt) for e in seen.edges),
        sorted(
            (
                *(g.downstream, str(g.state), g.succeeded, g.failed, g.skipped),
                *(g.cancel_owed, g.cancel_reason, g.owed),
            )
            for g in seen.groups
        ),
        await desk.counters(),
        len(await desk.lines()),
    )
