"""Trying again: a clock that is off is set, trouble borne three times, slowness a little longer."""

from __future__ import annotations

import pytest

from flowfabric.engine import conflict
from flowfabric.engine.conflict import LATE_PAUSES_SECONDS, PAUSES_SECONDS, persistently
from flowfabric.errors import ClockSkew, StoreUnavailable
from flowfabric.store.clock import FollowingClock
from flowfabric.testing.clock import VirtualClock


class Call:
    """Fails so many times before it answers, and remembers what it was told."""

    def __init__(self, error: StoreUnavailable, times: int) -> None:
        self._error = error
        self._left = times
        self.told: list[bool] = []

    async def __call__(self, is_repeated: bool) -> str:
        self.told.append(is_repeated)
        self._left -= 1
        if self._left >= 0:
            raise self._error
        return "answered"


@pytest.fixture
def local(clock: VirtualClock) -> FollowingClock:
    return FollowingClock(clock)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflict, "PAUSES_SECONDS", (0.0,) * len(PAUSES_SECONDS))
    monkeypatch.setattr(conflict, "LATE_PAUSES_SECONDS", (0.0,) * len(LATE_PAUSES_SECONDS))


def skew(clock: VirtualClock, by_ms: int = 781) -> ClockSkew:
    now_ms = clock.now_ms()
    return ClockSkew.between(now_ms + by_ms, now_ms)


async def test_a_clock_that_was_off_is_set(local: FollowingClock, clock: VirtualClock) -> None:
    call = Call(skew(clock), 1)
    assert await persistently(local, call) == "answered"
    assert local.now_ms() == clock.now_ms() + 781
    assert call.told == [False, False]


@pytest.mark.parametrize("code", ["clock_skew", "transport"])
async def test_trouble_is_borne_three_times(
    local: FollowingClock, clock: VirtualClock, code: str
) -> None:
    error = skew(clock) if code == "clock_skew" else StoreUnavailable("away")
    call = Call(error, 3)
    with pytest.raises(StoreUnavailable) as raised:
        await persistently(local, call)
    assert raised.value is error
    assert len(call.told) == 3


async def test_a_call_that_arrived_late_is_made_again_as_a_repeated_one(
    local: FollowingClock, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflict, "LATE_SECONDS", 0.0)
    call = Call(skew(clock), 5)
    assert await persistently(local, call) == "answered"
    assert call.told == [False, True, True, True, True, True]


async def test_a_store_that_stays_slow_is_told_as_slow(
    local: FollowingClock, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflict, "LATE_SECONDS", 0.0)
    with pytest.raises(StoreUnavailable, match="to arrive") as raised:
        await persistently(local, Call(skew(clock), 6))
    assert raised.value.code == StoreUnavailable.code
