"""Time for stores and engines.

A store owns the time that leases and timers are judged by; an engine follows it with an offset.
Tests replace a store's clock, never the comparison with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

SKEW_LIMIT_MS = 500


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970. Never goes back."""
        ...


class SystemClock:
    """The machine's clock, made to never go back.

    When somebody sets the machine's clock back, time goes on at half speed until the machine has
    caught up: leases still end and timers still fire.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._last_ns = wall_ns()
        self._steady_last_ns = steady_ns()

    def now_ms(self) -> int:
        wall, steady = self._wall_ns(), self._steady_ns()
        if wall < self._last_ns:
            wall = self._last_ns + (steady - self._steady_last_ns) // 2
        self._last_ns, self._steady_last_ns = wall, steady
        return wall // 1_000_000


class FollowingClock:
    """A local clock corrected by what the store said last."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._offset_ms = 0

    def now_ms(self) -> int:
        return self._local.now_ms() + self._offset_ms

    def follow(self, store_now_ms: int) -> None:
        self._offset_ms = store_now_ms - self._local.now_ms()
