"""Random orders and random flows, all from the chance of the world. Nothing here is submitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import START, EdgeKind, GroupKey, Join, OnSatisfied
from flowfabric.core.ids import (
    RANDOM_BITS,
    ExecutionId,
    FlowId,
    PartitionCounts,
    execution_id,
    flow_execution_id,
    uuid7,
)
from flowfabric.core.lifecycle import Order
from flowfabric.core.policy import (
    Exponential,
    Fixed,
    OnAttemptTimeout,
    RetentionPolicy,
    RetryPolicy,
    TimeoutPolicy,
    encode_policy,
)
from flowfabric.core.policy import Policy as Rules
from flowfabric.testing.build import NAMESPACE
from flowfabric.testing.simulation.programs import TASKS, VERSIONS, payload_of
from flowfabric.testing.simulation.world import World

LANES = ("main", "side")
# Served by one process only, which also submits to it: what it knows of its flows stays true.
HOME = "home"
MEMBERS_MAX = 9
KEPT_MS = (0, 1_000, 20_000, 90_000)
# A graph of more records than one commit takes is written in portions.
BIG = 180


def is_crooked(policies: Iterable[Policy]) -> bool:
    """Whether one of them says something that no store keeps as it is."""
    return any(type(policy.k) is not int for policy in policies)


class Wishes:
    """Whoever asks twice gets something else."""

    def __init__(self, world: World, lanes: Sequence[str] = LANES) -> None:
        self._world = world
        self._lanes = lanes
        self._chance = world.chance
        self._counts = PartitionCounts()

    def uuid(self) -> str:
        return uuid7(self._world.timeline.now_ms(), self._chance.getrandbits(RANDOM_BITS))

    def order(self, id: ExecutionId | None = None) -> Order:
        chance, now_ms = self._chance, self._world.timeline.now_ms()
        is_alone = id is None
        key = f"key-{chance.randrange(500)}" if is_alone and chance.random() < 0.2 else None
        return Order(
            id=id or execution_id(chance.randrange(4), self.uuid()),
            namespace=NAMESPACE,
            lane=chance.choice(self._lanes),
            kind=chance.choice(TASKS),
            payload=payload_of(chance.choice(VERSIONS)),
            priority=chance.choice((0, 0, 0, 5, -5)),
            policy=self._rules(),
            delay_until_ms=now_ms + chance.randint(0, 20_000) if chance.random() < 0.2 else None,
            deadline_ms=now_ms + chance.randint(2_000, 90_000) if chance.random() < 0.15 else None,
            key=key,
            digest="same" if key else "",
        )

    def _rules(self) -> str:
        chance = self._chance
        retry = None
        if chance.random() < 0.5:
            backoff = Exponential(200, 5_000) if chance.random() < 0.5 else Fixed(500)
            retry = RetryPolicy(chance.randint(0, 4), backoff)
        limits = TimeoutPolicy(
            attempt_timeout_ms=chance.choice((None, None, 3_000, 12_000)),
            on_attempt_timeout=chance.choice(list(OnAttemptTimeout)),
            execution_deadline_ms=chance.choice((None, None, None, 60_000)),
            max_reclaim_count=chance.choice((0, 1, 3, 100)),
        )
        return encode_policy(
            Rules(
                retry_policy=retry,
                timeout_policy=limits,
                retention_policy=self._retention(),
                max_replay_count=chance.choice((0, 2, 10)),
                dedup_window_ms=chance.choice((0, 5_000, 40_000)),
            )
        )

    def _retention(self) -> RetentionPolicy:
        chance = self._chance
        return RetentionPolicy(*(chance.choice(KEPT_MS) for _ in range(5)))

    def member(self, flow: FlowId) -> Order:
        return self.order(flow_execution_id(flow, self.uuid(), self._counts))

    def plan(self) -> Plan:
        """A graph in which everybody waits for some of those before."""
        chance, now_ms = self._chance, self._world.timeline.now_ms()
        flow = FlowId(self.uuid())
        is_big = chance.random() < 0.008
        size = BIG if is_big else chance.randint(1, MEMBERS_MAX)
        orders = [self.member(flow) for _ in range(size)]
        links: list[Link] = []
        policies: dict[GroupKey, Policy] = {}
        for place in range(1, size):
            known = [order.id for order in orders[max(0, place - 6) : place]]
            mine, policy = self.links(known, orders[place].id)
            links += mine
            if mine and policy is not None:
                policies[GroupKey(orders[place].id, START)] = policy
        return Plan(
            id=flow,
            namespace=NAMESPACE,
            name="graph",
            orders=orders,
            links=links,
            policies=policies,
            digest=flow,
            deadline_ms=now_ms + chance.randint(1_000, 60_000) if chance.random() < 0.1 else None,
            retention=self._retention(),
        )

    def _link(self, up: ExecutionId, id: ExecutionId, kind: EdgeKind) -> Link:
        passes = kind in (EdgeKind.SUCCESS_ONLY, EdgeKind.COMPLETION)
        argument = "given" if passes and self._chance.random() < 0.5 else ""
        return Link(up, id, kind, argument=argument)

    def links(self, known: list[ExecutionId], id: ExecutionId) -> tuple[list[Link], Policy | None]:
        """What one member waits for, and how."""
        chance = self._chance
        ups = chance.sample(known, min(len(known), chance.choice((0, 1, 1, 2, 3, 4))))
        kinds = [EdgeKind.SUCCESS_ONLY] * 6 + [*EdgeKind]
        links = [self._link(up, id, chance.choice(kinds)) for up in ups]
        if not ups or chance.random() < 0.4:
            return links, None
        join = chance.choice(list(Join))
        k = chance.randint(1, len(ups))
        # Somebody without a type checker says it almost so; it must be refused.
        said = k + 0.5 if join is Join.QUORUM and chance.random() < 0.02 else k
        return links, Policy(join, cast(int, said), chance.choice(list(OnSatisfied)))
