"""Outcomes are stored in batches, kept while the store is away, and spoil no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.core.states import State
from flowfabric.engine.direct_ends import Followed
from flowfabric.engine.engine import Engine
from flowfabric.engine.outcomes import Completed, Failed, Finished, Follow, Outcome
from flowfabric.testing.build import TTL_MS
from flowfabric.testing.faults import Fault, FaultyStore, Kind, Verb
from flowfabric.worker.finisher import Finisher
from tests.worker.floor import PATIENCE_SECONDS, Floor, eventually

CLOSING_SECONDS = 20.0


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.worker.finisher.PAUSE_SECONDS", (0.001, 0.002))


class Desk:
    """A finisher, and what it told."""

    def __init__(self, engine: Engine) -> None:
        self.told: list[Finished] = []
        self.batches: list[int] = []
        self.finisher = Finisher(engine, self._hear, lambda _: None)

    def _hear(self, outcomes: Sequence[Outcome], followed: Followed, follow: Follow | None) -> None:
        answers = followed.answers
        assert follow is None
        assert [outcome.lease.id for outcome in outcomes] == [answer.id for answer in answers]
        self.batches.append(len(outcomes))
        self.told.extend(answers)

    @asynccontextmanager
    async def open(self, closing_seconds: float = CLOSING_SECONDS) -> AsyncIterator[Finisher]:
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            group.create_task(self.finisher.run())
            yield self.finisher
            self.finisher.close(closing_seconds)


async def held(floor: Floor, count: int) -> list[Lease]:
    @floor.task
    async def work() -> None: ...

    await floor.submit_many("work", count)
    return await floor.claim(count)


def break_apply(faulty: FaultyStore, kind: Kind, times: int = 1) -> None:
    faulty.plan.append(Fault(Verb.APPLY, faulty.calls[Verb.APPLY] + 1, kind, times=times))


async def test_what_gathers_during_a_call_goes_out_in_the_next(
    floor: Floor, faulty: FaultyStore
) -> None:
    leases = await held(floor, 60)
    desk, reached, go_on = Desk(floor.engine), asyncio.Event(), asyncio.Event()

    async def slowly() -> None:
        reached.set()
        await go_on.wait()

    before = faulty.calls[Verb.APPLY]
    faulty.plan.append(Fault(Verb.APPLY, before + 1, Kind.DELAY, hook=slowly))
    async with desk.open() as finisher:
        finisher.finish(Completed(leases[0], b"0"))
        await reached.wait()
        for lease in leases[1:]:
            finisher.finish(Completed(lease, b"1"))
        go_on.set()
    assert desk.batches == [1, 59]
    assert faulty.calls[Verb.APPLY] - before == 2
    assert await floor.count(State.COMPLETED) == 60


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER, Kind.TIMEOUT])
@pytest.mark.parametrize("times", [1, 3, 8])
async def test_an_outcome_is_kept_until_the_store_is_back(
    floor: Floor, faulty: FaultyStore, kind: Kind, times: int
) -> None:
    leases = await held(floor, 3)
    desk = Desk(floor.engine)
    break_apply(faulty, kind, times)
    async with desk.open() as finisher:
        for lease in leases:
            finisher.finish(Completed(lease, b'"kept"'))
    assert len(faulty.hit) == times
    assert [answer.error for answer in desk.told] == [None] * 3
    for lease in leases:
        assert await floor.engine.read.result(lease.id) == b'"kept"'
        assert await floor.kinds(lease.id) == ["submitted", "claimed", "completed"]


async def test_there_is_no_room_while_the_store_is_away(floor: Floor, faulty: FaultyStore) -> None:
    (lease,) = await held(floor, 1)
    desk = Desk(floor.engine)
    break_apply(faulty, Kind.BEFORE, times=1_000_000)
    async with desk.open() as finisher:
        assert finisher.has_room
        finisher.finish(Completed(lease, b"1"))
        await eventually(lambda: _is_stuck(finisher))
        faulty.plan.clear()
    assert finisher.has_room
    assert await floor.count(State.COMPLETED) == 1


async def _is_stuck(finisher: Finisher) -> bool:
    return not finisher.has_room


async def test_a_worker_claims_nothing_while_outcomes_cannot_be_stored(
    floor: Floor, faulty: FaultyStore
) -> None:
    ran: list[int] = []

    @floor.task
    async def work() -> None:
        ran.append(len(ran))

    await floor.submit("work")
    break_apply(faulty, Kind.BEFORE, times=1_000_000)
    async with floor.working(worker := floor.worker(slots=5)):
        await eventually(lambda: _is_stuck(worker._finisher))
        claims = faulty.calls[Verb.CLAIM]
        await floor.submit_many("work", 20)
        assert faulty.calls[Verb.CLAIM] <= claims + 1
        assert len(ran) <= 5
        faulty.plan.clear()
        await floor.until(State.COMPLETED, 21)
    assert len(ran) == 21


async def test_an_outcome_that_comes_too_late_is_refused(floor: Floor, faulty: FaultyStore) -> None:
    (lease,) = await held(floor, 1)
    desk = Desk(floor.engine)
    floor.clock.advance(TTL_MS)
    async with desk.open() as finisher:
        finisher.finish(Completed(lease, b"1"))
    assert [answer.error.code for answer in desk.told if answer.error] == ["lease_expired"]


class Poisoned(Engine):
    """An engine that breaks on one outcome, as a bug would."""

    poison = ""

    async def finish_and_follow(
        self, outcomes: Sequence[Outcome], follow: Follow | None = None
    ) -> Followed:
        if any(outcome.lease.id == self.poison for outcome in outcomes):
            raise ZeroDivisionError("a bug")
        return await super().finish_and_follow(outcomes, follow)


async def test_one_outcome_that_breaks_everything_spoils_no_other(
    floor: Floor, faulty: FaultyStore
) -> None:
    leases = await held(floor, 5)
    engine = Poisoned(faulty, clock=floor.clock)
    engine.poison = leases[2].id
    desk = Desk(engine)
    async with desk.open() as finisher:
        for lease in leases:
            finisher.finish(Completed(lease, b"1"))
    assert await floor.count(State.COMPLETED) == 4
    (bad,) = [answer for answer in desk.told if answer.error is not None]
    assert bad.id == leases[2].id
    assert "a bug" in str(bad.error)


async def test_one_refused_outcome_spoils_no_other(floor: Floor) -> None:
    leases = await held(floor, 3)
    await floor.engine.cancel(leases[1].id)
    desk = Desk(floor.engine)
    async with desk.open() as finisher:
        for lease in leases:
            finisher.finish(Failed(lease, Failure("broke")))
    errors = {answer.id: answer.error for answer in desk.told}
    assert errors[leases[0].id] is errors[leases[2].id] is None
    assert errors[leases[1].id] is not None
    assert await floor.count(State.FAILED) == 2


async def test_closing_is_bounded(floor: Floor, faulty: FaultyStore) -> None:
    leases = await held(floor, 2)
    desk = Desk(floor.engine)
    break_apply(faulty, Kind.BEFORE, times=1_000_000)
    async with desk.open(closing_seconds=0) as finisher:
        for lease in leases:
            finisher.finish(Completed(lease, b"1"))
    assert len(desk.told) == 2
    assert all("could not store" in str(answer.error) for answer in desk.told)
    # Nothing is lost with it: the lease runs out and the work is done again.
    floor.clock.advance(TTL_MS)
    faulty.plan.clear()
    await floor.timekeeper.run_once()
    assert len(await floor.claim()) == 2
