"""A flow with something of everything, workers that end it, and what is left of it in the end.

No test lives here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import NOT_PINNED, Edge, Join, OnSatisfied
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.engine.engine import LEASE_TTL_FLOOR_MS
from flowfabric.engine.outcomes import Completed, Failed, Outcome, Released
from flowfabric.testing.flows import FLOW, NAME_BITS, chain, member, plan
from tests.flow.desk import BROKEN, FlowDesk

ROOT, RACE, VOTE, JOIN, FAILS = 1, 2, 3, 4, 5
CANCEL = OnSatisfied.CANCEL_REMAINING
ROUNDS = 60


def scenario(width: int, depth: int, flow: FlowId = FLOW) -> Plan:
    """A fan-out that joins again, a race, a vote, and a failure above a long chain."""

    def links(pairs: Iterable[tuple[int, int]]) -> list[Link]:
        return [Link(member(up, flow), member(down, flow)) for up, down in pairs]

    fan = list(range(10_000, 10_000 + width))
    racers, voters = list(range(20_000, 20_004)), list(range(30_000, 30_005))
    below = [FAILS, *range(40_000, 40_000 + depth)]
    edges = links((ROOT, each) for each in (*fan, *racers, *voters))
    edges += links((each, JOIN) for each in fan)
    edges += links((each, RACE) for each in racers)
    edges += links((each, VOTE) for each in voters)
    edges += chain(below, flow)
    names = [ROOT, RACE, VOTE, JOIN, *fan, *racers, *voters, *below]
    policies = {RACE: Policy(Join.ANY_OF, 1, CANCEL), VOTE: Policy(Join.QUORUM, 3, CANCEL)}
    return plan(names, edges, policies=policies, flow=flow)


# One racer and three voters succeed; the others are slow and never end by themselves.
SLOW = (20_001, 20_002, 20_003, 30_003, 30_004)


async def play(desk: FlowDesk, flow: FlowId = FLOW) -> None:
    """Work and dispatch until nothing moves."""
    for _ in range(ROUNDS):
        if not await step(desk, flow):
            return
    raise AssertionError("it never came to rest")


async def step(desk: FlowDesk, flow: FlowId) -> bool:
    """Dispatch, work, and let the leases of the dead end; answers whether something may follow."""
    await desk.dispatch()
    moved = await work(desk, flow)
    desk.clock.advance(max(LEASE_MS, LEASE_TTL_FLOOR_MS))
    while (await desk.sweep()).again:
        pass
    return moved or bool(await desk.lines(flow))


async def work(desk: FlowDesk, flow: FlowId) -> bool:
    """Claim all there is and end it; answers whether anything ended, or is held by a dead one."""
    leases = await desk.claim(500, ttl_ms=LEASE_TTL_FLOOR_MS)
    slow = {member(name, flow) for name in SLOW}
    outcomes: list[Outcome] = []
    for lease in leases:
        if lease.id in slow:
            outcomes.append(Released(lease))
        elif lease.id == member(FAILS, flow):
            outcomes.append(Failed(lease, BROKEN))
        else:
            outcomes.append(Completed(lease, b"1"))
    if outcomes:
        # A loser that is cancelled at this moment is refused, and that is all right.
        await desk.engine.finish(outcomes)
    return any(lease.id not in slow for lease in leases)


class Story(NamedTuple):
    """What is left in the end: no times, no revisions, and names instead of ids."""

    members: list[tuple[str, str, int]]
    edges: list[tuple[str, str, str, str]]
    groups: list[tuple[str, str, int, int, int, bool, str, str]]
    counters: dict[str, int]
    lines: int


async def story(desk: FlowDesk, flow: FlowId = FLOW) -> Story:
    seen = await desk.engine.flows.picture(flow)
    heads = {row.id: row for row in seen.members}
    return Story(
        [(_name(row.id), str(row.state), row.replay_count) for row in seen.members],
        sorted(
            (_name(e.upstream), _name(e.downstream), str(e.state), _passed(e, heads[e.upstream]))
            for e in seen.edges
        ),
        sorted(
            (
                *(_name(g.downstream), str(g.state), g.succeeded, g.failed, g.skipped),
                *(g.cancel_owed, g.cancel_reason, g.owed),
            )
            for g in seen.groups
        ),
        await desk.counters(flow),
        len(await desk.lines(flow)),
    )


def _name(id: ExecutionId) -> str:
    """What members of one name in two flows have in common."""
    return id[-NAME_BITS // 4 :]


def _passed(edge: Edge, upstream: Execution) -> str:
    """Whose result is passed on: that of the attempt which ended it, or nobody's."""
    if edge.attempt == NOT_PINNED:
        return "nobody"
    return "last" if edge.attempt == upstream.attempt else f"attempt {edge.attempt}"
