"""Time never goes back, and never stands still either."""

from __future__ import annotations

import pytest

from flowfabric.errors import ClockSkew
from flowfabric.store.clock import (
    SKEW_LIMIT_MS,
    FollowingClock,
    SteadyClock,
    SystemClock,
    arriving_ms,
)
from flowfabric.testing.clock import VirtualClock

SECOND = 1_000_000_000


class Machine:
    """A machine whose wall clock can be set while its steady clock goes on."""

    def __init__(self) -> None:
        self.wall_ns = 1_000 * SECOND
        self.steady_ns = 0

    def pass_seconds(self, seconds: int) -> None:
        self.wall_ns += seconds * SECOND
        self.steady_ns += seconds * SECOND

    def clock(self) -> SystemClock:
        return SystemClock(lambda: self.wall_ns, lambda: self.steady_ns)


def test_the_clock_follows_the_machine() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.now_ms() == 1_000_000
    machine.pass_seconds(7)
    assert clock.now_ms() == 1_007_000


@pytest.mark.parametrize(("set_seconds", "pace"), [(-100, 9), (100, 11)])
def test_a_machine_whose_clock_is_set_is_followed_slowly(set_seconds: int, pace: int) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ns += set_seconds * SECOND
    assert clock.now_ms() == 1_000_000
    machine.pass_seconds(20)
    assert clock.now_ms() == 1_000_000 + 2_000 * pace
    machine.pass_seconds(980)
    assert clock.now_ms() == machine.wall_ns // 1_000_000
    machine.pass_seconds(1)
    assert clock.now_ms() == machine.wall_ns // 1_000_000


def test_a_clock_that_is_set_again_and_again_never_goes_back() -> None:
    machine = Machine()
    clock = machine.clock()
    last_ms = clock.now_ms()
    for step in range(200):
        machine.wall_ns += (-1) ** step * step * SECOND
        machine.steady_ns += 7_000_000 * (step % 5)
        assert clock.now_ms() >= last_ms
        last_ms = clock.now_ms()


def test_a_following_clock_keeps_the_distance_that_the_store_told() -> None:
    local = VirtualClock(5_000)
    clock = FollowingClock(local)
    clock.follow(9_000)
    assert clock.now_ms() == 9_000
    local.advance(250)
    assert clock.now_ms() == 9_250


def test_an_answer_that_was_long_under_way_sets_no_clock_that_may_be_right() -> None:
    local = VirtualClock(5_000)
    clock = FollowingClock(local)
    asked_ms = clock.now_ms()
    local.advance(3_000)
    clock.follow(5_100, asked_ms)
    assert clock.now_ms() == 8_000


def test_a_clock_that_is_off_is_set_to_the_middle_of_the_round_trip() -> None:
    local = VirtualClock(5_000)
    clock = FollowingClock(local)
    asked_ms = clock.now_ms()
    local.advance(100)
    clock.follow(9_000, asked_ms)
    assert clock.now_ms() == 9_050


def test_a_steady_clock_does_not_care_for_a_machine_whose_clock_is_set() -> None:
    machine = Machine()
    clock = SteadyClock(lambda: machine.wall_ns, lambda: machine.steady_ns)
    machine.pass_seconds(7)
    machine.wall_ns += 3_600 * SECOND
    assert clock.now_ms() == 1_007_000


def test_a_decision_may_be_old_and_is_never_in_the_future() -> None:
    caller = FollowingClock(VirtualClock(100_000))
    assert arriving_ms(None, 7) == 7
    assert arriving_ms(caller, 7) == 100_000
    assert arriving_ms(caller, 100_000 + SKEW_LIMIT_MS) == 100_000
    with pytest.raises(ClockSkew, match="501 ms in the future"):
        arriving_ms(caller, 100_001 + SKEW_LIMIT_MS)
