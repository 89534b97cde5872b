"""What an execution may do when things go wrong, and how long it is kept: retries, time limits,
caps, retention.

A policy is parsed once, strictly: a field that is unknown or out of range is an error that names
it. Every field here works; one that would not is not here.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, assert_never

import msgspec

from flowfabric.core.ids import ExecutionId, fnv1a64
from flowfabric.core.states import Outcome
from flowfabric.errors import InvalidInput

DAY_MS = 86_400_000
_HUNDRED_YEARS_MS = 100 * 366 * DAY_MS

Duration = Annotated[int, msgspec.Meta(ge=0, le=_HUNDRED_YEARS_MS)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=_HUNDRED_YEARS_MS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Factor = Annotated[float, msgspec.Meta(ge=1.0, le=1000.0)]


class OnAttemptTimeout(StrEnum):
    EXPIRE = "expire"
    RETRY = "retry"


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fixed", tag_field="type"):
    """Always the same pause."""

    delay_ms: Duration = 1000

    def pause_ms(self, retries_done: int, chance: float) -> int:
        return self.delay_ms


class Exponential(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="exponential", tag_field="type"
):
    """A pause that grows with each retry, up to a limit; with jitter, half of it is random."""

    initial_delay_ms: Duration = 1000
    max_delay_ms: Duration = 60_000
    multiplier: Factor = 2.0
    jitter: bool = False

    def pause_ms(self, retries_done: int, chance: float) -> int:
        try:
            grown = self.initial_delay_ms * self.multiplier**retries_done
        except OverflowError:
            grown = float(self.max_delay_ms if self.initial_delay_ms else 0)
        pause = min(grown, self.max_delay_ms)
        return int(pause * (0.5 + chance / 2)) if self.jitter else int(pause)


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many retries, after which pause, and for which categories of failure (empty: all)."""

    max_retries: Count = 3
    backoff: Fixed | Exponential = Exponential()
    retryable_categories: tuple[str, ...] = ()

    def allows(self, category: str, retries_done: int) -> bool:
        named = not self.retryable_categories or category in self.retryable_categories
        return named and retries_done < self.max_retries


class TimeoutPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits in time, and how often a lost lease is taken up again."""

    attempt_timeout_ms: Limit | None = None
    on_attempt_timeout: OnAttemptTimeout = OnAttemptTimeout.EXPIRE
    execution_deadline_ms: Limit | None = None
    max_reclaim_count: Count = 100


class RetentionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long what has ended is kept, by how it ended."""

    completed_ms: Duration = DAY_MS
    failed_ms: Duration = DAY_MS
    cancelled_ms: Duration = DAY_MS
    expired_ms: Duration = DAY_MS
    skipped_ms: Duration = DAY_MS

    def kept_ms(self, outcome: Outcome) -> int:
        match outcome:
            case Outcome.SUCCESS:
                return self.completed_ms
            case Outcome.FAILED:
                return self.failed_ms
            case Outcome.CANCELLED:
                return self.cancelled_ms
            case Outcome.EXPIRED:
                return self.expired_ms
            case Outcome.SKIPPED:
                return self.skipped_ms
            case Outcome.NONE:
                raise ValueError("unfinished work is always kept")
            case _:
                assert_never(outcome)


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All of it. Without a retry policy nothing is retried. A member of a flow is kept as long as
    its flow, whatever its own retention says."""

    retry_policy: RetryPolicy | None = None
    timeout_policy: TimeoutPolicy = TimeoutPolicy()
    retention_policy: RetentionPolicy = RetentionPolicy()
    max_replay_count: Count = 10
    dedup_window_ms: Duration = DAY_MS


DEFAULT = Policy()


def encode_policy(policy: Policy) -> str:
    """The stored form; empty for a policy that says nothing."""
    return "" if policy == DEFAULT else msgspec.json.encode(policy).decode()


@lru_cache(maxsize=1024)
def parse_policy(text: str) -> Policy:
    """Decode a stored or given policy; refuses what it does not know, naming the path."""
    if not text:
        return DEFAULT
    try:
        return msgspec.json.decode(text, type=Policy)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidInput(
            str(error),
            field="policy",
            code="invalid_policy_json",
            hint="see the reference of policies for its fields and their ranges",
        ) from error


def retention_of(text: str) -> RetentionPolicy:
    """How long to keep what has this policy; one that cannot be read keeps nothing from ending."""
    try:
        return parse_policy(text).retention_policy
    except InvalidInput:
        return DEFAULT.retention_policy


def chance(id: ExecutionId, attempt: int) -> float:
    """A number in [0, 1) that is the same for the same attempt wherever it is decided."""
    return fnv1a64(f"{id}:{attempt}".encode()) / 2**64


def retry_pause_ms(
    policy: Policy, *, category: str, retries_done: int, chance: float
) -> int | None:
    """How long to wait before the next try, or None when there is none."""
    retry = policy.retry_policy
    if retry is None or not retry.allows(category, retries_done):
        return None
    return retry.backoff.pause_ms(retries_done, chance)
