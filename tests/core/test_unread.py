"""Work that a worker cannot read goes back with a growing pause, and nothing of it is used up."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from flowfabric.core.explain import explain
from flowfabric.core.lifecycle import (
    UNREAD,
    UNREAD_PAUSE_MAX_MS,
    UNREAD_PAUSE_MS,
    Failure,
    complete,
    delay,
    fail,
    release,
    unread_pause_ms,
)
from flowfabric.core.model import Execution
from flowfabric.core.operator import Source, cancel, replay
from flowfabric.core.states import AttemptKind, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import patched
from flowfabric.testing.build import policy
from tests.core.build import NOW, ask, lease_of, submitted, taken


def handed_back(row: Execution, now_ms: int) -> Execution:
    """A worker took it and could not read it."""
    again = taken(row, ask(now_ms))
    until_ms = now_ms + unread_pause_ms(again, now_ms)
    return patched(again, delay(lease_of(again), now_ms, until_ms, unread="arguments: no").patch)


def pauses(row: Execution, now_ms: int, count: int) -> tuple[list[int], Execution]:
    """How long it rests, each time that a worker takes it as soon as it may."""
    found: list[int] = []
    for _ in range(count):
        row = handed_back(row, now_ms)
        assert row.not_before_ms is not None
        found.append(row.not_before_ms - now_ms)
        now_ms = row.not_before_ms
        row = patched(row, on_due(row, now_ms).transition.patch)
    return found, row


GROWING = [1_000, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
LATER = NOW + 10**9
HOUR_MS = 3_600_000


def test_each_pause_is_as_long_as_all_tries_before() -> None:
    assert pauses(submitted(), NOW, len(GROWING))[0] == GROWING
    assert (GROWING[0], GROWING[-1]) == (UNREAD_PAUSE_MS, UNREAD_PAUSE_MAX_MS)


def completed_and_replayed(row: Execution) -> Execution:
    done = taken(row, ask(LATER))
    done = patched(done, complete(lease_of(done), LATER, b"1").patch)
    return patched(done, replay(done, LATER).patch)


def cancelled_unread_and_replayed(row: Execution) -> Execution:
    done = patched(row, cancel(row, LATER, "not now", source=Source.OPERATOR).patch)
    return patched(done, replay(done, LATER).patch)


def failed_and_retried(row: Execution) -> Execution:
    read = taken(row, ask(LATER))
    again = patched(read, fail(lease_of(read), LATER, Failure("bad luck")).patch)
    return patched(again, on_due(again, LATER + HOUR_MS).transition.patch)


def read_and_delayed(row: Execution) -> Execution:
    read = taken(row, ask(LATER))
    again = patched(read, delay(lease_of(read), LATER, LATER + 5).patch)
    return patched(again, on_due(again, LATER + HOUR_MS).transition.patch)


def lost(row: Execution) -> Execution:
    """Whether its worker read it is not known."""
    held = taken(row, ask(LATER))
    return patched(held, on_due(held, LATER + HOUR_MS).transition.patch)


@pytest.mark.parametrize(
    "between",
    [
        completed_and_replayed,
        cancelled_unread_and_replayed,
        failed_and_retried,
        read_and_delayed,
        lost,
    ],
)
def test_pauses_begin_anew_after_a_replay_and_when_it_was_read_in_between(
    between: Callable[[Execution], Execution],
) -> None:
    row = submitted(policy=policy(retries=2))
    _, row = pauses(row, NOW, len(GROWING))
    after, _ = pauses(between(row), LATER + 2 * HOUR_MS, len(GROWING))
    assert after == GROWING


def test_a_grant_that_was_given_back_unread_changes_nothing() -> None:
    first, row = pauses(submitted(), NOW, 4)
    granted = taken(row, ask(NOW + 8_000, start=False))
    back = patched(granted, release(lease_of(granted), NOW + 8_000).patch)
    rest, _ = pauses(back, NOW + 8_000, len(GROWING) - 4)
    assert first + rest == GROWING


def test_what_could_not_be_read_keeps_its_attempt_its_retries_and_its_time() -> None:
    row = taken(submitted(policy=policy(retries=2, attempt_timeout_ms=5_000)))
    handed = delay(lease_of(row), NOW + 700, NOW + 1_700, unread="arguments: no `unit`")
    after = patched(row, handed.patch)
    assert (after.state, after.next_kind) == (State.DELAYED, AttemptKind.RESUME)
    assert (after.next_attempt, after.retry_count) == (0, 0)
    assert (after.attempt_left_ms, after.outcome_category) == (5_000, UNREAD)
    assert handed.log is not None
    assert handed.log.detail["reason"] == "arguments: no `unit`"
    assert "could not read its arguments: no `unit`" in explain(after, NOW + 700).sentence


def test_what_was_read_after_all_is_told_of_no_more() -> None:
    row = taken(submitted())
    handed = patched(row, delay(lease_of(row), NOW, NOW + 1, unread="arguments: no").patch)
    again = taken(msgspec.structs.replace(handed, state=State.WAITING), ask(NOW + 1))
    later = patched(again, delay(lease_of(again), NOW + 1, NOW + 2).patch)
    assert (later.outcome_category, later.outcome_detail) == ("", "")
    done = patched(again, complete(lease_of(again), NOW + 1, b"1").patch)
    assert (done.outcome_category, done.outcome_detail) == ("", "")
