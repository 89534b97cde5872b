"""Policies: what is accepted, how pauses grow, and when there is no further try."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.core.ids import ExecutionId
from flowfabric.core.policy import (
    DAY_MS,
    DEFAULT,
    Exponential,
    Fixed,
    OnAttemptTimeout,
    Policy,
    RetryPolicy,
    TimeoutPolicy,
    chance,
    encode_policy,
    parse_policy,
    retry_pause_ms,
)
from flowfabric.errors import InvalidInput
from tests.core.build import ID

# Pure functions need few examples, and a slow machine must not fail them.
quick = settings(max_examples=50, deadline=None)

HUNDRED_YEARS_MS = 100 * 366 * DAY_MS


def pauses(backoff: Fixed | Exponential, count: int, luck: float = 0.0) -> list[int]:
    return [backoff.pause_ms(done, luck) for done in range(count)]


# Pauses


def test_a_fixed_pause_is_always_the_same() -> None:
    assert pauses(Fixed(10), 4) == [10, 10, 10, 10]


def test_an_exponential_pause_doubles_from_a_second_to_a_minute() -> None:
    expected = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert pauses(Exponential(), 8) == expected


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Exponential(100, 10_000, 3.0), [100, 300, 900, 2_700, 8_100, 10_000]),
        (Exponential(100, 10_000, 1.0), [100] * 6),
        (Exponential(100, 10_000, 1.5), [100, 150, 225, 337, 506, 759]),
        (Exponential(500, 200, 2.0), [200] * 6),
        (Exponential(0, 10_000, 2.0), [0] * 6),
        (Exponential(100, 0, 2.0), [0] * 6),
    ],
)
def test_an_exponential_pause_grows_by_its_factor_up_to_its_limit(
    backoff: Exponential, expected: list[int]
) -> None:
    assert pauses(backoff, 6) == expected


@pytest.mark.parametrize("done", [100, 1_100, 10**6, 2**31 - 1])
@pytest.mark.parametrize("factor", [2.0, 1_000.0])
@pytest.mark.parametrize("jitter", [False, True])
def test_no_number_of_retries_overflows(done: int, factor: float, *, jitter: bool) -> None:
    steep = Exponential(HUNDRED_YEARS_MS, HUNDRED_YEARS_MS, factor, jitter)
    assert steep.pause_ms(done, 1.0) == HUNDRED_YEARS_MS
    assert Exponential(0, HUNDRED_YEARS_MS, factor, jitter).pause_ms(done, 1.0) == 0


@quick
@given(
    done=st.integers(0, 50),
    luck=st.floats(0, 1),
    initial=st.integers(0, 100_000),
    limit=st.integers(0, 1_000_000),
)
def test_jitter_takes_away_at_most_half(done: int, luck: float, initial: int, limit: int) -> None:
    full = Exponential(initial, limit, 2.0).pause_ms(done, luck)
    jittered = Exponential(initial, limit, 2.0, jitter=True).pause_ms(done, luck)
    assert full // 2 <= jittered <= full


def test_jitter_uses_the_whole_range() -> None:
    backoff = Exponential(1_000, 60_000, 2.0, jitter=True)
    assert [backoff.pause_ms(1, luck) for luck in (0.0, 0.5, 1.0)] == [1_000, 1_500, 2_000]


def test_without_jitter_chance_changes_nothing() -> None:
    assert pauses(Exponential(), 5, 0.0) == pauses(Exponential(), 5, 0.9)


def test_chance_is_the_same_for_the_same_attempt_and_differs_between_attempts() -> None:
    drawn = [chance(ID, attempt) for attempt in range(100)]
    assert drawn == [chance(ID, attempt) for attempt in range(100)]
    assert len(set(drawn)) == 100
    assert all(0 <= luck <= 1 for luck in drawn)
    assert chance(ExecutionId(ID[:-1] + "0"), 0) != drawn[0]


# Whether there is another try


def decided(policy: Policy, category: str = "handler_error", done: int = 0) -> int | None:
    return retry_pause_ms(policy, category=category, retries_done=done, chance=0.5)


def test_without_a_retry_policy_nothing_is_retried() -> None:
    assert decided(DEFAULT) is None
    assert decided(Policy(max_replay_count=3)) is None


@pytest.mark.parametrize(
    ("allowed", "expected"), [(0, [None, None]), (1, [10, None]), (3, [10, 10, 10, None])]
)
def test_there_are_as_many_retries_as_the_policy_says(
    allowed: int, expected: list[int | None]
) -> None:
    policy = Policy(retry_policy=RetryPolicy(allowed, Fixed(10)))
    assert [decided(policy, done=done) for done in range(len(expected))] == expected


def test_named_categories_are_retried_and_no_others() -> None:
    policy = Policy(retry_policy=RetryPolicy(1, Fixed(10), ("timeout", "provider_error")))
    answers = {name: decided(policy, name) for name in ("timeout", "provider_error", "other", "")}
    assert answers == {"timeout": 10, "provider_error": 10, "other": None, "": None}


def test_no_named_category_means_all_of_them() -> None:
    policy = Policy(retry_policy=RetryPolicy(1, Fixed(10)))
    assert decided(policy, "anything at all") == 10


# Reading and writing


@pytest.mark.case("RT-011")
def test_the_defaults_of_a_retry_policy_are_the_documented_ones() -> None:
    default = RetryPolicy()
    assert default.max_retries == 3
    assert default.backoff == Exponential(
        initial_delay_ms=1_000, max_delay_ms=60_000, multiplier=2.0, jitter=False
    )
    assert default.retryable_categories == ()
    minimal = parse_policy('{"retry_policy":{"max_retries":5}}').retry_policy
    assert minimal == RetryPolicy(max_retries=5, backoff=Exponential())
    for backoff, expected in (
        (Fixed(7), {"type": "fixed", "delay_ms": 7}),
        (
            Exponential(),
            {
                "type": "exponential",
                "initial_delay_ms": 1_000,
                "max_delay_ms": 60_000,
                "multiplier": 2.0,
                "jitter": False,
            },
        ),
    ):
        text = encode_policy(Policy(retry_policy=RetryPolicy(backoff=backoff)))
        assert cast("object", msgspec.json.decode(text)["retry_policy"]["backoff"]) == expected


@pytest.mark.case("TO-019")
def test_the_defaults_of_a_timeout_policy_are_the_documented_ones() -> None:
    limits = parse_policy('{"timeout_policy":{"attempt_timeout_ms":30000}}').timeout_policy
    assert limits.attempt_timeout_ms == 30_000
    assert limits.max_reclaim_count == 100
    assert limits.on_attempt_timeout is OnAttemptTimeout.EXPIRE
    assert limits.execution_deadline_ms is None


@pytest.mark.parametrize("text", ["", "{}"])
def test_an_empty_policy_is_the_default(text: str) -> None:
    assert parse_policy(text) == DEFAULT
    assert (DEFAULT.max_replay_count, DEFAULT.dedup_window_ms) == (10, DAY_MS)


def test_a_policy_that_says_nothing_is_stored_as_nothing() -> None:
    assert encode_policy(Policy()) == ""


@pytest.mark.parametrize(
    "policy",
    [
        Policy(retry_policy=RetryPolicy(7, Fixed(3), ("a", "b"))),
        Policy(retry_policy=RetryPolicy(1, Exponential(1, 2, 3.5, jitter=True))),
        Policy(timeout_policy=TimeoutPolicy(1, OnAttemptTimeout.RETRY, 2, 3)),
        Policy(max_replay_count=0, dedup_window_ms=0),
    ],
)
def test_a_policy_is_read_as_it_was_written(policy: Policy) -> None:
    assert parse_policy(encode_policy(policy)) == policy


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "object"),
        ("{", "truncated"),
        ('{"surprise":1}', "surprise"),
        ('{"retry_policy":{"surprise":1}}', "surprise"),
        ('{"retry_policy":{"backoff":{"type":"fixed","surprise":1}}}', "surprise"),
        ('{"retry_policy":{"backoff":{"type":"exponential","surprise":1}}}', "surprise"),
        ('{"timeout_policy":{"surprise":1}}', "surprise"),
        ('{"retry_policy":{"max_retries":-1}}', "$.retry_policy.max_retries"),
        ('{"retry_policy":{"max_retries":"3"}}', "$.retry_policy.max_retries"),
        ('{"retry_policy":{"max_retries":2147483648}}', "$.retry_policy.max_retries"),
        ('{"retry_policy":{"backoff":{"type":"linear"}}}', "$.retry_policy.backoff"),
        ('{"retry_policy":{"backoff":{"delay_ms":1}}}', "$.retry_policy.backoff"),
        ('{"retry_policy":{"backoff":{"type":"exponential","multiplier":0.5}}}', "multiplier"),
        ('{"retry_policy":{"backoff":{"type":"exponential","multiplier":1001}}}', "multiplier"),
        ('{"retry_policy":{"retryable_categories":[1]}}', "$.retry_policy.retryable_categories"),
        ('{"timeout_policy":{"attempt_timeout_ms":-1}}', "$.timeout_policy.attempt_timeout_ms"),
        ('{"timeout_policy":{"attempt_timeout_ms":1.5}}', "$.timeout_policy.attempt_timeout_ms"),
        ('{"timeout_policy":{"on_attempt_timeout":"ask"}}', "$.timeout_policy.on_attempt_timeout"),
        ('{"max_replay_count":null}', "$.max_replay_count"),
        ('{"dedup_window_ms":9999999999999}', "$.dedup_window_ms"),
    ],
)
def test_what_is_unknown_or_out_of_range_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_policy(text)
    assert named in caught.value.message
    assert (caught.value.code, caught.value.field) == ("invalid_policy_json", "policy")
    assert caught.value.hint
