"""Flows in trouble: how long each is put off, when it is parked, and whose lease is given back."""

from __future__ import annotations

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.model import Value
from flowfabric.core.states import State
from flowfabric.core.timers import POISON_LIMIT, POISON_PAUSE_MAX_MS
from flowfabric.core.transition import Changeset
from flowfabric.engine import telemetry
from flowfabric.errors import Corrupt
from flowfabric.store import Store
from flowfabric.testing import Verb
from flowfabric.testing.flows import FLOW, links, plan
from tests.flow.desk import FlowDesk
from tests.flow.watched import Meddler, Refusing

PAUSES_MS = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000]


async def test_a_flow_that_always_fails_waits_longer_each_time_and_is_parked(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    broken = Refusing(desk.store, Verb.COMMIT_EACH, Corrupt("it is broken"), times=99)
    other = FlowDesk(broken, desk.clock)
    pauses: list[int] = []
    for failures in range(1, 13):
        await other.dispatch()
        flow = await desk.flow()
        assert (flow.failures, flow.busy_until_ms) == (failures, 0)
        assert flow.parked == ("it is broken" if failures == 12 else "")
        pauses.append(flow.next_try_ms - desk.clock.now_ms())
        # Until then it is nobody's turn.
        desk.clock.advance(pauses[-1] - 1)
        await other.dispatch()
        assert (await desk.flow()).failures == failures
        desk.clock.advance(1)
    assert pauses == [*PAUSES_MS, 300_000, 300_000]
    assert other.dispatcher.counts.value(telemetry.FAILURES) == 12
    desk.clock.advance(10**9)
    await desk.dispatch()
    assert (await desk.flow()).failures == 12
    assert await desk.state("b") is State.BLOCKED_DEPENDENCIES


async def test_a_change_that_was_written_takes_a_flow_out_of_its_trouble(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    flow = await desk.flow()
    trouble: dict[str, Value] = {
        "failures": POISON_LIMIT,
        "next_try_ms": desk.clock.now_ms() + POISON_PAUSE_MAX_MS,
        "parked": "it is broken",
    }
    changes = Changeset(flows=[FlowPatch(FLOW, flow.rev, trouble)])
    assert await desk.store.commit(changes, desk.clock.now_ms())
    await desk.end("a")
    await desk.dispatch()
    assert await desk.counters() == {}
    await desk.engine.flows.build.link(FLOW, links("a>b")[0])
    flow = await desk.flow()
    assert (flow.failures, flow.next_try_ms, flow.parked) == (0, 0, "")
    await desk.dispatch()
    assert await desk.counters() == {"completed": 1}


class Rival(Meddler):
    """Somebody else changes the flow three times, and with the last time leases it."""

    def __init__(self, inner: Store, until_ms: int) -> None:
        super().__init__(inner, 3)
        self._until_ms = until_ms

    def patch(self) -> dict[str, Value]:
        return {} if self.times else {"busy_until_ms": self._until_ms}


async def test_a_flow_that_others_keep_changing_is_given_back(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    await FlowDesk(Meddler(desk.store, 3), desk.clock).dispatcher.run_once()
    flow = await desk.flow()
    assert (flow.completed, flow.busy_until_ms) == (0, desk.clock.now_ms() + 20)


async def test_the_lease_of_somebody_else_is_not_given_back(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")
    theirs_ms = desk.clock.now_ms() + 3_333
    await FlowDesk(Rival(desk.store, theirs_ms), desk.clock).dispatcher.run_once()
    flow = await desk.flow()
    assert (flow.completed, flow.busy_until_ms) == (0, theirs_ms)
