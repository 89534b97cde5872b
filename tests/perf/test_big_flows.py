"""The work for one member is the same however many members its flow has: counted, not timed.

What is counted is the calls that reach the store, and on SQLite and Valkey the steps that the store
itself takes for them. A flow is executed as workers and dispatchers do it, by hints alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from itertools import count
from typing import NamedTuple

import pytest

from flowfabric.core.flow.graph import Link, Plan
from flowfabric.core.ids import FlowId
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed
from flowfabric.store import Store
from flowfabric.store.sqlite import file
from flowfabric.store.sqlite import store as sqlite_store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.link import pack
from flowfabric.testing.build import KIND, LANE, TTL_MS, WORKER
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import flow_id, member, plan

FEW, MANY = 300, 3_000
GROUP = 50
AT_A_TIME = 100
# Trees of a few levels and pages that are not full cost a little more or less.
MORE_AT_MOST = 1.3
STEPS = 100


class Cost(NamedTuple):
    trips: int
    statements: int
    steps: int

    def since(self, before: Cost) -> Cost:
        return Cost(*(now - then for now, then in zip(self, before, strict=True)))


Steps = Callable[[], Awaitable[int]]


@pytest.fixture(autouse=True)
def sqlite_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every so many steps of SQLite's machine, on any connection of the store."""
    steps = [0]

    def counted(path: str, synchronous: str) -> sqlite3.Connection:
        connection = file.connect(path, synchronous)

        def step() -> int:
            steps[0] += 1
            return 0

        connection.set_progress_handler(step, STEPS)
        return connection

    monkeypatch.setattr(sqlite_store, "connect", counted)
    return steps


@pytest.fixture
def steps(sqlite_steps: list[int], store: Store) -> Steps:
    """How much the store has done, as far as it can say."""

    async def taken() -> int:
        if isinstance(store, ValkeyStore):
            return await _valkey_steps(store)
        return sqlite_steps[0]

    return taken


async def _valkey_steps(store: ValkeyStore) -> int:
    """Commands, also those inside functions, and what was sent to clients."""
    total = 0
    for place in store.network.places():
        reply = await (await store.network.link(place)).ask([pack("INFO", "everything")])
        text = reply[0]
        assert isinstance(text, bytes)
        for line in text.decode().splitlines():
            name, _, value = line.partition(":")
            if name.startswith("cmdstat_"):
                total += int(value.partition("calls=")[2].partition(",")[0])
    return total


def tree(members: int, flow: FlowId) -> Plan:
    """Members are joined in groups, and the groups in one last join."""
    leaves = [member(10_000 + number, flow) for number in range(members)]
    groups = [20_000 + number for number in range(-(-members // GROUP))]
    edges = [
        Link(leaf, member(groups[number // GROUP], flow)) for number, leaf in enumerate(leaves)
    ]
    edges += [Link(member(group, flow), member("z", flow)) for group in groups]
    return plan([*(10_000 + number for number in range(members)), *groups, "z"], edges, flow=flow)


def join(members: int, flow: FlowId) -> Plan:
    names = range(10_000, 10_000 + members)
    return plan([*names, "z"], [Link(member(n, flow), member("z", flow)) for n in names], flow=flow)


async def executed(engine: Engine, steps: Steps, drawn: Plan) -> Cost:
    """What it costs to execute a flow that is submitted and open."""
    tokens = count()
    store = engine.store
    assert (await engine.flows.submit(drawn)).created
    await engine.dispatcher.drain()
    before = Cost(*store.trips.count, await steps())
    ended = 0
    while ended < len(drawn.orders):
        token = f"{drawn.id}-{next(tokens)}"
        leases = await engine.claim(
            [LANE], AT_A_TIME, tasks=[KIND], worker=WORKER, token=token, ttl_ms=TTL_MS
        )
        await engine.finish([Completed(lease, b"1") for lease in leases])
        while await engine.dispatcher.run_once(everything=False):
            pass
        ended += len(leases)
        assert leases
    return Cost(*store.trips.count, await steps()).since(before)


@pytest.mark.parametrize("draw", [tree, join])
async def test_a_member_of_a_big_flow_costs_what_one_of_a_small_flow_does(
    store: Store, clock: VirtualClock, steps: Steps, draw: Callable[[int, FlowId], Plan]
) -> None:
    engine = Engine(store, clock=clock)
    await engine.open()
    store.hints.subscribe(engine.dispatcher.hear)
    await executed(engine, steps, draw(GROUP, flow_id(1)))
    few = await executed(engine, steps, draw(FEW, flow_id(2)))
    many = await executed(engine, steps, draw(MANY, flow_id(3)))
    for name, small, large in zip(Cost._fields, few, many, strict=True):
        assert large / MANY <= MORE_AT_MOST * small / FEW, (name, few, many)
