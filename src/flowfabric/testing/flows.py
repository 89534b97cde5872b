"""Builders of flows: plans with letters for members, the same on every run. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from uuid import UUID

from flowfabric.core.flow.graph import Link, Plan, Policy
from flowfabric.core.flow.model import START, EdgeKind, GroupKey
from flowfabric.core.ids import (
    ExecutionId,
    FlowId,
    PartitionCounts,
    flow_execution_id,
    uuid7,
)
from flowfabric.core.lifecycle import Order
from flowfabric.testing.build import KIND, LANE, NAMESPACE
from flowfabric.testing.clock import START_MS

COUNTS = PartitionCounts()
NAME_BITS = 32
FLOW = FlowId(uuid7(START_MS, 1))


def flow_id(number: int) -> FlowId:
    return FlowId(uuid7(START_MS, number))


def member(name: str | int, flow: FlowId = FLOW) -> ExecutionId:
    """The same id for the same name; the letters a to z are the first numbers.

    The members of two flows differ also where the flows share a partition.
    """
    number = name if isinstance(name, int) else _number(name)
    of_flow = UUID(flow).int % 2**NAME_BITS
    return flow_execution_id(flow, uuid7(START_MS, (of_flow << NAME_BITS) + number), COUNTS)


def _number(name: str) -> int:
    value = 0
    for sign in name:
        value = value * 128 + ord(sign)
    return value


def order(
    name: str | int, flow: FlowId = FLOW, *, policy: str = "", payload: bytes = b"{}"
) -> Order:
    return Order(
        id=member(name, flow),
        namespace=NAMESPACE,
        lane=LANE,
        kind=KIND,
        payload=payload,
        policy=policy,
    )


def links(text: str, flow: FlowId = FLOW, kind: EdgeKind = EdgeKind.SUCCESS_ONLY) -> list[Link]:
    """`a>b b>c` draws two edges."""
    pairs = (pair.split(">") for pair in text.split())
    return [Link(member(up, flow), member(down, flow), kind) for up, down in pairs]


def chain(names: Sequence[str | int], flow: FlowId = FLOW) -> list[Link]:
    """Each waits for the one before."""
    return [Link(member(up, flow), member(down, flow)) for up, down in pairwise(names)]


def plan(
    members: Iterable[str | int],
    edges: str | Sequence[Link] = "",
    *,
    flow: FlowId = FLOW,
    policies: Mapping[str, Policy] | Mapping[int, Policy] | None = None,
    policy: str = "",
    deadline_ms: int | None = None,
) -> Plan:
    drawn = links(edges, flow) if isinstance(edges, str) else edges
    return Plan(
        id=flow,
        namespace=NAMESPACE,
        name="graph",
        orders=[order(name, flow, policy=policy) for name in members],
        links=drawn,
        policies={
            GroupKey(member(name, flow), START): each for name, each in (policies or {}).items()
        },
        deadline_ms=deadline_ms,
    )
