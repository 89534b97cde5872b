"""Joining calls: a lone one goes out at once, others gather while one is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from flowfabric.engine.batcher import Batcher


class Calls:
    """What went out, and a gate that holds each call back until it is opened."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self._begun = asyncio.Semaphore(0)
        if is_open:
            self.gate.set()

    async def run(self, items: Sequence[int]) -> Sequence[str | Exception]:
        self.batches.append(list(items))
        self._begun.release()
        await self.gate.wait()
        return [ValueError(str(item)) if item < 0 else str(item) for item in items]

    async def out(self, count: int) -> None:
        """Until so many calls have gone out."""
        async with asyncio.timeout(30):
            for _ in range(count):
                await self._begun.acquire()


async def test_a_lone_call_goes_out_at_once() -> None:
    calls = Calls(is_open=True)
    assert await Batcher(calls.run, limit=10).submit(1) == "1"
    assert calls.batches == [[1]]


async def test_calls_of_one_moment_go_out_together() -> None:
    calls = Calls(is_open=True)
    batcher = Batcher(calls.run, limit=10)
    assert await asyncio.gather(*(batcher.submit(n) for n in range(3))) == ["0", "1", "2"]
    assert calls.batches == [[0, 1, 2]]


async def test_calls_gather_while_one_is_under_way() -> None:
    calls = Calls()
    batcher = Batcher(calls.run, limit=10)
    first = batcher.submit(1)
    await calls.out(1)
    others = [batcher.submit(n) for n in (2, 3, 4)]
    await asyncio.sleep(0)
    assert calls.batches == [[1]]
    calls.gate.set()
    assert await asyncio.gather(first, *others) == ["1", "2", "3", "4"]
    assert calls.batches == [[1], [2, 3, 4]]


async def test_a_batch_has_a_limit() -> None:
    calls = Calls(is_open=True)
    batcher = Batcher(calls.run, limit=2)
    await asyncio.gather(*(batcher.submit(n) for n in range(5)))
    assert calls.batches == [[0, 1], [2, 3], [4]]


async def test_as_many_calls_are_under_way_as_allowed() -> None:
    calls = Calls()
    batcher = Batcher(calls.run, limit=1, in_flight=2)
    answers = [batcher.submit(n) for n in range(3)]
    await calls.out(2)
    await asyncio.sleep(0)
    assert calls.batches == [[0], [1]]
    calls.gate.set()
    assert await asyncio.gather(*answers) == ["0", "1", "2"]


async def test_little_gathers_beside_a_call_and_much_goes_out() -> None:
    calls = Calls()
    batcher = Batcher(calls.run, limit=4, in_flight=2)
    answers = [batcher.submit(0)]
    await calls.out(1)
    answers.append(batcher.submit(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert calls.batches == [[0]]
    answers.append(batcher.submit(2))
    await calls.out(1)
    assert calls.batches == [[0], [1, 2]]
    calls.gate.set()
    assert await asyncio.gather(*answers) == ["0", "1", "2"]


async def test_one_failing_item_does_not_fail_the_others() -> None:
    calls = Calls(is_open=True)
    batcher = Batcher(calls.run, limit=10)
    answers = await asyncio.gather(*(batcher.submit(n) for n in (1, -1, 2)), return_exceptions=True)
    assert (answers[0], answers[2]) == ("1", "2")
    assert isinstance(answers[1], ValueError)


async def test_a_failing_call_fails_its_own_items_and_the_next_goes_out() -> None:
    batches: list[list[int]] = []

    async def run(items: Sequence[int]) -> Sequence[str | Exception]:
        batches.append(list(items))
        if len(batches) == 1:
            raise OSError("down")
        return [str(item) for item in items]

    batcher = Batcher(run, limit=2)
    answers = await asyncio.gather(*(batcher.submit(n) for n in range(3)), return_exceptions=True)
    assert [isinstance(answer, OSError) for answer in answers] == [True, True, False]
    assert answers[2] == "2"


async def test_who_stops_waiting_spoils_nothing() -> None:
    calls = Calls()
    batcher = Batcher(calls.run, limit=10)
    patient, impatient = batcher.submit(1), batcher.submit(2)
    await calls.out(1)
    impatient.cancel()
    calls.gate.set()
    assert await patient == "1"
    assert await batcher.submit(3) == "3"


async def test_a_drain_waits_for_all_that_was_submitted() -> None:
    calls = Calls()
    batcher = Batcher(calls.run, limit=1)
    answers = [batcher.submit(n) for n in range(3)]
    await calls.out(1)
    draining = asyncio.create_task(batcher.drain())
    calls.gate.set()
    async with asyncio.timeout(30):
        await draining
    assert [answer.result() for answer in answers] == ["0", "1", "2"]
    await batcher.drain()


async def test_a_cancelled_call_cancels_those_who_wait_for_it() -> None:
    async def run(items: Sequence[int]) -> Sequence[str | Exception]:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Batcher(run, limit=10).submit(1)


async def test_what_weighs_too_much_for_one_call_goes_alone_or_later() -> None:
    calls = Calls(is_open=True)
    batcher = Batcher(calls.run, limit=10, weigh=lambda item: item)
    assert await asyncio.gather(*map(batcher.submit, (4, 6, 1, 12, 3))) == [
        *("4", "6", "1", "12", "3")
    ]
    assert calls.batches == [[4, 6], [1], [12], [3]]
