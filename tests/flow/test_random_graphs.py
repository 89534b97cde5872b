"""Random graphs with random ends, retries, cancels, replays and deaths come to what an evaluator
allows that is written from the rules, not from the core.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import EdgeKind, Join, OnSatisfied
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.core.states import TERMINAL
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.errors import FlowFabricError
from flowfabric.store import Store, open_store
from flowfabric.testing import Kind
from flowfabric.testing.build import policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import flow_id, member, plan
from flowfabric.testing.invariants import broken_promises
from tests.conftest import SIZE, discard
from tests.flow.desk import BROKEN, FlowDesk
from tests.flow.dying import Died, Mortal
from tests.flow.evaluator import Evaluator, Graph, Rule
from tests.servers import store_url

BASE = 1_000
TTL_MS = 10_000_000
RETRY_MS = 1_000
RETRIES = 2
ACTS = 14


class World(NamedTuple):
    """Members by number, each waits only for smaller ones; what they come to, and what is done."""

    size: int
    edges: dict[tuple[int, int], EdgeKind]
    policies: dict[int, Policy]
    succeeds: list[bool]
    stumbles: list[int]
    acts: list[tuple[str, int]]


DONE = ("end", "end", "end", "claim", "claim", "dispatch", "die", "cancel", "replay")


@st.composite
def worlds(draw: st.DrawFn) -> World:
    size = draw(st.integers(2, 8))
    pairs = [(up, down) for down in range(size) for up in range(down)]
    chosen = [pair for pair in pairs if draw(st.integers(0, 2)) == 0]
    kinds = st.sampled_from([EdgeKind.SUCCESS_ONLY, *EdgeKind])
    edges = {pair: draw(kinds) for pair in chosen}
    policies: dict[int, Policy] = {}
    for down in sorted({down for _, down in chosen}):
        width = sum(pair[1] == down for pair in chosen)
        join = draw(st.sampled_from(Join))
        k = draw(st.integers(1, width)) if join is Join.QUORUM else 1
        policies[down] = Policy(join, k, draw(st.sampled_from(OnSatisfied)))
    succeeds = [draw(st.booleans()) for _ in range(size)]
    stumbles = [draw(st.integers(0, 8)) for _ in range(size)]
    act = st.tuples(st.sampled_from(DONE), st.integers(0, 100))
    acts = draw(st.lists(act, min_size=size, max_size=ACTS))
    return World(size, edges, policies, succeeds, stumbles, acts)


def planned(world: World, flow: FlowId) -> Plan:
    links = [
        Link(member(BASE + up, flow), member(BASE + down, flow), kind)
        for (up, down), kind in world.edges.items()
    ]
    policies = {BASE + down: policy for down, policy in world.policies.items()}
    names = [BASE + n for n in range(world.size)]
    tried = policy(retries=RETRIES, pause_ms=RETRY_MS)
    return plan(names, links, policies=policies, flow=flow, policy=tried)


def graph_of(world: World) -> Graph:
    rules: dict[int, Rule] = {}
    for down, wanted in world.policies.items():
        width = sum(pair[1] == down for pair in world.edges)
        need = {Join.ALL_OF: width, Join.ANY_OF: 1}.get(wanted.join, wanted.k)
        is_choice = wanted.join is not Join.ALL_OF
        cancels = is_choice and wanted.on_satisfied is OnSatisfied.CANCEL_REMAINING
        rules[down] = Rule(need, cancels)
    return Graph(world.size, {pair: str(kind) for pair, kind in world.edges.items()}, rules)


class Play:
    """Does to a flow what its world says, and tells the evaluator what came of it."""

    def __init__(self, store: Store, clock: VirtualClock, world: World, flow: FlowId) -> None:
        self.world = world
        self.flow = flow
        self.store = store
        self.evaluator = Evaluator(graph_of(world))
        self.desk = FlowDesk(store, clock)
        self.desk._tokens = TOKENS
        self.held: list[Lease] = []
        self.tries = [0] * world.size
        self.numbers = {member(BASE + n, flow): n for n in range(world.size)}

    async def run(self) -> None:
        await self.desk.engine.open()
        await self.desk.draw(planned(self.world, self.flow))
        for act, pick in self.world.acts:
            await getattr(self, act)(pick)
        while await self.moves():
            pass

    async def moves(self) -> bool:
        """To the end, without any more surprises."""
        await self.dispatch(0)
        await self.claim(0)
        if self.held:
            await self.end(0)
            return True
        return False

    def id(self, pick: int) -> ExecutionId:
        return member(BASE + pick % self.world.size, self.flow)

    async def claim(self, pick: int) -> None:
        self.desk.clock.advance(RETRY_MS)
        await self.desk.sweep()
        self.held += await self.desk.claim(1 + pick % 2, ttl_ms=TTL_MS)

    async def end(self, pick: int) -> None:
        """One of those that run comes to its end, or stumbles and will be tried again."""
        if not self.held:
            return
        lease = self.held.pop(pick % len(self.held))
        n = self.numbers[lease.id]
        self.tries[n] += 1
        try:
            if self.tries[n] <= self.world.stumbles[n] - 6:
                await self.desk.engine.fail(lease, Failure("stumbled", "handler_error"))
                return
            if self.world.succeeds[n]:
                await self.desk.engine.complete(lease, b"1")
            else:
                await self.desk.engine.fail(lease, BROKEN)
        except FlowFabricError:
            # It was cancelled or skipped meanwhile, so its end is none.
            assert (await self.desk.head(lease.id)).epoch > lease.epoch
            return
        self.evaluator.ended(n, "completed" if self.world.succeeds[n] else "failed")

    async def dispatch(self, pick: int) -> None:
        await self.desk.dispatch()

    async def die(self, pick: int) -> None:
        """A dispatcher dies around one of its writes; its lease ends."""
        kind = Kind.BEFORE if pick % 2 else Kind.AFTER
        doomed = FlowDesk(Mortal(self.store, 1 + pick % 5, kind), self.desk.clock)
        await doomed.engine.open()
        try:
            await doomed.dispatch()
        except Died:
            self.desk.clock.advance(LEASE_MS)

    async def cancel(self, pick: int) -> None:
        if (await self.desk.head(self.id(pick))).state not in TERMINAL:
            await self.desk.engine.cancel(self.id(pick), "enough")
            self.evaluator.cancelled(pick % self.world.size)

    async def replay(self, pick: int) -> None:
        if (await self.desk.head(self.id(pick))).state in TERMINAL:
            await self.desk.engine.replay(self.id(pick))
            self.evaluator.replayed(pick % self.world.size)

    async def check(self) -> None:
        seen = await self.desk.engine.flows.picture(self.flow)
        states = tuple(_plain(str(row.state)) for row in seen.members)
        groups = tuple((self.numbers[g.downstream], str(g.state)) for g in seen.groups)
        allowed = self.evaluator.at_rest()
        assert allowed
        assert (states, groups) in {(each.members, each.groups) for each in allowed}
        assert await self.desk.lines(self.flow) == []
        ends = [state for state in states if state != "blocked"]
        assert await self.desk.counters(self.flow) == {end: ends.count(end) for end in set(ends)}


def _plain(state: str) -> str:
    return "blocked" if state == "blocked_dependencies" else state


TOKENS = count(1)
FLOWS = count(1)


async def played(store: Store, clock: VirtualClock, world: World) -> None:
    play = Play(store, clock, world, flow_id(next(FLOWS)))
    await play.run()
    await play.check()


def examples(kind: str) -> int:
    """How many worlds are tried: many in memory, a few where each step is a trip."""
    small = {"memory": 150, "sqlite": 15}.get(kind, 5)
    return small * 20 if SIZE == "long" else small


def test_a_random_graph_ends_as_the_rules_say(store_kind: str, tmp_path: Path) -> None:
    clock = VirtualClock()
    with asyncio.Runner() as runner:
        store = open_store(store_url(store_kind, tmp_path / "store.db"), clock=clock)
        runner.run(store.migrate())

        @settings(max_examples=examples(store_kind))
        @given(worlds())
        def ends(world: World) -> None:
            runner.run(played(store, clock, world))

        ends()
        assert runner.run(broken_promises(store, clock.now_ms())) == []
        runner.run(discard(store))
