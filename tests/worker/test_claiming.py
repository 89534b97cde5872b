"""Claims: hints wake it, silence slows it down, and trouble with the store costs no work."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from flowfabric.core.model import Claim, Lease
from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.testing.build import TTL_MS, order
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.worker.idle import Idle
from tests.worker.floor import Floor


@pytest.mark.case("ER-020")
def test_the_pause_grows_to_its_limit_and_never_falls_below_the_first() -> None:
    idle = Idle(0.1, 2.0)
    pauses = [idle.next() for _ in range(8)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    idle.reset()
    assert [idle.next(), idle.next()] == [0.1, 0.2]


async def test_a_submit_wakes_an_idle_worker(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    # With a pause that does not end in this test, only the hint can wake it.
    monkeypatch.setattr("flowfabric.worker.worker.IDLE_SECONDS", (1_000.0, 1_000.0))

    @floor.task
    async def work() -> None: ...

    async with floor.working():
        for number in range(1, 4):
            await floor.submit("work")
            await floor.until(State.COMPLETED, number)


@pytest.mark.parametrize("times", [1, 2, 3, 4, 7])
async def test_a_lost_reply_to_a_claim_costs_nothing(
    floor: Floor, faulty: FaultyStore, times: int
) -> None:
    """The same leases are got again, however often the answer is lost, and run once."""
    ran: Counter[str] = Counter()

    @floor.task
    async def work(name: str) -> None:
        ran[name] += 1

    names = [f"job-{number}" for number in range(6)]
    ids = [await floor.submit("work", name) for name in names]
    faulty.plan.append(Fault(Verb.CLAIM, faulty.calls[Verb.CLAIM] + 1, Kind.AFTER, times=times))
    async with floor.working():
        await floor.until(State.COMPLETED, len(ids))
    assert ran == Counter(names)
    assert len(faulty.hit) == times
    for id in ids:
        assert await floor.kinds(id) == ["submitted", "claimed", "completed"]


async def test_a_claim_whose_answer_was_lost_is_repeated_with_its_token(
    floor: Floor, faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []
    claim = Engine.claim

    async def spy(self: Engine, *args: object, **kwargs: object) -> list[Lease]:
        asked.append((str(kwargs["token"]), bool(kwargs["repeated"])))
        return await claim(self, *args, **kwargs)  # type: ignore[arg-type]

    @floor.task
    async def work() -> None: ...

    await floor.submit("work")
    faulty.plan.append(Fault(Verb.CLAIM, faulty.calls[Verb.CLAIM] + 1, Kind.AFTER, times=3))
    monkeypatch.setattr(Engine, "claim", spy)
    async with floor.working():
        await floor.until(State.COMPLETED, 1)
        await floor.submit("work")
        await floor.until(State.COMPLETED, 2)
    assert [repeated for _, repeated in asked[:3]] == [False, True, False]
    assert asked[0][0] == asked[1][0] != asked[2][0]


@pytest.mark.parametrize("times", [3, 6])
async def test_a_store_that_is_away_for_a_while_is_waited_for(
    floor: Floor, faulty: FaultyStore, times: int
) -> None:
    @floor.task
    async def work() -> None: ...

    await floor.submit("work")
    faulty.plan.append(Fault(Verb.CLAIM, faulty.calls[Verb.CLAIM] + 1, Kind.BEFORE, times=times))
    async with floor.working():
        await floor.until(State.COMPLETED, 1)
    assert len(faulty.hit) == times


async def test_a_worker_outlives_errors_that_nobody_expected(
    floor: Floor, faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    @floor.task
    async def work() -> None: ...

    await floor.submit("work")
    faulty.plan.append(Fault(Verb.CLAIM, faulty.calls[Verb.CLAIM] + 1, Kind.TIMEOUT, times=2))
    with caplog.at_level(logging.ERROR, "flowfabric.worker"):
        async with floor.working():
            await floor.until(State.COMPLETED, 1)
    assert "claiming failed" in caplog.text


async def test_only_its_own_lanes_are_served(floor: Floor) -> None:
    @floor.task
    async def work() -> None: ...

    payload = floor.handlers["work"].encode_call((), {})
    other = order(99, kind="work", payload=payload, lane="elsewhere")
    await floor.engine.submit([other])
    await floor.submit("work")
    async with floor.working():
        await floor.until(State.COMPLETED, 1)
    assert (await floor.status(other.id)).public_state == "waiting"


async def test_nothing_is_claimed_while_all_slots_are_taken(
    floor: Floor, faulty: FaultyStore
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @floor.task
    async def work() -> None:
        started.set()
        await go_on.wait()

    await floor.submit_many("work", 3)
    async with floor.working(floor.worker(slots=1)):
        await started.wait()
        claims = faulty.calls[Verb.CLAIM]
        await floor.submit_many("work", 20)
        assert faulty.calls[Verb.CLAIM] == claims
        go_on.set()
        await floor.until(State.COMPLETED, 23)


async def test_a_claim_wakes_whoever_keeps_the_timers(floor: Floor) -> None:
    """The lease that begins has an end; nobody may first look for it many seconds later."""
    heard: list[int] = []

    @floor.task
    async def work() -> None: ...

    floor.engine.hints.subscribe(lambda hint: heard.append(hint.due_ms or 0))
    id = await floor.submit("work")
    async with floor.working():
        await floor.until(State.COMPLETED, 1)
    started_ms = (await floor.status(id)).started_ms
    assert started_ms is not None
    assert started_ms + TTL_MS in heard


async def test_work_that_is_claimed_too_late_is_not_begun(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[int] = []
    claim = floor.engine.store.claim

    async def slow(ask: Claim) -> list[Lease]:
        leases = await claim(ask)
        floor.clock.advance(TTL_MS * len(leases))
        return leases

    @floor.task
    async def work() -> None:
        began.append(1)

    id = await floor.submit("work")
    monkeypatch.setattr(floor.engine.store, "claim", slow)
    async with floor.working():
        await floor.until(State.ACTIVE, 1)
    assert began == []
    assert await floor.kinds(id) == ["submitted", "claimed"]


async def test_a_worker_cancelled_in_a_claim_hands_back_what_it_took(
    floor: Floor, faulty: FaultyStore
) -> None:
    @floor.task
    async def work() -> None: ...

    id = await floor.submit("work")
    faulty.plan.append(Fault(Verb.CLAIM, faulty.calls[Verb.CLAIM] + 1, Kind.CANCELLED))
    with pytest.raises(asyncio.CancelledError):
        await floor.worker().run()
    assert await floor.kinds(id) == ["submitted", "claimed", "released"]
