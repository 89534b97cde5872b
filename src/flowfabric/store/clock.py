"""Time for stores and engines.

A store owns the time that leases and timers are judged by; an engine follows it with an offset.
Tests replace a store's clock, never the comparison with it.
"""

from __future__ import annotations

import time
from typing import Protocol

SKEW_LIMIT_MS = 500


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970. Never goes back."""
        ...


class SystemClock:
    """The machine's clock, held back so that it never runs backwards."""

    def __init__(self) -> None:
        self._last_ms = 0

    def now_ms(self) -> int:
        self._last_ms = max(self._last_ms, time.time_ns() // 1_000_000)
        return self._last_ms


class FollowingClock:
    """A local clock corrected by what the store said last."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._offset_ms = 0

    def now_ms(self) -> int:
        return self._local.now_ms() + self._offset_ms

    def follow(self, store_now_ms: int) -> None:
        self._offset_ms = store_now_ms - self._local.now_ms()
