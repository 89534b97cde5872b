"""Time for stores and engines.

A store owns the time that leases and timers are judged by; an engine follows it with an estimate.
What a store compares with its clock is that estimate at the moment a call arrives, never the age
of a decision: work that takes long is no clock that is off. Tests replace a store's clock, never
the comparison with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from flowfabric.errors import ClockSkew

SKEW_LIMIT_MS = 500
# Counts on while the machine sleeps. Where the system has no such clock by that name, as on macOS,
# its monotonic clock does.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970. Never goes back."""
        ...


def steady_ns() -> int:
    """Nanoseconds since the machine was started: the same for all its processes, and set by
    nobody."""
    return time.clock_gettime_ns(_STEADY)


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


class SteadyClock:
    """What the machine's clock showed once, and the time that has passed since: whoever sets that
    clock later moves nothing here."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = steady_ns,
    ) -> None:
        self._steady_ns = steady_ns
        self._base_ns = wall_ns() - steady_ns()

    def now_ms(self) -> int:
        return (self._base_ns + self._steady_ns()) // 1_000_000


class FollowingClock:
    """A local clock corrected by what the store said: the caller's estimate of the store's time."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._offset_ms = 0
        self._under_way_ms = 0

    def now_ms(self) -> int:
        return self._local.now_ms() + self._offset_ms

    def arriving_ms(self) -> int:
        """The store's time when a call arrives that is sent now."""
        return self.now_ms() + self._under_way_ms

    def follow(self, store_now_ms: int, since_ms: int | None = None) -> None:
        """Be set by an answer to what was asked at `since_ms`.

        When in between the store has looked at its clock is not known. An estimate that may be
        right stays: an answer that was long under way must not make it worse.
        """
        now_ms = self.now_ms()
        round_trip_ms = 0 if since_ms is None else max(now_ms - since_ms, 0)
        if not store_now_ms <= now_ms <= store_now_ms + round_trip_ms:
            self._offset_ms += store_now_ms + round_trip_ms // 2 - now_ms

    def learn(self, refused: ClockSkew) -> bool:
        """Be set by a refusal. Answers whether the clock is right and the call was only slow to
        arrive; the next one is expected to take as long."""
        store_ms, told_ms = refused.store_now_ms, refused.details.get("caller_now_ms")
        if store_ms is None or not isinstance(told_ms, int):
            return False
        sent_ms = told_ms - self._under_way_ms
        late_ms = store_ms - sent_ms
        if 0 <= late_ms <= self.now_ms() - sent_ms + SKEW_LIMIT_MS:
            self._under_way_ms = late_ms
            return True
        self._under_way_ms = 0
        self.follow(store_ms, sent_ms)
        return False


def arriving_ms(caller: FollowingClock | None, now_ms: int) -> int:
    """What a store compares with its clock, looked at when a call is sent.

    `now_ms`, the time of the decision, may be older. It is never in the future: an estimate that
    was corrected since means deciding again. Of a caller that shows no clock it is all there is.
    """
    if caller is None:
        return now_ms
    at_ms = caller.arriving_ms()
    if now_ms > at_ms + SKEW_LIMIT_MS:
        raise ClockSkew(f"it was decided {now_ms - at_ms} ms in the future")
    return at_ms
