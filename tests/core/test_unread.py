"""Work that a worker cannot read goes back with a growing pause, and nothing of it is used up."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.explain import explain
from flowfabric.core.lifecycle import (
    UNREAD,
    UNREAD_PAUSE_MAX_MS,
    UNREAD_PAUSE_MS,
    complete,
    delay,
    unread_pause_ms,
)
from flowfabric.core.states import AttemptKind, State
from flowfabric.core.transition import patched
from flowfabric.testing.build import policy
from tests.core.build import NOW, ask, lease_of, submitted, taken


@pytest.mark.parametrize(
    ("tried_ms", "pause_ms"),
    [(0, UNREAD_PAUSE_MS), (1_000, 1_000), (8_000, 8_000), (10**9, UNREAD_PAUSE_MAX_MS)],
)
def test_each_pause_is_as_long_as_all_tries_before(tried_ms: int, pause_ms: int) -> None:
    row = taken(submitted())
    assert unread_pause_ms(row, NOW + tried_ms) == pause_ms


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
