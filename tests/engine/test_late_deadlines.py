"""A deadline is relative to the moment of the call, however long the store is away."""

from __future__ import annotations

import pytest

from flowfabric import App
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.states import State
from flowfabric.errors import InvalidInput, StoreUnavailable
from flowfabric.testing.build import order
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import plan
from tests.engine.desk import Desk
from tests.flow.desk import FlowDesk

AWAY_MS = 5_000


def away(desk: Desk, verb: Verb, times: int = 1) -> FaultyStore:
    """A store that cannot be reached for a while, each time that it is asked."""

    async def outage() -> None:
        desk.clock.advance(AWAY_MS)
        raise StoreUnavailable("away")

    return FaultyStore(desk.store, [Fault(verb, 1, Kind.DELAY, times=times, hook=outage)])


@pytest.mark.parametrize("verb", [Verb.INSERT, Verb.LANES])
async def test_a_start_that_the_deadline_overtakes_says_that_the_store_was_away(
    desk: Desk, verb: Verb
) -> None:
    app = App(store=away(desk, verb))

    @app.task
    async def work() -> None: ...

    with pytest.raises(StoreUnavailable) as late:
        await work.options(deadline="3s").start()
    assert late.value.retryable
    handle = await work.options(deadline="3s").start()
    assert (await handle.status()).deadline_ms == desk.clock.now_ms() + 3_000
    await app.close()


async def test_an_order_that_the_deadline_overtakes(desk: Desk) -> None:
    engine = Desk(away(desk, Verb.INSERT), desk.clock).engine
    (answer,) = await engine.submit([order(deadline_ms=desk.clock.now_ms() + 3_000)])
    assert isinstance(answer.error, StoreUnavailable)


async def test_a_deadline_that_was_past_when_it_was_given_is_a_mistake(desk: Desk) -> None:
    engine = Desk(away(desk, Verb.INSERT), desk.clock).engine
    (answer,) = await engine.submit([order(deadline_ms=desk.clock.now_ms())])
    assert isinstance(answer.error, InvalidInput)
    assert answer.error.field == "deadline"


async def test_what_was_made_before_its_deadline_is_answered_after_it(desk: Desk) -> None:
    """Only the reply was lost: whoever asks again gets what is there."""

    async def slow() -> None:
        desk.clock.advance(AWAY_MS)

    lost = Fault(Verb.INSERT, 1, Kind.AFTER)
    then = Fault(Verb.INSERT, 2, Kind.DELAY, hook=slow)
    engine = Desk(FaultyStore(desk.store, [lost, then]), desk.clock).engine
    (answer,) = await engine.submit([order(deadline_ms=desk.clock.now_ms() + 3_000)])
    assert answer.error is None


async def test_a_delay_is_counted_from_the_call(desk: Desk) -> None:
    app = App(store=away(desk, Verb.INSERT))

    @app.task
    async def work() -> None: ...

    asked_ms = desk.clock.now_ms()
    handle = await work.options(delay="3s").start()
    assert (await desk.head(parse_execution_id(handle.id))).state is State.WAITING
    assert desk.clock.now_ms() == asked_ms + AWAY_MS
    await app.close()


async def test_a_flow_that_the_deadline_overtakes_is_cancelled_for_it(desk: Desk) -> None:
    flows = FlowDesk(away(desk, Verb.COMMIT_EACH), desk.clock)
    deadline_ms = desk.clock.now_ms() + 3_000
    await flows.draw(plan("ab", "a>b", deadline_ms=deadline_ms))
    await flows.dispatch()
    assert (await flows.states("ab")) == {"a": "cancelled", "b": "cancelled"}
