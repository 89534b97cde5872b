"""Trying again: a clock that is off is set, trouble borne three times, slowness a little longer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowfabric.engine import conflict
from flowfabric.engine.conflict import LATE_PAUSES_SECONDS, PAUSES_SECONDS, persistently
from flowfabric.errors import ClockSkew, StoreUnavailable
from flowfabric.store.clock import FollowingClock
from flowfabric.testing.clock import VirtualClock


class Call:
    """Fails so many times before it answers, and remembers what it was told."""

    def __init__(self, error: Callable[[], StoreUnavailable], times: int) -> None:
        self._error = error
        self._left = times
        self.told: list[bool] = []

    async def __call__(self, is_repeated: bool) -> str:
        self.told.append(is_repeated)
        self._left -= 1
        if self._left >= 0:
            raise self._error()
        return "answered"


@pytest.fixture
def local(clock: VirtualClock) -> FollowingClock:
    return FollowingClock(clock)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflict, "PAUSES_SECONDS", (0.0,) * len(PAUSES_SECONDS))
    monkeypatch.setattr(conflict, "LATE_PAUSES_SECONDS", (0.0,) * len(LATE_PAUSES_SECONDS))


def off(local: FollowingClock, by_ms: int) -> ClockSkew:
    """The store's clock is by so much ahead of the caller's, and the call took no time."""
    now_ms = local.arriving_ms()
    return ClockSkew.between(now_ms + by_ms, now_ms)


def late(local: FollowingClock, clock: VirtualClock, under_way_ms: int) -> ClockSkew:
    """The call was under way for so long, and the clocks agree."""
    sent_ms = local.arriving_ms()
    return ClockSkew.between(clock.advance(under_way_ms), sent_ms)


@pytest.mark.parametrize("by_ms", [781, -781])
async def test_a_clock_that_was_off_is_set(
    local: FollowingClock, clock: VirtualClock, by_ms: int
) -> None:
    call = Call(lambda: off(local, by_ms), 1)
    assert await persistently(local, call) == "answered"
    assert local.now_ms() == clock.now_ms() + by_ms
    assert local.arriving_ms() == local.now_ms()
    assert call.told == [False, False]


@pytest.mark.parametrize("code", ["clock_skew", "transport"])
async def test_trouble_is_borne_three_times(local: FollowingClock, code: str) -> None:
    errors: list[StoreUnavailable] = []

    def trouble() -> StoreUnavailable:
        errors.append(off(local, -781) if code == "clock_skew" else StoreUnavailable("away"))
        return errors[-1]

    call = Call(trouble, 3)
    with pytest.raises(StoreUnavailable) as raised:
        await persistently(local, call)
    assert raised.value is errors[2]
    assert len(call.told) == 3


async def test_a_call_that_was_only_late_sets_no_clock_and_is_made_again_as_a_repeated_one(
    local: FollowingClock, clock: VirtualClock
) -> None:
    call = Call(lambda: late(local, clock, 700), 5)
    assert await persistently(local, call) == "answered"
    assert local.now_ms() == clock.now_ms()
    assert call.told == [False, True, True, True, True, True]


async def test_a_late_call_tells_how_long_the_next_one_will_take(
    local: FollowingClock, clock: VirtualClock
) -> None:
    """What is compared is the time at which a call arrives; a road that is long is no skew."""
    await persistently(local, Call(lambda: late(local, clock, 9_000), 1))
    sent_ms = local.arriving_ms()
    assert sent_ms == clock.advance(9_000)
    # The road is short again: the clock is as right as before.
    await persistently(local, Call(lambda: late(local, clock, 20), 1))
    assert local.now_ms() == clock.now_ms()
    assert local.arriving_ms() == clock.now_ms() + 20


@pytest.mark.parametrize("off_ms", [-5_000, 5_000])
async def test_a_clock_that_is_off_is_found_also_by_late_calls(
    clock: VirtualClock, off_ms: int
) -> None:
    local = FollowingClock(Off(clock, off_ms))
    await persistently(local, Call(lambda: late(local, clock, 800), 2))
    assert abs(local.now_ms() - clock.now_ms()) <= 400


class Off:
    def __init__(self, clock: VirtualClock, off_ms: int) -> None:
        self._clock = clock
        self._off_ms = off_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._off_ms


async def test_a_store_that_stays_slow_is_told_as_slow(
    local: FollowingClock, clock: VirtualClock
) -> None:
    with pytest.raises(StoreUnavailable, match=r"slowly \(0\.7 s\)") as raised:
        await persistently(local, Call(lambda: late(local, clock, 700), 6))
    assert raised.value.code == StoreUnavailable.code
