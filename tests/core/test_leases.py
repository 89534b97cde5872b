"""Losing a lease: a new attempt while the cap allows it, and nothing counted for a grant."""

from __future__ import annotations

import pytest

from flowfabric.core.leases import MAX_RECLAIMS, lose
from flowfabric.core.model import Execution, Loss
from flowfabric.core.operator import revoke
from flowfabric.core.states import AttemptKind, AttemptLifecycle, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Transition
from tests.core.build import (
    ATTEMPT_LIMIT,
    DEADLINE,
    NOW,
    TTL,
    WORKER,
    applied,
    ask,
    changed,
    granted,
    limited,
    orphaned,
    resuming,
    retrying,
    running,
    sample,
    submitted,
    taken,
)

HOW = [Loss.EXPIRED, Loss.REVOKED]


def lost(row: Execution, how: Loss) -> Transition:
    """Lose the lease by its own road."""
    if how is Loss.EXPIRED:
        return on_due(changed(row, lease_until_ms=NOW), NOW).transition
    said = revoke(row, NOW, "gone")
    assert isinstance(said, Transition)
    return said


@pytest.mark.parametrize("how", HOW)
def test_a_lost_lease_foresees_a_new_attempt_with_all_of_its_time(how: Loss) -> None:
    row = running(policy=retrying(timeout=limited(attempt_ms=ATTEMPT_LIMIT)), deadline_ms=DEADLINE)
    spent = changed(row, attempt_left_ms=1)
    after = applied(spent, lost(spent, how))
    assert (after.next_attempt, after.next_kind) == (1, AttemptKind.RECLAIM)
    assert (after.attempt_left_ms, after.attempt_until_ms) == (ATTEMPT_LIMIT, None)
    assert (after.reclaim_count, after.lost, after.epoch) == (1, how, 2)
    assert (after.due_ms, after.worker, after.lease_until_ms) == (DEADLINE, "", None)


@pytest.mark.parametrize(
    ("how", "line", "detail"),
    [(Loss.EXPIRED, "lease_expired", "lease_expired"), (Loss.REVOKED, "lease_revoked", "gone")],
)
def test_the_interrupted_attempt_is_recorded_with_its_worker(
    how: Loss, line: str, detail: str
) -> None:
    said = lost(running(), how)
    record = said.attempt
    assert record is not None
    assert record.lifecycle is AttemptLifecycle.INTERRUPTED_RECLAIMED
    assert (record.worker, record.epoch, record.ended_ms) == (WORKER, 1, NOW)
    assert (record.detail, record.category) == (detail, line)
    assert said.patch["outcome_category"] == line
    assert said.log is not None
    assert (said.log.kind, said.log.detail["worker"]) == (line, WORKER)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("cap", [0, 1, 3])
def test_a_lease_is_lost_as_often_as_the_cap_says_and_then_it_is_over(how: Loss, cap: int) -> None:
    row = running(policy=retrying(timeout=limited(reclaims=cap)))
    for count in range(cap):
        row = applied(row, lost(row, how))
        assert row.reclaim_count == count + 1
        row = taken(row)
    row = applied(row, lost(row, how))
    assert (row.state, row.outcome_detail) == (State.FAILED, MAX_RECLAIMS)
    assert (row.reclaim_count, row.attempt) == (cap, cap)


@pytest.mark.case("LS-038")
def test_a_count_that_was_corrupted_is_counted_from_nothing() -> None:
    row = changed(running(), reclaim_count=-1)
    after = taken(applied(row, lost(row, Loss.EXPIRED)))
    assert (after.state, after.reclaim_count) == (State.ACTIVE, 1)


def test_two_reclaims_have_growing_epochs() -> None:
    row, epochs = running(), []
    for round_trip in range(3):
        epochs.append(row.epoch)
        row = taken(applied(row, lost(row, Loss.EXPIRED)), ask(token=f"token-{round_trip}"))
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "before", [submitted(), resuming(), orphaned(), sample(State.REVOKED)], ids=lambda r: r.state
)
def test_a_lost_grant_goes_back_to_where_it_was_and_counts_nothing(
    before: Execution, how: Loss
) -> None:
    grant = granted(before)
    said = lost(grant, how)
    after = applied(grant, said)
    assert said.attempt is None
    changes = {
        name
        for name in Execution.__struct_fields__
        if getattr(after, name) != getattr(before, name)
    }
    assert changes <= {"rev", "epoch", "lease_token", "updated_ms"}
    assert after.epoch == grant.epoch + 1


@pytest.mark.parametrize(
    ("how", "line"), [(Loss.EXPIRED, "grant_expired"), (Loss.REVOKED, "grant_revoked")]
)
def test_a_lost_grant_says_which_way_it_went(how: Loss, line: str) -> None:
    said = lose(granted(), NOW, how)[2]
    assert (said.kind, said.detail) == (line, {"worker": WORKER})


def test_a_lease_is_lost_at_its_very_end() -> None:
    row = running()
    assert on_due(row, NOW + TTL - 1).duty is None
    assert on_due(row, NOW + TTL).duty == "lease_expiry"
