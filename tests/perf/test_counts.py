"""Counted, not timed: what the verbs and an idle minute ask of each store, against the table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from flowfabric.core.flow.graph import Link, Plan
from flowfabric.core.ids import FlowId
from flowfabric.core.model import Lease
from flowfabric.engine.engine import Engine
from flowfabric.engine.janitor import CHORES, Janitor, Shed
from flowfabric.engine.loop import Loop
from flowfabric.engine.outcomes import Completed
from flowfabric.engine.telemetry import Telemetry
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.store import Store, open_store
from flowfabric.store.trips import Count
from flowfabric.testing.build import KIND, LANE, TTL_MS, WORKER, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from flowfabric.worker.handler import Handler
from flowfabric.worker.worker import Worker
from tests.perf.table import difference, expected
from tests.perf.warp import WarpLoop, run_warped, watched
from tests.servers import store_url

# Not a multiple of any interval: what happens at a boundary would count or not, by chance.
SETTLE_SECONDS = 36.7
MINUTE_SECONDS = 60.0
# Duties that begin together would share a transaction here and there, by chance.
APART_SECONDS = 0.0137

MEASURED = {
    *("submit_1", "submit_100", "claim_1", "claim_100", "complete_1", "complete_100"),
    *("renew_100", "idle_minute", "fan_out_100", "fan_in_100"),
}


class Till:
    """Does things with an engine and counts what they cost."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self.engine = Engine(store, clock=clock)
        self._store = store
        self._numbers = count()
        self._tokens = count()

    async def open(self) -> None:
        """Everything once, so that what is opened or remembered at first use is."""
        await self.engine.open()
        await self.submit(1)
        await self.complete((await self.claim(1))[1])

    async def submit(self, size: int) -> Count:
        orders = [order(next(self._numbers)) for _ in range(size)]
        before = self._store.trips.count
        answers = await self.engine.submit(orders)
        assert all(answer.created for answer in answers)
        return self._store.trips.count.since(before)

    async def claim(self, size: int) -> tuple[Count, list[Lease]]:
        token = f"token-{next(self._tokens):016}"
        before = self._store.trips.count
        leases = await self.engine.claim(
            [LANE], size, tasks=[KIND], worker=WORKER, token=token, ttl_ms=TTL_MS
        )
        assert len(leases) == size
        return self._store.trips.count.since(before), leases

    async def renew(self, leases: Sequence[Lease]) -> Count:
        before = self._store.trips.count
        answers = await self.engine.renew(leases, TTL_MS)
        assert all(answer.error is None for answer in answers)
        return self._store.trips.count.since(before)

    async def hop(self) -> Count:
        """What was hinted at, and nothing else."""
        before = self._store.trips.count
        assert await self.engine.dispatcher.run_once(everything=False) == 1
        return self._store.trips.count.since(before)

    async def complete(self, leases: Sequence[Lease]) -> Count:
        before = self._store.trips.count
        answers = await self.engine.finish([Completed(lease, b"1") for lease in leases])
        assert all(answer.error is None for answer in answers)
        return self._store.trips.count.since(before)


@pytest.mark.parametrize("size", [1, 100])
async def test_a_cycle_costs_what_the_table_says(
    store: Store, store_kind: str, clock: VirtualClock, size: int
) -> None:
    till = Till(store, clock)
    await till.open()
    submitted = await till.submit(size)
    claimed, leases = await till.claim(size)
    costs = {"submit": submitted, "claim": claimed, "complete": await till.complete(leases)}
    told = [difference(store_kind, f"{verb}_{size}", cost) for verb, cost in costs.items()]
    assert "\n".join(filter(None, told)) == ""


async def test_renewing_costs_what_the_table_says(
    store: Store, store_kind: str, clock: VirtualClock
) -> None:
    till = Till(store, clock)
    await till.open()
    await till.submit(100)
    leases = (await till.claim(100))[1]
    clock.advance(TTL_MS // 3)
    assert difference(store_kind, "renew_100", await till.renew(leases)) == ""


async def test_hops_of_a_flow_cost_what_the_table_says(
    store: Store, store_kind: str, clock: VirtualClock
) -> None:
    """One end releases a hundred, and a hundred ends release one: each by a hint, as in life."""
    till = Till(store, clock)
    await till.open()
    store.hints.subscribe(till.engine.dispatcher.hear)
    # The first one is for what is opened or remembered at first use.
    await hops(till, flow_id(2))
    out, back = await hops(till, FLOW)
    told = [
        difference(store_kind, "fan_out_100", out),
        difference(store_kind, "fan_in_100", back),
    ]
    assert "\n".join(filter(None, told)) == ""


async def hops(till: Till, flow: FlowId) -> tuple[Count, Count]:
    """From one to a hundred, and from those to one."""
    submitted = await till.engine.flows.submit(fan(100, flow))
    assert submitted.created
    await till.engine.dispatcher.drain()
    await till.complete((await till.claim(1))[1])
    out = await till.hop()
    await till.complete((await till.claim(100))[1])
    back = await till.hop()
    await till.complete((await till.claim(1))[1])
    await till.hop()
    return out, back


def fan(width: int, flow: FlowId) -> Plan:
    names = list(range(1_000, 1_000 + width))
    edges = [Link(member("a", flow), member(name, flow)) for name in names]
    edges += [Link(member(name, flow), member("z", flow)) for name in names]
    return plan(["a", *names, "z"], edges, flow=flow)


async def nothing() -> None: ...


def test_an_idle_minute_costs_what_the_table_says(
    store_kind: str, clock: VirtualClock, tmp_path: Path
) -> None:
    """One worker and one engine with all its duties at their usual intervals, and nothing to do."""

    async def idle(loop: WarpLoop) -> Count:
        store = watched(open_store(store_url(store_kind, tmp_path / "idle.db"), clock=clock))
        loop.follow(store, clock)
        engine = Engine(store, clock=clock)
        await engine.open()
        # A store that listens to others has begun to before anybody could be woken by it.
        store.hints.subscribe(lambda _: None)
        await passed(1.0)
        worker = Worker(engine, {KIND: Handler(KIND, nothing)}, name=WORKER, lanes=[LANE])
        loops = duties(engine)
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            for each in loops:
                group.create_task(each.run())
                await passed(APART_SECONDS)
            await passed(SETTLE_SECONDS)
            before = store.trips.count
            await passed(MINUTE_SECONDS)
            spent = store.trips.count.since(before)
            worker.stop()
            for each in loops:
                each.stop()
        assert {each.name for each in loops} == {"timekeeper", "dispatcher", *CHORES}
        assert all(each.rounds > 1 and not each.failures for each in loops)
        await engine.close()
        return spent

    began_ms = clock.now_ms()
    spent = run_warped(idle)
    assert clock.now_ms() - began_ms >= (SETTLE_SECONDS + MINUTE_SECONDS) * 1000
    assert difference(store_kind, "idle_minute", spent) == ""
    assert spent.round_trips < 5 * MINUTE_SECONDS


def duties(engine: Engine) -> list[Loop]:
    """All that an engine does by itself."""
    shed = Shed(engine.store, engine.clock, Telemetry())
    timekeeper = Timekeeper(engine.store, engine.clock)
    engine.hints.subscribe(timekeeper.hear)
    engine.hints.subscribe(engine.dispatcher.hear)
    return [timekeeper.loop, engine.dispatcher.loop, *Janitor(shed).loops]


async def passed(seconds: float) -> None:
    """Until the loop's time has passed; no time of ours does."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, done.set_result, None)
    await done


def test_the_table_has_a_line_for_everything_and_nothing_else() -> None:
    assert {kind: set(costs) for kind, costs in expected().items()} == dict.fromkeys(
        expected(), MEASURED
    )
    assert {"memory", "sqlite"} <= set(expected())


@pytest.mark.parametrize(
    ("change", "word"), [(Count(1, 0), "more"), (Count(0, 1), "more"), (Count(-1, 0), "less")]
)
def test_a_rise_and_a_fall_are_told(change: Count, word: str) -> None:
    cost = expected()["sqlite"]["submit_100"]
    now = Count(cost.round_trips + change.round_trips, cost.statements + change.statements)
    assert difference("sqlite", "submit_100", Count(cost.round_trips, cost.statements)) == ""
    assert f"costs {word} on sqlite" in difference("sqlite", "submit_100", now)
    assert "no line under [other]" in difference("other", "submit_100", now)
