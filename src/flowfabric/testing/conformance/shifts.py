"""Shifts: the turn of a duty is one engine's at a time, and goes on where the last one stopped."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.core.model import Shift
from flowfabric.errors import ClockSkew, IllegalTransition
from flowfabric.store.protocol import Store
from flowfabric.testing.clock import VirtualClock

NAME = "flow_projector"


async def test_nobody_has_a_shift_before_it_is_taken(store: Store, clock: VirtualClock) -> None:
    assert await store.shifts([], clock.now_ms()) == []


async def test_a_shift_is_one_owners_until_its_time_is_over(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    mine = Shift(NAME, "me", now_ms + 1_000, '{"at":"a b"}')
    assert await store.shifts([mine], now_ms) == [mine]
    clock.advance(999)
    theirs = Shift(NAME, "them", now_ms + 9_000)
    assert await store.shifts([theirs], clock.now_ms()) == [mine]
    clock.advance(1)
    taken = Shift(NAME, "them", now_ms + 9_000, mine.report)
    assert await store.shifts([theirs], clock.now_ms()) == [taken]


async def test_its_owner_writes_a_shift_at_any_time(store: Store, clock: VirtualClock) -> None:
    now_ms = clock.now_ms()
    await store.shifts([Shift(NAME, "me", now_ms + 9_000, "first")], now_ms)
    sooner = Shift(NAME, "me", now_ms + 1_000, "second")
    assert await store.shifts([sooner], now_ms) == [sooner]
    assert await store.shifts([sooner], now_ms) == [sooner]


async def test_every_shift_is_answered_by_name_and_taken_by_itself(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    held = Shift("b", "them", now_ms + 1_000)
    await store.shifts([held], now_ms)
    asked = [Shift(name, "me", now_ms + 5) for name in "cba"]
    assert await store.shifts(asked, now_ms) == [asked[2], held, asked[0]]


async def test_of_many_who_ask_at_once_one_gets_the_shift(
    store: Store, clock: VirtualClock
) -> None:
    now_ms = clock.now_ms()
    asks = [Shift(NAME, f"engine-{n}", now_ms + 1_000 + n) for n in range(8)]
    answers = await asyncio.gather(*(store.shifts([ask], now_ms) for ask in asks))
    got = [ask for ask, answer in zip(asks, answers, strict=True) if ask in answer]
    assert await store.shifts([], now_ms) == got
    assert len(got) == 1


async def test_a_shift_is_asked_for_once_in_a_call(store: Store, clock: VirtualClock) -> None:
    ask = Shift(NAME, "me", clock.now_ms())
    with pytest.raises(IllegalTransition):
        await store.shifts([ask, ask], clock.now_ms())


async def test_a_clock_that_is_off_takes_no_shift(store: Store, clock: VirtualClock) -> None:
    with pytest.raises(ClockSkew):
        await store.shifts([Shift(NAME, "me", 5)], clock.now_ms() + 501)
    assert await store.shifts([], clock.now_ms()) == []
