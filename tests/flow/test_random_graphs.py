"""Random graphs with random ends, retries, cancels, replays and deaths come to what an evaluator
allows that is written from the rules, not from the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from random import Random
from typing import NamedTuple, cast

import msgspec
import pytest

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import EdgeKind, Join, LineKind, OnSatisfied
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Execution, Lease
from flowfabric.core.states import TERMINAL
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine import reopening
from flowfabric.engine.dispatcher import LEASE_MS
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.store import Store
from flowfabric.store.memory import MemoryStore
from flowfabric.testing import Kind
from flowfabric.testing.build import policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flow_invariants import broken_flow
from flowfabric.testing.flows import flow_id, member, plan
from flowfabric.testing.invariants import broken_promises
from tests.conftest import SIZE
from tests.flow.desk import BROKEN, FlowDesk
from tests.flow.dying import Died, Mortal
from tests.flow.evaluator import ENDS, Evaluator, Graph, Rule, Situation, outcome

BASE = 1_000
TTL_MS = 10_000_000
RETRY_MS = 1_000
RETRIES = 2
LIVES = 3
TOKENS = count(1)
PROGRESS_EVERY = 100


class World(NamedTuple):
    """Members by number, each waits only for smaller ones, and edges that are `passing` hand on
    results; what they come to, and what is done."""

    size: int
    edges: dict[tuple[int, int], EdgeKind]
    passing: frozenset[tuple[int, int]]
    policies: dict[int, Policy]
    succeeds: list[list[bool]]
    stumbles: list[int]
    acts: list[tuple[str, int]]


OFTEN = {"claim": 5, "end": 7, "dispatch": 2, "die": 2, "cancel": 2, "replay": 4}


def world_of(seed: int) -> World:
    """The same world for the same seed."""
    chance = Random(seed)
    size = chance.randint(2, 8)
    pairs = [(up, down) for down in range(size) for up in range(down)]
    density = chance.choice((0.3, 0.5, 0.8))
    usual = [EdgeKind.SUCCESS_ONLY] * 3
    edges = {
        pair: chance.choice([*usual, *EdgeKind]) for pair in pairs if chance.random() < density
    }
    passing = frozenset(
        pair
        for pair, kind in edges.items()
        if kind in (EdgeKind.SUCCESS_ONLY, EdgeKind.COMPLETION) and chance.random() < 0.5
    )
    policies: dict[int, Policy] = {}
    for down in sorted({down for _, down in edges}):
        width = sum(pair[1] == down for pair in edges)
        join = chance.choice(list(Join))
        k = chance.randint(1, width) if join is Join.QUORUM else 1
        policies[down] = Policy(join, k, chance.choice(list(OnSatisfied)))
    succeeds = [[chance.random() < 0.6 for _ in range(LIVES)] for _ in range(size)]
    stumbles = [chance.choice((0, 0, 0, 1, 2)) for _ in range(size)]
    names = chance.choices(list(OFTEN), list(OFTEN.values()), k=chance.randint(size, 5 * size))
    acts = [(name, chance.randrange(1_000)) for name in names]
    return World(size, edges, passing, policies, succeeds, stumbles, acts)


def planned(world: World, flow: FlowId) -> Plan:
    links = [
        Link(
            member(BASE + up, flow),
            member(BASE + down, flow),
            kind,
            argument=f"from_{up}" if (up, down) in world.passing else "",
        )
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
    kinds = {pair: str(kind) for pair, kind in world.edges.items()}
    return Graph(world.size, kinds, rules, world.passing)


class Play:
    """Does to a flow what its world says, and tells the evaluator what came of it."""

    def __init__(
        self,
        store: Store,
        clock: VirtualClock,
        world: World,
        flow: FlowId,
        *,
        is_known: bool = False,
    ) -> None:
        self.world = world
        self.flow = flow
        self.store = store
        self.evaluator = Evaluator(graph_of(world))
        self.desk = FlowDesk(store, clock)
        self.desk._tokens = TOKENS
        if is_known:
            self.desk.engine.known.begin()
        self.held: list[Lease] = []
        self.tries = [0] * world.size
        self.numbers = {member(BASE + n, flow): n for n in range(world.size)}

    async def begin(self) -> None:
        await self.desk.engine.open()
        await self.is_refused()
        await self.desk.draw(planned(self.world, self.flow))

    async def run(self) -> None:
        await self.begin()
        for act, pick in self.world.acts:
            await getattr(self, act)(pick)
            if isinstance(self.store, MemoryStore):
                await self.is_sound()
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
        for lease in await self.desk.claim(1 + pick % 2, ttl_ms=TTL_MS):
            self.held.append(lease)
            self.evaluator.claimed(self.numbers[lease.id])

    async def end(self, pick: int) -> None:
        """One of those that run comes to its end, or stumbles and will be tried again."""
        if not self.held:
            return
        lease = self.held.pop(pick % len(self.held))
        n = self.numbers[lease.id]
        self.tries[n] += 1
        succeeds = self.world.succeeds[n][lease.head.replay_count % LIVES]
        try:
            if self.tries[n] <= self.world.stumbles[n]:
                await self.desk.engine.fail(lease, Failure("stumbled", "handler_error"))
                self.evaluator.stumbled(n)
                return
            if succeeds:
                await self.desk.engine.complete(lease, b"1")
            else:
                await self.desk.engine.fail(lease, BROKEN)
        except FlowFabricError:
            # It was cancelled or skipped meanwhile, so its end is none.
            assert (await self.desk.head(lease.id)).epoch > lease.epoch
            return
        self.evaluator.ended(n, "completed" if succeeds else "failed")

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
            below = pick % 3 == 0
            await self.desk.engine.replay(self.id(pick), downstream=below)
            self.evaluator.replayed(pick % self.world.size, below=below)
            if any(line.kind is LineKind.REOPEN for line in await self.desk.lines(self.flow)):
                # What is too much for one commit is done when it is dispatched, whoever dies at it.
                await self.die(pick)
                await self.dispatch(0)

    async def is_sound(self) -> None:
        assert broken_flow(await self.desk.whole(self.flow)) == []

    async def check(self) -> None:
        await self.is_sound()
        seen = await self.desk.engine.flows.picture(self.flow)
        states = tuple(_plain(str(row.state)) for row in seen.members)
        groups = tuple((self.numbers[g.downstream], str(g.state)) for g in seen.groups)
        allowed = self.evaluator.at_rest()
        assert allowed
        assert (states, groups) in {(each.members, each.groups) for each in allowed}
        assert await self.desk.lines(self.flow) == []
        await self.is_judged(seen.members, allowed)
        ends = [state for state in states if state != "blocked"]
        assert await self.desk.counters(self.flow) == {end: ends.count(end) for end in set(ends)}

    async def is_judged(self, rows: Sequence[Execution], allowed: Iterable[Situation]) -> None:
        """The outcome is one that the rules give."""
        status = await self.desk.engine.flows.status(self.flow)
        states = tuple(_plain(str(row.state)) for row in rows)
        if any(state not in ENDS for state in states):
            assert status.outcome == "pending"
            return
        losers = frozenset(
            self.numbers[row.id]
            for row in rows
            if row.outcome_category == "flow_cascade" and row.outcome_detail.startswith("sibling_")
        )
        graph = self.evaluator.graph
        found = {outcome(graph, each, losers) for each in allowed if each.members == states}
        assert status.outcome in found

    async def is_refused(self) -> None:
        """The same graph with half a member too much in one of its joins makes no flow."""
        wanted = planned(self.world, self.flow)
        if not wanted.policies:
            return
        key = next(iter(wanted.policies))
        half = Policy(Join.QUORUM, cast(int, 1.5), OnSatisfied.LET_RUN)
        crooked = msgspec.structs.replace(wanted, policies={**wanted.policies, key: half})
        with pytest.raises(InvalidInput, match="whole number"):
            await self.desk.engine.flows.submit(crooked)


def _plain(state: str) -> str:
    return "blocked" if state == "blocked_dependencies" else state


def worlds(kind: str) -> range:
    """How many are tried: many in memory, a few where each step is a trip."""
    small = {"memory": 300, "sqlite": 20}.get(kind, 6)
    return range(small * 20 if SIZE == "long" else small)


@pytest.mark.lab
async def test_a_random_graph_ends_as_the_rules_say(
    store: Store,
    store_kind: str,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    progress: Callable[[str], None],
) -> None:
    for seed in worlds(store_kind):
        if seed and seed % PROGRESS_EVERY == 0:
            progress(f"{seed} graphs")
        monkeypatch.setattr(reopening, "PORTION", 2 + seed % 3 if seed % 2 else BATCH_LIMIT)
        play = Play(store, clock, world_of(seed), flow_id(seed + 1), is_known=seed % 2 == 1)
        try:
            await play.run()
            await play.check()
        except Exception as error:
            error.add_note(f"seed {seed}: {play.world}")
            raise
    assert await broken_promises(store, clock.now_ms()) == []
