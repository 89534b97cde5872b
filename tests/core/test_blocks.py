"""Blocking and unblocking: several reasons at once, and none is ever released past another."""

from __future__ import annotations

import pytest

from flowfabric.core.model import Admission, Execution
from flowfabric.core.operator import RECHECK_MS, block, unblock
from flowfabric.core.states import Reason, State
from flowfabric.errors import FlowFabricError, InvalidInput
from tests.core.build import NOW, applied, blocked, changed, submitted, waiting_for_others


@pytest.mark.parametrize(
    ("reason", "recheck"),
    [
        ("waiting_for_budget", NOW + RECHECK_MS),
        ("waiting_for_quota", NOW + RECHECK_MS),
        ("waiting_for_capable_worker", NOW + RECHECK_MS),
        ("paused_by_policy", None),
        ("paused_by_operator", None),
    ],
)
def test_a_gate_is_asked_again_and_a_person_is_not(reason: str, recheck: int | None) -> None:
    row = blocked(Reason(reason))
    assert (row.recheck_ms, row.due_ms) == (recheck, recheck)


@pytest.mark.parametrize(
    "reason",
    sorted(
        set(Reason)
        - {
            Reason.WAITING_FOR_BUDGET,
            Reason.WAITING_FOR_QUOTA,
            Reason.WAITING_FOR_CAPABLE_WORKER,
            Reason.PAUSED_BY_OPERATOR,
            Reason.PAUSED_BY_POLICY,
        }
    ),
)
def test_no_other_reason_blocks(reason: Reason) -> None:
    with pytest.raises(InvalidInput) as caught:
        block(submitted(), NOW, reason)
    assert (caught.value.code, caught.value.field) == ("invalid_blocking_reason", "reason")
    assert "paused_by_operator" in caught.value.hint


def test_the_log_says_why_it_is_blocked() -> None:
    said = block(submitted(), NOW, Reason.WAITING_FOR_QUOTA, detail="ten a day").log
    assert said is not None
    assert (said.kind, said.detail) == (
        "blocked",
        {"reason": "waiting_for_quota", "detail": "ten a day"},
    )


@pytest.mark.parametrize("expected", [Reason.WAITING_FOR_QUOTA, Reason.PAUSED_BY_OPERATOR])
def test_only_the_block_that_was_expected_is_taken_away(expected: Reason) -> None:
    with pytest.raises(FlowFabricError) as caught:
        unblock(blocked(Reason.WAITING_FOR_BUDGET), NOW, expected)
    assert caught.value.code == "execution_not_eligible"
    assert caught.value.details == {"state": "blocked_budget", "reason": "waiting_for_budget"}


def paused(row: Execution) -> Execution:
    return blocked(Reason.PAUSED_BY_OPERATOR, row)


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        (waiting_for_others(), "blocked_dependencies"),
        (submitted(delay_until_ms=NOW + 9), "delayed"),
        (blocked(Reason.WAITING_FOR_QUOTA), "blocked_quota"),
        (blocked(Reason.PAUSED_BY_POLICY), "blocked_lane"),
        (submitted(), "waiting"),
    ],
)
def test_an_operator_who_resumes_releases_nothing_past_another_reason(
    below: Execution, expected: str
) -> None:
    row = paused(below)
    assert row.state is State.BLOCKED_OPERATOR
    after = applied(row, unblock(row, NOW))
    assert after.state == expected
    assert after == changed(below, rev=after.rev)


def test_a_gate_that_opens_does_not_release_what_an_operator_paused() -> None:
    row = paused(blocked(Reason.WAITING_FOR_BUDGET))
    with pytest.raises(FlowFabricError):
        unblock(row, NOW, Reason.WAITING_FOR_BUDGET)


def test_a_gate_on_a_delayed_execution_shows_when_the_delay_is_over() -> None:
    row = blocked(Reason.WAITING_FOR_BUDGET, submitted(delay_until_ms=NOW + 9))
    assert row.state is State.DELAYED
    assert applied(row, unblock(row, NOW, Reason.WAITING_FOR_BUDGET)).admission is Admission.NONE
    late = unblock(row, NOW + 9, Reason.WAITING_FOR_BUDGET)
    assert applied(row, late).state is State.WAITING
