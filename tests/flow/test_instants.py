"""Every timer fires at its instant: whoever keeps it sleeps until then, not until the next poll."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import FlowState, Line
from flowfabric.core.model import Value
from flowfabric.core.states import State
from flowfabric.core.timers import Duty
from flowfabric.core.transition import Changeset
from flowfabric.engine.dispatcher import LEASE_MS, Dispatcher
from flowfabric.engine.loop import AGAIN
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.store import Store
from flowfabric.testing.build import order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import FLOW, plan
from tests.engine.test_timekeeper import BECOMES, due_for
from tests.flow.desk import BROKEN, FlowDesk

SOON_MS = 2_345
RETRIED = policy(retries=1, pause_ms=SOON_MS)


async def after(round_of: Callable[[], Awaitable[float]], clock: VirtualClock) -> int:
    """The instant until which a loop sleeps when there is nothing left to do now."""
    while (pause := await round_of()) == AGAIN:
        pass
    return clock.now_ms() + round(pause * 1000)


# -- timers of executions ---------------------------------------------------------------------


@pytest.mark.parametrize("duty", Duty)
async def test_timers_of_executions(desk: FlowDesk, duty: Duty) -> None:
    id = await due_for(desk, duty, in_ms=999)
    due_ms = desk.clock.now_ms() + 999
    keeper = Timekeeper(desk.store, desk.engine.clock)
    assert await after(keeper._round, desk.clock) == due_ms
    desk.clock.set(due_ms)
    await keeper._round()
    assert (await desk.head(id)).state is BECOMES[duty][0]


async def test_a_retry_after_its_pause(desk: FlowDesk) -> None:
    lease = await desk.running(order(policy=RETRIED))
    await desk.engine.fail(lease, msgspec.structs.replace(BROKEN, fatal=False))
    due_ms = (await desk.head(lease.id)).not_before_ms
    assert due_ms is not None
    keeper = Timekeeper(desk.store, desk.engine.clock)
    assert await after(keeper._round, desk.clock) == due_ms
    desk.clock.set(due_ms)
    await keeper._round()
    assert (await desk.head(lease.id)).state is State.WAITING


async def test_a_timer_that_is_heard_of(desk: FlowDesk) -> None:
    keeper = desk.timekeeper
    await after(keeper._round, desk.clock)
    desk.store.hints.subscribe(keeper.hear)
    due_ms = desk.clock.now_ms() + SOON_MS
    await desk.submit(order(delay_until_ms=due_ms))
    assert keeper.loop._woken.is_set()
    assert await after(keeper._round, desk.clock) == due_ms


# -- timers of flows --------------------------------------------------------------------------


class Kind(msgspec.Struct, frozen=True):
    """How the timer is set, and what is so when it has fired."""

    set: Callable[[FlowDesk, int], Awaitable[int]]
    has_fired: Callable[[FlowDesk], Awaitable[bool]]


async def deadline(desk: FlowDesk, at_ms: int) -> int:
    await desk.draw(plan("ab", "a>b", deadline_ms=at_ms))
    return at_ms


async def line_put_back(desk: FlowDesk, at_ms: int) -> int:
    await _ended(desk)
    (line,) = await desk.lines()
    await _write(desk, {}, [msgspec.structs.replace(line, next_try_ms=at_ms, failures=1)])
    return at_ms


async def flow_put_back(desk: FlowDesk, at_ms: int) -> int:
    await _ended(desk)
    await _write(desk, {"next_try_ms": at_ms, "failures": 1})
    return at_ms


async def lease_of_one_who_died(desk: FlowDesk, at_ms: int) -> int:
    await _ended(desk)
    await Dispatcher(desk.store, desk.engine.clock)._take([FLOW])
    return desk.clock.now_ms() + LEASE_MS


async def deadline_of_one_who_died(desk: FlowDesk, at_ms: int) -> int:
    await desk.draw(plan("ab", "a>b", deadline_ms=desk.clock.now_ms() + 1))
    desk.clock.advance(1)
    await Dispatcher(desk.store, desk.engine.clock)._take([FLOW])
    return desk.clock.now_ms() + LEASE_MS


async def staged_deadline(desk: FlowDesk, at_ms: int) -> int:
    await desk.draw(plan(["a", "b", *range(1_000, 1_600)], "a>b", deadline_ms=at_ms))
    await desk.dispatch()
    return at_ms


async def _ended(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.end("a")


async def _write(desk: FlowDesk, patch: dict[str, Value], lines: Sequence[Line] = ()) -> None:
    flow = await desk.flow()
    changes = Changeset(flows=[FlowPatch(FLOW, flow.rev, patch)], lines=lines)
    assert await desk.store.commit(changes, desk.clock.now_ms())


async def is_released(desk: FlowDesk) -> bool:
    return await desk.state("b") is State.WAITING


async def is_cancelled(desk: FlowDesk) -> bool:
    state = (await desk.flow()).state
    return state is FlowState.CANCELLED and await desk.state("a") is State.CANCELLED


KINDS = {
    "deadline": Kind(deadline, is_cancelled),
    "deadline of a big flow": Kind(staged_deadline, is_cancelled),
    "line put back": Kind(line_put_back, is_released),
    "flow put back": Kind(flow_put_back, is_released),
    "lease of one who died": Kind(lease_of_one_who_died, is_released),
    "deadline of one who died": Kind(deadline_of_one_who_died, is_cancelled),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_timers_of_flows(desk: FlowDesk, kind: str) -> None:
    """Also of flows that another process has written."""
    at_ms = await KINDS[kind].set(desk, desk.clock.now_ms() + SOON_MS)
    dispatcher = Dispatcher(desk.store, desk.engine.clock)
    assert await after(dispatcher._round, desk.clock) == at_ms
    desk.clock.set(at_ms - 1)
    await dispatcher._round()
    assert not await KINDS[kind].has_fired(desk)
    desk.clock.set(at_ms)
    await dispatcher._round()
    assert await KINDS[kind].has_fired(desk)


@pytest.mark.parametrize("kind", KINDS)
async def test_timers_of_flows_that_are_heard_of(desk: FlowDesk, kind: str) -> None:
    dispatcher = Dispatcher(desk.store, desk.engine.clock)
    await after(dispatcher._round, desk.clock)
    desk.store.hints.subscribe(dispatcher.hear)
    at_ms = await KINDS[kind].set(desk, desk.clock.now_ms() + SOON_MS)
    assert dispatcher.loop._woken.is_set()
    while (wake_ms := await after(dispatcher._round, desk.clock)) < at_ms:
        # Another dispatcher holds what was heard of: it is asked for again until that lets go.
        desk.clock.set(wake_ms)
    assert wake_ms == at_ms or (dispatcher._hinted and wake_ms < at_ms + 100)
    desk.clock.set(wake_ms)
    await dispatcher._round()
    assert await KINDS[kind].has_fired(desk)


async def test_what_waits_for_nothing_is_looked_at_now_and_then(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    assert await desk.store.next_turn(desk.clock.now_ms()) is None


async def test_a_parked_flow_has_no_turn(desk: FlowDesk, store: Store) -> None:
    at_ms = await flow_put_back(desk, desk.clock.now_ms() + SOON_MS)
    await _write(desk, {"parked": "broken"})
    assert await store.next_turn(at_ms - 1) is None
