"""A clock that a test moves by hand, for stores and engines alike."""

from __future__ import annotations

import threading

START_MS = 1_700_000_000_000


class VirtualClock:
    """Stands still until it is moved, and never goes back, as every `Clock` promises."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Move on by so many milliseconds; answers the new time."""
        with self._lock:
            return self._move(self._now_ms + ms)

    def set(self, now_ms: int) -> int:
        """Move on to this instant; answers it."""
        with self._lock:
            return self._move(now_ms)

    def _move(self, now_ms: int) -> int:
        if now_ms < self._now_ms:
            raise ValueError(f"a clock does not go back from {self._now_ms} to {now_ms}")
        self._now_ms = now_ms
        return now_ms
