"""How much goes wrong: chances per store call, per hint and per second. Nothing here acts."""

from __future__ import annotations

import msgspec


class Dials(msgspec.Struct, frozen=True, kw_only=True):
    """Chances are between 0 and 1. All at zero is a world in which nothing goes wrong."""

    crash: float = 0.002
    error: float = 0.01  # nothing was done
    lost_reply: float = 0.01  # done, and the caller hears of an error
    short_delay: float = 0.5
    short_delay_ms: int = 15
    middle_delay: float = 0.05  # as long as a call is not refused for its age
    middle_delay_ms: int = 450
    slow_look: float = 0.15
    very_slow_look: float = 0.01  # longer than clocks may differ: slow, and not skewed
    look_ms: int = 0  # at least so long takes every look
    long_delay: float = 0.01
    long_delay_ms: int = 4_000
    hint_lost: float = 0.15
    hint_twice: float = 0.1
    hint_late: float = 0.2
    hint_late_ms: int = 3_000
    pause: float = 0.001
    pause_ms: int = 45_000
    away: float = 0.0003  # the whole store, for everybody
    away_ms: int = 3_000
    skew_ms: int = 5_000
    clock_jump: float = 0.001
    forgotten: float = 0.05  # a worker never says what became of its work
    unrenewed: float = 0.05


STORMY = Dials()
CALM = Dials(
    crash=0.0,
    error=0.0,
    lost_reply=0.0,
    middle_delay=0.0,
    slow_look=0.0,
    very_slow_look=0.0,
    long_delay=0.0,
    hint_lost=0.0,
    hint_twice=0.0,
    hint_late=0.0,
    pause=0.0,
    away=0.0,
    clock_jump=0.0,
    forgotten=0.0,
    unrenewed=0.0,
)
# Nothing goes wrong, and no look is quicker than clocks may differ: all must end all the same.
CALM_AND_SLOW = msgspec.structs.replace(CALM, look_ms=700)
