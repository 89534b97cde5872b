"""Durations and moments: what people may write, and what is refused with an example."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.core.duration import (
    DURATION_MS_MAX,
    INSTANT_MS_MAX,
    When,
    duration_ms,
    earliest,
    format_ms,
    instant_ms,
    when,
)
from flowfabric.errors import InvalidInput

NAIVE = datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)
# Pure functions need few examples, and a slow machine must not fail them.
quick = settings(max_examples=30, deadline=None)
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


class Undecided(tzinfo):
    """A time zone that does not know its own offset, as the standard library allows."""

    def utcoffset(self, moment: datetime | None, /) -> None:
        return None

    def dst(self, moment: datetime | None, /) -> None:
        return None

    def tzname(self, moment: datetime | None, /) -> str:
        return "undecided"


def refusal(action: Callable[[], object]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        action()
    return caught.value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("30s", 30 * SECOND),
        ("1.5m", 90 * SECOND),
        ("2h", 2 * HOUR),
        ("2d", 2 * DAY),
        ("250ms", 250),
        ("1h30m", 90 * MINUTE),
        ("1d2h3m4s5ms", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND + 5),
        ("1m 30s", 90 * SECOND),
        ("  250 ms ", 250),
        ("0s", 0),
        ("30", 30 * SECOND),
        ("0.25", 250),
        ("0.07s", 70),
        ("0.1ms", 1),
        ("36525d", DURATION_MS_MAX),
        (30, 30 * SECOND),
        (0, 0),
        (0.07, 70),
        (1.1, 1_100),
        (-0.0, 0),
        (0.0000001, 1),
        (1.0005, 1_001),
        (timedelta(minutes=1, milliseconds=5), 60_005),
        (timedelta(microseconds=1), 1),
        (timedelta(0), 0),
        (timedelta(days=36_525), DURATION_MS_MAX),
    ],
)
def test_a_duration_becomes_whole_milliseconds(
    value: str | float | timedelta, expected: int
) -> None:
    result = duration_ms(value, "delay")
    assert result == expected
    assert type(result) is int


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (-1, "negative"),
        (-0.001, "negative"),
        ("-5s", "negative"),
        (" -1", "negative"),
        (timedelta(microseconds=-1), "negative"),
        (math.nan, "finite"),
        (math.inf, "finite"),
        (-math.inf, "finite"),
        ("", "empty"),
        (" \t", "empty"),
        (True, "bool"),
        (None, "NoneType"),
        (b"30s", "bytes"),
        ([30], "list"),
        ("5 weeks", "'weeks' is not a unit"),
        ("5S", "'S' is not a unit"),
        ("1e3", "'e' is not a unit"),
        ("5\u00b5s", "is not a unit"),
        ("1h30", "unit is missing"),
        ("1 2s", "unit is missing"),
        ("30m1h", "largest first"),
        ("1m1m", "largest first"),
        ("nan", "not a duration"),
        ("inf", "not a duration"),
        ("s", "not a duration"),
        ("+5s", "not a duration"),
        ("1.s", "not a duration"),
        (".5s", "not a duration"),
        ("1,5s", "not a duration"),
        ("1_000s", "not a duration"),
        ("1h-30m", "not a duration"),
        ("\u0665s", "not a duration"),
        pytest.param("1" * 5_000, "not a duration", id="huge text"),
        ("36525.1d", "100 years"),
        (DURATION_MS_MAX // 1_000 + 1, "100 years"),
        pytest.param(10**5_000, "100 years", id="huge int"),
        (1e300, "100 years"),
        (timedelta.max, "100 years"),
    ],
)
def test_a_bad_duration_is_refused_with_field_reason_and_example(
    value: object, reason: str
) -> None:
    error = refusal(lambda: duration_ms(value, "attempt_timeout"))  # type: ignore[arg-type]
    assert error.field == "attempt_timeout"
    assert error.code == "invalid_input"
    assert reason in error.message
    assert "'30s'" in error.hint


def test_the_decimal_precision_of_the_caller_changes_nothing() -> None:
    with localcontext(prec=2):
        assert duration_ms("1234.567s", "delay") == 1_234_567
        assert duration_ms(1234.567, "delay") == 1_234_567


@quick
@given(st.integers(0, DURATION_MS_MAX))
def test_every_spelling_of_a_duration_means_the_same(span_ms: int) -> None:
    seconds, rest = divmod(span_ms, SECOND)
    spellings = [f"{span_ms}ms", f"{seconds}s{rest}ms", f"{seconds}.{rest:03}s"]
    assert {duration_ms(text, "delay") for text in spellings} == {span_ms}
    assert duration_ms(timedelta(milliseconds=span_ms), "delay") == span_ms
    assert duration_ms(span_ms / 1_000, "delay") == span_ms


@quick
@given(st.text("0123456789.smhd -+eX\u0665\u00b5", max_size=80))
def test_arbitrary_text_is_a_legal_duration_or_a_typed_refusal(text: str) -> None:
    try:
        result = duration_ms(text, "delay")
    except InvalidInput:
        return
    assert 0 <= result <= DURATION_MS_MAX
    assert text.strip()[0].isdigit()


# Moments


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), 1_700_000_000_000),
        (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), 1_700_000_000_000),
        (datetime(2023, 11, 14, 22, 13, 20, 1_999, tzinfo=UTC), 1_700_000_000_001),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), INSTANT_MS_MAX),
        (1_700_000_000_000, 1_700_000_000_000),
        (0, 0),
    ],
)
def test_a_moment_becomes_milliseconds_since_1970(value: datetime | int, expected: int) -> None:
    result = instant_ms(value, "deadline")
    assert result == expected
    assert type(result) is int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("5m", When(5 * MINUTE)),
        (timedelta(microseconds=1), When(1)),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), When(1_700_000_000_000, True)),
        (datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC), When(1_700_000_000_001, True)),
        (datetime(2023, 11, 14, 22, 13, 20, 999_001, tzinfo=UTC), When(1_700_000_001_000, True)),
        (datetime.max.replace(tzinfo=UTC), When(INSTANT_MS_MAX, True)),
    ],
)
def test_a_moment_to_come_is_a_span_or_an_instant_never_too_early(
    value: datetime | str | timedelta | None, expected: When | None
) -> None:
    assert when(value, "delay") == expected


def test_a_span_counts_from_now_and_an_instant_is_itself() -> None:
    assert (When(5).at(100), When(5, is_instant=True).at(100)) == (105, 5)


@pytest.mark.parametrize("value", [NAIVE, NAIVE.replace(tzinfo=Undecided())])
@pytest.mark.parametrize("read", [instant_ms, when])
def test_a_moment_without_time_zone_is_refused_with_the_remedy(
    value: datetime, read: Callable[[datetime, str], int | When | None]
) -> None:
    error = refusal(lambda: read(value, "deadline"))
    assert error.field == "deadline"
    assert "time zone" in error.message
    assert "tzinfo=UTC" in error.hint


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (True, "bool"),
        (1.5, "float"),
        ("2030-01-01", "str"),
        (None, "NoneType"),
        (timedelta(1), "timedelta"),
        (-1, "1970 to 9999"),
        (INSTANT_MS_MAX + 1, "1970 to 9999"),
        pytest.param(10**5_000, "1970 to 9999", id="huge int"),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "1970 to 9999"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), "1970 to 9999"),
    ],
)
def test_a_bad_moment_is_refused(value: object, reason: str) -> None:
    error = refusal(lambda: instant_ms(value, "deadline"))  # type: ignore[arg-type]
    assert error.field == "deadline"
    assert reason in error.message
    assert "aware datetime" in error.hint


# For people


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0 ms"),
        (250, "250 ms"),
        (999, "999 ms"),
        (1_000, "1s"),
        (1_540, "1.5s"),
        (59_999, "59.9s"),
        (90_000, "1m 30s"),
        (60_999, "1m"),
        (HOUR, "1h"),
        (HOUR + 30_000, "1h"),
        (HOUR + 61_000, "1h 1m"),
        (2 * DAY + 3 * HOUR + 4 * MINUTE, "2d 3h"),
        (DAY + MINUTE, "1d"),
        (-90_000, "-1m 30s"),
        (-250, "-250 ms"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(span_ms: int, text: str) -> None:
    assert format_ms(span_ms) == text


@quick
@given(st.integers(0, DURATION_MS_MAX))
def test_what_is_shown_can_be_written_back_and_never_claims_more(span_ms: int) -> None:
    written = duration_ms(format_ms(span_ms), "delay")
    assert written <= span_ms
    assert span_ms - written <= span_ms / 10


@pytest.mark.parametrize(
    ("instants", "first"),
    [((None, None), None), ((3, None), 3), ((None, 0), 0), ((3, 2), 2), ((0, 1), 0)],
)
def test_the_earliest_ignores_what_is_not_set(
    instants: tuple[int | None, int | None], first: int | None
) -> None:
    assert earliest(*instants) == first
