"""Random flows of the lab's one task. No test lives here."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

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
CROWD_SHARE = 0.02
CROWD_MEMBERS = (500, 1_500)
CROWD_GROUP = 50


class Planner(NamedTuple):
    chance: random.Random
    work: ff.Task[..., str]
    counts: PartitionCounts

    def plan(self, now_ms: int) -> Plan:
        """Small and tangled, or now and then a crowd."""
        flow = FlowId(self._uuid(now_ms))
        is_crowd = self.chance.random() < CROWD_SHARE
        return self._crowd(flow, now_ms) if is_crowd else self._tangle(flow, now_ms)

    def fraction(self, now_ms: int) -> Plan:
        """One that must be refused: nothing can be half a member."""
        plan = self._tangle(FlowId(self._uuid(now_ms)), now_ms)
        first, last = (self._order(plan.id, now_ms) for _ in range(2))
        half = Policy(Join.QUORUM, cast(int, 1.5), OnSatisfied.LET_RUN)
        return msgspec.structs.replace(
            plan,
            orders=[*plan.orders, first, last],
            links=[*plan.links, Link(first.id, last.id)],
            policies={**plan.policies, GroupKey(last.id, START): half},
        )

    def _crowd(self, flow: FlowId, now_ms: int) -> Plan:
        """Many who are quick, joined in groups, and the groups by one."""
        count = self.chance.randint(*CROWD_MEMBERS)
        many = [self._order(flow, now_ms, is_quick=True) for _ in range(count)]
        groups = [many[start : start + CROWD_GROUP] for start in range(0, count, CROWD_GROUP)]
        joins = [self._order(flow, now_ms, is_quick=True) for _ in groups]
        last = self._order(flow, now_ms, is_quick=True)
        links = [
            *(
                Link(each.id, join.id)
                for group, join in zip(groups, joins, strict=True)
                for each in group
            ),
            *(Link(join.id, last.id) for join in joins),
        ]
        return _plan(flow, [*many, *joins, last], links, {})

    def _tangle(self, flow: FlowId, now_ms: int) -> Plan:
        """Each waits for some of those before, one way or another."""
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
        return _plan(flow, orders, links, policies)

    def _uuid(self, now_ms: int) -> str:
        return uuid7(now_ms, self.chance.getrandbits(RANDOM_BITS))

    def _order(self, flow: FlowId, now_ms: int, *, is_quick: bool = False) -> Order:
        """Mostly short and good; now and then longer than a lease, or bad for ever."""
        luck = self.chance.random()
        seconds = 7.0 if luck < 0.01 else luck * 0.2
        bad = self.chance.choice((0, 0, 0, 0, 1, RETRIES + 1))
        if is_quick:
            seconds, bad = 0.0, 0
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


def _plan(
    flow: FlowId,
    orders: Sequence[Order],
    links: Sequence[Link],
    policies: Mapping[GroupKey, Policy],
) -> Plan:
    return Plan(
        id=flow,
        namespace="default",
        name="chaos",
        orders=orders,
        links=links,
        policies=policies,
        digest=flow,
    )
