"""How long and until when: what people write, turned into whole milliseconds and back.

A bare number is seconds. Parsing is exact, and what is finer than a millisecond rounds up, so
that nothing ever waits less than was asked. No clock lives here.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import msgspec

from flowfabric.errors import InvalidInput

Span = str | int | float | timedelta

DURATION_MS_MAX = 36_525 * 86_400_000
INSTANT_MS_MAX = 253_402_300_799_999

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_UNIT_ORDER = tuple(_UNITS_MS)
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([^\W\d_]*)\s*", re.UNICODE)
_TEXT_MAX = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)

_DURATION_HINT = "write it as '250ms', '30s', '1h30m' or '2d', or as a number of seconds"
_INSTANT_HINT = "pass an aware datetime, or milliseconds since 1970 as an int"
_NAIVE_HINT = "give it a time zone, for example datetime(2030, 1, 1, tzinfo=UTC)"


class When(msgspec.Struct, frozen=True, gc=False):
    """A moment to come: an instant, or so long after the moment that it is asked for."""

    ms: int
    is_instant: bool = False

    def at(self, now_ms: int) -> int:
        return self.ms if self.is_instant else now_ms + self.ms


def when(value: datetime | Span | None, field: str) -> When | None:
    """What people write for a moment to come; None stays none."""
    if value is None:
        return None
    if isinstance(value, datetime):
        # Rounded up like a span, so that nothing begins or ends before it was asked to.
        instant = instant_ms(value, field)
        has_part = (value - _EPOCH) % _MILLISECOND > timedelta(0)
        return When(min(instant + has_part, INSTANT_MS_MAX), is_instant=True)
    return When(duration_ms(value, field))


def duration_ms(value: Span, field: str) -> int:
    """A duration in whole milliseconds: at least 0, at most a hundred years."""
    exact = _exact_ms(value, field)
    if exact < 0:
        raise _bad_duration(field, "a duration cannot be negative")
    if exact > DURATION_MS_MAX:
        raise _bad_duration(field, "a duration cannot be longer than 100 years")
    return math.ceil(exact)


def instant_ms(value: datetime | int, field: str) -> int:
    """A moment in milliseconds since 1970; parts of a millisecond are dropped."""
    moment: object = value
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise _bad_instant(field, "the datetime has no time zone", _NAIVE_HINT)
        instant = (moment - _EPOCH) // _MILLISECOND
    elif type(moment) is int:
        instant = moment
    elif isinstance(moment, int) and not isinstance(moment, bool):
        instant = int.__int__(moment)
    else:
        raise _bad_instant(field, f"expected a moment in time, got {type(moment).__name__}")
    if not 0 <= instant <= INSTANT_MS_MAX:
        raise _bad_instant(field, "the moment is outside the years 1970 to 9999")
    return instant


def format_ms(span_ms: int) -> str:
    """The two largest units, for people: never more than it really is."""
    sign, rest = ("-", -span_ms) if span_ms < 0 else ("", span_ms)
    if rest < 1_000:
        return f"{sign}{rest} ms"
    if rest < 60_000:
        seconds, tenths = divmod(rest // 100, 10)
        return f"{sign}{seconds}.{tenths}s" if tenths else f"{sign}{seconds}s"
    counts: list[tuple[int, str]] = []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, _UNITS_MS[unit])
        counts.append((count, unit))
    first = next(position for position, (count, _) in enumerate(counts) if count)
    return sign + " ".join(f"{count}{unit}" for count, unit in counts[first : first + 2] if count)


def _exact_ms(value: object, field: str) -> Fraction:
    if isinstance(value, str):
        return _text_ms(value, field)
    if isinstance(value, timedelta):
        return Fraction(value // _MICROSECOND, 1_000)
    if isinstance(value, float):
        # The shortest text of a float is what its author wrote: 0.07 is 70 ms and not a bit more.
        if math.isfinite(value):
            return Fraction(repr(float(value))) * 1_000
        raise _bad_duration(field, "a duration must be finite")
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value * 1_000)
    raise _bad_duration(field, f"expected a duration, got {type(value).__name__}")


def _text_ms(text: str, field: str) -> Fraction:
    """Sums numbers with units, the largest unit first; a number alone is seconds."""
    if not text.strip():
        raise _bad_duration(field, "the duration is empty")
    if text.lstrip().startswith("-"):
        raise _bad_duration(field, "a duration cannot be negative")
    parts = _parts(text, field)
    if len(parts) == 1 and not parts[0][1]:
        return Fraction(parts[0][0]) * 1_000
    previous = -1
    total = Fraction(0)
    for number, unit in parts:
        if unit not in _UNITS_MS:
            raise _bad_duration(field, f"{unit!a} is not a unit" if unit else "a unit is missing")
        order = _UNIT_ORDER.index(unit)
        if order <= previous:
            raise _bad_duration(field, "each unit may stand once, the largest first")
        previous = order
        total += Fraction(number) * _UNITS_MS[unit]
    return total


def _parts(text: str, field: str) -> list[tuple[str, str]]:
    parts: list[tuple[str, str]] = []
    position = 0
    while position < len(text) <= _TEXT_MAX:
        match = _PART.match(text, position)
        if match is None:
            break
        parts.append((match[1], match[2]))
        position = match.end()
    if position < len(text):
        raise _bad_duration(field, f"{text[:_TEXT_MAX]!a} is not a duration")
    return parts


def _bad_duration(field: str, message: str) -> InvalidInput:
    return InvalidInput(message, field=field, hint=_DURATION_HINT)


def _bad_instant(field: str, message: str, hint: str = _INSTANT_HINT) -> InvalidInput:
    return InvalidInput(message, field=field, hint=hint)


def earliest(first: int | None, second: int | None) -> int | None:
    """Of two instants, of which any may be none."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
