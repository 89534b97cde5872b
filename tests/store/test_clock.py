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


def test_a_machine_set_back_slows_the_clock_until_it_has_caught_up() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ns -= 100 * SECOND
    assert clock.now_ms() == 1_000_000
    machine.pass_seconds(20)
    assert clock.now_ms() == 1_010_000
    machine.pass_seconds(20)
    assert clock.now_ms() == 1_020_000
    machine.pass_seconds(160)
    assert clock.now_ms() == 1_100_000
    machine.pass_seconds(1)
    assert clock.now_ms() == 1_101_000


def test_a_machine_set_forward_is_followed_at_once() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ns += 3_600 * SECOND
    assert clock.now_ms() == 4_600_000


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
