"""Loops: when the next round comes, what wakes them, and what failures do."""

from __future__ import annotations

import asyncio
import logging

import pytest

from flowfabric.engine import loop as module
from flowfabric.engine.loop import AGAIN, Loop


class Rounds:
    """Does as it is told, round by round, and stops the loop when nothing is left to do."""

    def __init__(self, *plan: float | Exception) -> None:
        self.loop = Loop("test", self.run_once, every_seconds=3_600.0)
        self.done = 0
        self.begun = asyncio.Event()
        self._plan = list(plan)

    async def run_once(self) -> float:
        self.done += 1
        self.begun.set()
        step = self._plan.pop(0)
        if not self._plan:
            self.loop.stop()
        if isinstance(step, Exception):
            raise step
        return step


async def run(loop: Loop) -> None:
    async with asyncio.timeout(30):
        await loop.run()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the loop would have slept, without sleeping."""
    slept: list[float] = []

    async def sleep(self: Loop, seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(Loop, "_sleep", sleep)
    return slept


async def test_a_round_that_wants_to_go_on_goes_on_at_once(pauses: list[float]) -> None:
    rounds = Rounds(AGAIN, AGAIN, AGAIN, 5.0)
    await run(rounds.loop)
    assert (rounds.done, pauses) == (4, [])


async def test_a_loop_sleeps_as_long_as_the_round_said_and_never_longer_than_its_net(
    pauses: list[float],
) -> None:
    rounds = Rounds(0.25, 7_200.0, AGAIN)
    await run(rounds.loop)
    assert pauses == [0.25, 3_600.0]


async def test_rounds_that_never_wait_let_others_run() -> None:
    others: list[int] = []

    async def other() -> None:
        others.append(1)
        loop.stop()

    async def run_once() -> float:
        return AGAIN

    loop = Loop("busy", run_once, every_seconds=1.0)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(loop.run())
        group.create_task(other())
    assert others == [1]


async def test_failures_back_off_are_counted_and_told(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    failing = [ValueError(str(number)) for number in range(12)]
    rounds = Rounds(*failing, 1.0, AGAIN)
    with caplog.at_level(logging.ERROR, "flowfabric.loop"):
        await run(rounds.loop)
    least, most = module.BACKOFF_SECONDS
    assert pauses[:12] == [min(least * 2**number, most) for number in range(12)]
    assert [record.__dict__["failures"] for record in caplog.records] == list(range(1, 13))
    assert rounds.loop.failures == 0


async def test_after_a_good_round_failures_begin_anew(pauses: list[float]) -> None:
    rounds = Rounds(ValueError("a"), ValueError("b"), 1.0, ValueError("c"), AGAIN)
    await run(rounds.loop)
    least = module.BACKOFF_SECONDS[0]
    assert pauses == [least, 2 * least, 1.0, least]


async def test_a_wake_ends_the_sleep() -> None:
    rounds = Rounds(3_600.0, AGAIN)
    running = asyncio.create_task(run(rounds.loop))
    await rounds.begun.wait()
    rounds.loop.wake()
    await running
    assert rounds.done == 2


async def test_a_wake_during_a_round_is_not_lost() -> None:
    class Waking(Rounds):
        async def run_once(self) -> float:
            self.loop.wake()
            return await super().run_once()

    rounds = Waking(3_600.0, AGAIN)
    await run(rounds.loop)
    assert rounds.done == 2


async def test_a_stop_lets_the_round_finish() -> None:
    begun, go_on, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run_once() -> float:
        begun.set()
        await go_on.wait()
        finished.set()
        return 3_600.0

    loop = Loop("slow", run_once, every_seconds=3_600.0)
    running = asyncio.create_task(run(loop))
    await begun.wait()
    loop.stop()
    go_on.set()
    await running
    assert finished.is_set()


async def test_a_sleep_ends_by_itself() -> None:
    rounds = Rounds(0.001, AGAIN)
    await run(rounds.loop)
    assert rounds.done == 2
