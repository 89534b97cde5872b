"""Random graphs with random ends, orders and replays come to what a simple evaluator says.

The evaluator is written from the rules, not from the core: a member ends as planned if what it
waits for can be had, else it is skipped.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import EdgeKind, Join, OnSatisfied
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, member, plan
from flowfabric.testing.invariants import broken_promises
from tests.flow.desk import BROKEN, FlowDesk

BASE = 1_000
LET_RUN = OnSatisfied.LET_RUN


class World(NamedTuple):
    """Members by number; each waits only for smaller ones, so there is no circle."""

    size: int
    edges: dict[tuple[int, int], EdgeKind]
    policies: dict[int, Policy]
    succeeds: list[bool]
    picks: list[int]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    size = draw(st.integers(1, 9))
    pairs = [(up, down) for down in range(size) for up in range(down)]
    chosen = [pair for pair in pairs if draw(st.integers(0, 2)) == 0]
    kinds = st.sampled_from([EdgeKind.SUCCESS_ONLY, *EdgeKind])
    edges = {pair: draw(kinds) for pair in chosen}
    policies: dict[int, Policy] = {}
    for down in {down for _, down in chosen}:
        width = sum(pair[1] == down for pair in chosen)
        join = draw(st.sampled_from(Join))
        k = draw(st.integers(1, width)) if join is Join.QUORUM else 1
        policies[down] = Policy(join, k, LET_RUN)
    succeeds = [draw(st.booleans()) for _ in range(size)]
    picks = draw(st.lists(st.integers(0, 100), min_size=size * 3, max_size=size * 3))
    return World(size, edges, policies, succeeds, picks)


def planned(world: World) -> Plan:
    links = [
        Link(member(BASE + up), member(BASE + down), kind)
        for (up, down), kind in world.edges.items()
    ]
    policies = {BASE + down: policy for down, policy in world.policies.items()}
    return plan([BASE + n for n in range(world.size)], links, policies=policies)


def evaluated(world: World) -> list[str]:
    """What becomes of each member, in the order of their numbers."""
    ends: list[str] = []
    for n in range(world.size):
        uses = [_is_met(kind, ends[up]) for (up, down), kind in world.edges.items() if down == n]
        policy = world.policies.get(n)
        need = 0
        if policy is not None:
            need = {Join.ALL_OF: len(uses), Join.ANY_OF: 1}.get(policy.join, policy.k)
        if sum(uses) < need:
            ends.append("skipped")
        else:
            ends.append("completed" if world.succeeds[n] else "failed")
    return ends


def _is_met(kind: EdgeKind, end: str) -> bool:
    if kind is EdgeKind.SUCCESS_ONLY:
        return end == "completed"
    return end == "failed" if kind is EdgeKind.FAILURE else True


async def played(world: World) -> tuple[list[str], dict[str, int]]:
    """Members end in the order of the picks; sometimes nobody dispatches for a while."""
    clock = VirtualClock()
    desk = FlowDesk(MemoryStore(clock), clock)
    await desk.engine.open()
    await desk.draw(planned(world))
    picks = iter(world.picks)
    while True:
        if next(picks, 0) % 3 == 0:
            await desk.dispatch()
        assert await broken_promises(desk.store, clock.now_ms()) == []
        leases = await desk.claim(1)
        if not leases:
            await desk.dispatch()
            leases = await desk.claim(1)
        if not leases:
            break
        number = next(n for n in range(world.size) if member(BASE + n) == leases[0].id)
        if world.succeeds[number]:
            await desk.engine.complete(leases[0], b"1")
        else:
            await desk.engine.fail(leases[0], BROKEN)
        is_first = (await desk.member(BASE + number)).replay_count == 0
        if is_first and next(picks, 0) % 7 == 0 and await desk.lines():
            # Before anybody heard of its end: it runs again, to the same end.
            await desk.engine.replay(leases[0].id)
    await desk.dispatch()
    assert await desk.lines(FLOW) == []
    states = [str(await desk.state(BASE + n)) for n in range(world.size)]
    return states, await desk.counters()


@given(worlds())
def test_a_random_graph_ends_as_the_rules_say(world: World) -> None:
    states, counters = asyncio.run(played(world))
    assert states == evaluated(world)
    assert counters == {state: states.count(state) for state in set(states)}
