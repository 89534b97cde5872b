"""The supervisor: what crashes is started again and shows, what stops does so within a bound."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric import App
from flowfabric.core.states import PublicState
from flowfabric.engine import supervisor as supervising
from flowfabric.engine.duties import Duties
from flowfabric.engine.engine import Engine
from flowfabric.engine.janitor import CHORES
from flowfabric.engine.loop import Loop
from flowfabric.engine.supervisor import Supervisor
from flowfabric.engine.sweeping import Scope
from flowfabric.errors import InvalidInput
from flowfabric.store import open_store
from flowfabric.testing.build import order

HOUR_SECONDS = 3_600.0
OURS = {"demo.tenant": "ours"}


class Duty:
    """Rounds that do what they are told, and say that they were there."""

    def __init__(self, name: str = "sweeps") -> None:
        self.rounds: asyncio.Queue[int] = asyncio.Queue()
        self.count = 0
        self.raises: BaseException | None = None
        self.loop = Loop(name, self.run_once, every_seconds=HOUR_SECONDS)

    async def run_once(self) -> float:
        self.count += 1
        self.rounds.put_nowait(self.count)
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        return HOUR_SECONDS


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "RESTART_SECONDS", (0.001, 0.001))


async def test_a_loop_that_ends_by_itself_is_started_again_and_shows() -> None:
    duty, other = Duty(), Duty("other")
    duty.raises = asyncio.CancelledError()
    supervisor = Supervisor([duty.loop, other.loop])
    supervisor.start()
    async with asyncio.timeout(30):
        assert [await duty.rounds.get(), await duty.rounds.get()] == [1, 2]
        await other.rounds.get()
    crashed, fine = supervisor.health()
    assert (crashed.name, crashed.restarts, crashed.rounds) == ("sweeps", 1, 1)
    assert (fine.restarts, fine.rounds, fine.is_well, fine.lag_ms) == (0, 1, True, 0)
    assert await supervisor.stop(30) == []
    assert duty.count == 2


async def test_while_it_is_not_running_it_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "RESTART_SECONDS", (HOUR_SECONDS, HOUR_SECONDS))
    duty = Duty()
    duty.raises = asyncio.CancelledError()
    supervisor = Supervisor([duty.loop])
    supervisor.start()
    async with asyncio.timeout(30):
        while not supervisor.health()[0].restarts:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not supervisor.health()[0].is_well
    assert supervisor.health()[0].problem == "cancelled"
    async with asyncio.timeout(30):
        assert await supervisor.stop(30) == []


async def test_a_round_that_fails_shows_until_one_goes_well() -> None:
    duty = Duty()
    duty.raises = RuntimeError("out of luck")
    supervisor = Supervisor([duty.loop])
    supervisor.start()
    async with asyncio.timeout(30):
        await duty.rounds.get()
        await asyncio.sleep(0)
        (sick,) = supervisor.health()
        duty.loop.wake()
        await duty.rounds.get()
        await asyncio.sleep(0)
    (well,) = supervisor.health()
    assert (sick.is_well, sick.failures, sick.restarts) == (False, 1, 0)
    assert "out of luck" in sick.problem
    assert (well.is_well, well.failures, well.problem) == (True, 0, "")
    await supervisor.stop(30)


async def test_a_round_that_does_not_end_is_cut_off_and_named() -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    async def stuck() -> float:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cut off")
        return 0.0

    supervisor = Supervisor([Loop("stuck", stuck, every_seconds=HOUR_SECONDS), Duty().loop])
    supervisor.start()
    await begun.wait()
    assert supervisor.health()[0].lag_ms >= 0
    assert await supervisor.stop(0.01) == ["stuck"]
    assert ended == ["cut off"]


async def test_a_round_under_way_is_finished_before_the_stop_ends() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def slow() -> float:
        begun.set()
        await go_on.wait()
        ended.append("finished")
        return 0.0

    supervisor = Supervisor([Loop("slow", slow, every_seconds=HOUR_SECONDS)])
    supervisor.start()
    await begun.wait()
    stopping = asyncio.create_task(supervisor.stop(30))
    await asyncio.sleep(0)
    go_on.set()
    assert await stopping == []
    assert ended == ["finished"]


async def test_what_is_switched_off_is_not_started_and_not_shown() -> None:
    duty = Duty()
    off = Loop("off", duty.run_once, every_seconds=0)
    supervisor = Supervisor([off])
    supervisor.start()
    assert supervisor.health() == []
    assert await supervisor.stop(30) == []
    assert duty.count == 0


async def test_an_app_says_how_its_duties_are() -> None:
    app = App("memory://")
    assert app.health() == []
    async with app.running():
        names = [each.name for each in app.health()]
        assert names == ["timekeeper", "dispatcher", *CHORES]
    assert app.health() == []


async def test_a_sweeper_of_an_app_can_be_switched_off() -> None:
    app = App("memory://", intervals=dict.fromkeys(CHORES, 0))
    async with app.running():
        assert [each.name for each in app.health()] == ["timekeeper", "dispatcher"]


def test_an_interval_of_no_duty_is_refused() -> None:
    with pytest.raises(InvalidInput, match="retention_trimer"):
        App("memory://", intervals={"retention_trimer": "5m"})


async def test_the_duties_of_an_engine_serve_what_their_scope_names() -> None:
    engine = Engine(open_store("memory://"))
    await engine.open()
    later_ms = engine.clock.now_ms() + 20
    orders = [order(0, delay_until_ms=later_ms), order(1, delay_until_ms=later_ms, tags=OURS)]
    await engine.submit(orders)
    duties = Duties(engine, scope=Scope(tag=("demo.tenant", "ours")))
    duties.start()
    async with asyncio.timeout(30):
        while await engine.read.state(orders[1].id) is PublicState.DELAYED:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert await duties.stop(30) == []
    assert await engine.read.state(orders[0].id) is PublicState.DELAYED
    assert await engine.read.state(orders[1].id) is PublicState.WAITING
    await engine.close()
