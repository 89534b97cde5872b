"""Time never goes back, and never stands still either."""

from __future__ import annotations

from flowfabric.store.clock import FollowingClock, SystemClock
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
