"""Random flows of the lab's one task. No test lives here."""

from __future__ import annotations

import random
from typing import NamedTuple

import flowfabric as ff
from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import START, EdgeKind, GroupKey, Join, OnSatisfied
from flowfabric.core.ids import (
    RANDOM_BITS,
    FlowId,
    PartitionCounts,
    flow_execution_id,
    uuid7,
)
from flowfabric.core.lifecycle import Order

MEMBERS_MAX = 8
RETRIES = 3


class Planner(NamedTuple):
    chance: random.Random
    work: ff.Task[str]
    counts: PartitionCounts

    def plan(self, now_ms: int) -> Plan:
        """Everybody waits for some of those before, one way or another."""
        flow = FlowId(self._uuid(now_ms))
        orders = [self._order(flow, now_ms) for _ in range(self.chance.randint(1, MEMBERS_MAX))]
        links: list[Link] = []
        policies: dict[GroupKey, Policy] = {}
        for place, order in enumerate(orders):
            known = [each.id for each in orders[:place]]
            ups = self.chance.sample(known, min(len(known), self.chance.randint(0, 3)))
            kinds = [EdgeKind.SUCCESS_ONLY] * 4 + [EdgeKind.COMPLETION, EdgeKind.FAILURE]
            links += [Link(up, order.id, self.chance.choice(kinds)) for up in ups]
            if ups and self.chance.random() < 0.5:
                policies[GroupKey(order.id, START)] = Policy(
                    self.chance.choice(list(Join)),
                    self.chance.randint(1, len(ups)),
                    self.chance.choice(list(OnSatisfied)),
                )
        return Plan(
            id=flow,
            namespace="default",
            name="chaos",
            orders=orders,
            links=links,
            policies=policies,
            digest=flow,
        )

    def _uuid(self, now_ms: int) -> str:
        return uuid7(now_ms, self.chance.getrandbits(RANDOM_BITS))

    def _order(self, flow: FlowId, now_ms: int) -> Order:
        """Mostly short and good; now and then longer than a lease, or bad for ever."""
        luck = self.chance.random()
        seconds = 7.0 if luck < 0.01 else luck * 0.2
        bad = self.chance.choice((0, 0, 0, 0, 1, RETRIES + 1))
        request = self.work.bind(seconds, bad).request
        return Order(
            id=flow_execution_id(flow, self._uuid(now_ms), self.counts),
            namespace="default",
            lane=request.lane,
            kind=request.kind,
            payload=request.payload,
            policy=request.policy,
            priority=self.chance.randint(-1, 1),
        )
