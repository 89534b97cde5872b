"""Time for stores and engines.

A store owns the time that leases and timers are judged by; an engine follows it with an estimate.
What a store compares with its clock is that estimate at the moment a call arrives, never the age
of a decision: work that takes long is no clock that is off. Tests replace a store's clock, never
the comparison with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from flowfabric.errors import ClockSkew

SKEW_LIMIT_MS = 500
# By which part of the time that passes a clock is slewed, and from what difference on.
SLEW = 10
JUMP_MS = 100
# Counts on while the machine sleeps. Where the system has no such clock by that name, as on macOS,
# its monotonic clock does.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970. Never goes back."""
        ...


@runtime_checkable
class Embedded(Protocol):
    """A store whose clock is in this process: an engine need not estimate it."""

    @property
    def clock(self) -> Clock: ...


# Nanoseconds since the machine was started: the same for all its processes, and never set.
steady_ns: Callable[[], int] = partial(time.clock_gettime_ns, _STEADY)


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What time it was, `at_ms`, at an instant of a machine's steady clock, and how far it goes
    before or after that clock from then on. No instant after `kept_ms` was ever told."""

    boot: str
    steady_ms: int
    at_ms: int
    slew_ms: int = 0
    kept_ms: int = 0

    def now_ms(self, steady_ms: int) -> int:
        """The same for everybody who has this mark and this machine's steady clock."""
        passed_ms = steady_ms - self.steady_ms
        if not self.slew_ms:
            return self.at_ms + passed_ms
        most_ms = passed_ms // SLEW
        return self.at_ms + passed_ms + max(-most_ms, min(self.slew_ms, most_ms))

    def aim_ms(self, steady_ms: int) -> int:
        """What it would be if it had got where it goes."""
        return self.at_ms + steady_ms - self.steady_ms + self.slew_ms


class Machine(NamedTuple):
    """The clocks of a machine, and what it calls its run since it was started."""

    boot: str
    wall_ns: Callable[[], int] = time.time_ns
    steady_ns: Callable[[], int] = steady_ns

    def mark(self, known: Mark | None) -> Mark:
        """The mark to go on with: the known one, unless the machine was started again or its clock
        was set. Time never jumps and never goes back, it is slewed towards the machine's."""
        wall_ms, steady_ms = self.wall_ns() // 1_000_000, self.steady_ns() // 1_000_000
        if known is None:
            return Mark(boot=self.boot, steady_ms=steady_ms, at_ms=wall_ms, kept_ms=wall_ms)
        if known.boot != self.boot or steady_ms < known.steady_ms:
            now_ms = max(wall_ms, known.kept_ms)
        elif abs(wall_ms - known.aim_ms(steady_ms)) > JUMP_MS:
            now_ms = known.now_ms(steady_ms)
        else:
            return known
        return Mark(
            boot=self.boot,
            steady_ms=steady_ms,
            at_ms=now_ms,
            slew_ms=wall_ms - now_ms,
            kept_ms=max(now_ms, known.kept_ms),
        )


class SystemClock:
    """The machine's clock, for one process. When somebody sets it, time goes on a little faster or
    slower until it has caught up: no lease ends at once, and none lasts for an hour."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = steady_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._machine = Machine("", wall_ns, steady_ns)
        self._mark = self._machine.mark(None)

    def now_ms(self) -> int:
        # Asked several times for each task: as long as the clock is not set, this is all.
        now_ms = self._mark.now_ms(self._steady_ns() // 1_000_000)
        if -JUMP_MS <= self._wall_ns() // 1_000_000 - now_ms <= JUMP_MS:
            return now_ms
        self._mark = self._machine.mark(self._mark)
        return self._mark.now_ms(self._steady_ns() // 1_000_000)


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
        raise ClockSkew(f"the time of the decision is {now_ms - at_ms} ms in the future")
    return at_ms
