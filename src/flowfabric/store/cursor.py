"""Cursors of the embedded stores, and clocks that are off on any store.

A cursor is opaque to callers. It names the life of the store it is from, so that a cursor from
before a restore can never silently miss lines.
"""

from __future__ import annotations

from flowfabric.errors import ClockSkew, CursorExpired, InvalidInput
from flowfabric.store.clock import SKEW_LIMIT_MS, Clock, FollowingClock, arriving_ms

_DIGITS_MAX = len(str(2**63))


def cursor_text(incarnation: str, position: int) -> str:
    return f"{incarnation}:{position}"


def parse_cursor(text: str, incarnation: str, *, last: int) -> int:
    """The position after which to read; the beginning for an empty cursor."""
    if not text:
        return 0
    life, _, position = text.rpartition(":")
    if not position.isdecimal() or len(position) > _DIGITS_MAX:
        raise InvalidInput("is not a cursor", field="after", hint="pass one that a feed gave you")
    if life != incarnation or int(position) > last:
        raise CursorExpired
    return int(position)


def refuse_gap(after: int, floor: int) -> None:
    """Lines up to `floor` may be gone: whoever stands before it would miss them in silence."""
    if after < floor:
        raise CursorExpired


def refuse_skew(clock: Clock, caller: FollowingClock | None, now_ms: int) -> None:
    refuse_difference(clock.now_ms(), arriving_ms(caller, now_ms))


def refuse_difference(store_now_ms: int, caller_now_ms: int) -> None:
    """A decision made with a wrong clock is wrong about other people's work: refuse it whole."""
    if abs(store_now_ms - caller_now_ms) > SKEW_LIMIT_MS:
        raise ClockSkew.between(store_now_ms, caller_now_ms)
