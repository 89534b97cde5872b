"""Why is it not running: a sentence, and something that wakes it, for every row that can be."""

from __future__ import annotations

import pytest

from flowfabric.core.explain import blocking_detail, explain
from flowfabric.core.lifecycle import Failure, fail
from flowfabric.core.model import Execution
from flowfabric.core.operator import Source, cancel, replay
from flowfabric.core.states import (
    CLAIMABLE,
    TERMINAL,
    LaneState,
    PublicState,
    Reason,
    State,
    vector,
)
from flowfabric.core.timers import POISON_LIMIT, next_due, poisoned
from flowfabric.core.transition import is_ready
from tests.core.build import (
    NOW,
    PAUSE,
    TTL,
    applied,
    changed,
    granted,
    lease_of,
    resuming,
    retrying,
    running,
    sample,
    submitted,
)
from tests.core.walk import reach

WAKES: dict[str, set[str]] = {
    "waiting": {"worker"},
    "orphaned": {"worker"},
    "revoked": {"worker"},
    "delayed": {"timer"},
    "active": {"lease", "timer"},
    "blocked_operator": {"operator"},
    "blocked_lane": {"operator"},
    "blocked_dependencies": {"dependencies"},
    "blocked_budget": {"timer"},
    "blocked_quota": {"timer"},
    "blocked_route": {"timer"},
    "suspended": {"signal"},
    **{state: {"over"} for state in TERMINAL},
}


def test_every_reachable_row_says_what_wakes_it() -> None:
    for row, now in reach().spots:
        told = explain(row, now)
        assert told.wakes in WAKES[row.state]
        assert told.sentence.strip()
        shown = vector(row.state, row.reason, row.attempt_state)
        assert (told.state, told.public_state) == (row.state, shown.public_state)
        assert told.reason is shown.blocking_reason


def test_what_it_says_will_wake_it_really_can() -> None:
    for row, now in reach().spots:
        told = explain(row, now)
        match told.wakes:
            case "worker":
                assert is_ready(row)
            case "timer" | "lease":
                assert told.until_ms is not None
                due = next_due(row)
                assert due is not None
                assert due <= told.until_ms
            case "operator" | "dependencies" | "signal":
                assert row.state not in CLAIMABLE | TERMINAL
            case other:
                assert (other, row.state in TERMINAL) == ("over", True)


@pytest.mark.parametrize("state", sorted(CLAIMABLE))
@pytest.mark.parametrize(
    ("lane", "wakes"),
    [("active", "worker"), ("draining", "worker"), ("paused", "lane"), ("disabled", "lane")],
)
def test_a_lane_that_hands_nothing_out_is_the_reason(state: State, lane: str, wakes: str) -> None:
    told = explain(sample(state), NOW, LaneState(lane))
    assert told.wakes == wakes
    assert "'main'" in told.sentence
    assert (lane in told.sentence) == (wakes == "lane")


@pytest.mark.parametrize("state", sorted(set(State) - CLAIMABLE))
def test_a_lane_is_no_reason_for_anything_else(state: State) -> None:
    row = sample(state)
    assert explain(row, NOW, LaneState.PAUSED) == explain(row, NOW, LaneState.ACTIVE)


def failed_once() -> Execution:
    row = running(policy=retrying(3))
    return applied(row, fail(lease_of(row), NOW, Failure("no route")))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (submitted(), "ready; the next free worker of lane 'main'"),
        (submitted(), "can take task 'greet'"),
        (sample(State.ORPHANED), "its worker stopped renewing"),
        (sample(State.REVOKED), "its lease was revoked (gone)"),
        (submitted(delay_until_ms=NOW + 62_000), "delayed until 2023-11-14T22:14:22.000Z (in 1m)"),
        (failed_once(), "retry 1 after: no route; delayed until"),
        (running(), "running on worker-a, attempt 1, lease for another 28s"),
        (granted(), "granted to worker-a, not started yet"),
        (sample(State.BLOCKED_OPERATOR), "paused by an operator"),
        (sample(State.BLOCKED_LANE), "paused by policy"),
        (sample(State.BLOCKED_DEPENDENCIES), "waiting for the executions it depends on"),
        (sample(State.BLOCKED_BUDGET), "waiting for budget; checked again in 3s"),
        (sample(State.BLOCKED_ROUTE), "waiting for capable worker"),
        (sample(State.SUSPENDED), "suspended until something outside answers"),
        (sample(State.COMPLETED), "completed at 2023-11-14T22:13:20.000Z"),
        (sample(State.FAILED), "failed at 2023-11-14T22:13:20.000Z: broke"),
        (sample(State.CANCELLED), "cancelled at 2023-11-14T22:13:20.000Z: no"),
        (sample(State.SKIPPED), "skipped at 2023-11-14T22:13:20.000Z"),
    ],
)
def test_the_sentence_is_one_that_a_person_understands(row: Execution, said: str) -> None:
    assert said in explain(row, NOW + 2_000).sentence


@pytest.mark.parametrize("state", State)
def test_a_clock_that_is_behind_never_tells_of_negative_times(state: State) -> None:
    row = changed(sample(state), updated_ms=NOW + 5)
    assert "-" not in explain(row, NOW).sentence.replace("worker-a", "").replace("2023-11-14", "")


@pytest.mark.parametrize(
    ("row", "until"),
    [
        (submitted(delay_until_ms=NOW + 9), NOW + 9),
        (running(), NOW + TTL),
        (granted(), NOW + TTL),
        (sample(State.BLOCKED_QUOTA), NOW + 5_000),
        (submitted(), None),
    ],
)
def test_the_moment_is_given_where_there_is_one(row: Execution, until: int | None) -> None:
    assert explain(row, NOW).until_ms == until


def parked() -> Execution:
    row = sample(State.DELAYED)
    for _ in range(POISON_LIMIT):
        row = applied(row, poisoned(row, NOW, "unreadable policy"))
    return row


def test_a_parked_row_says_what_went_wrong_and_who_must_help() -> None:
    told = explain(parked(), NOW)
    assert told.wakes == "operator"
    assert told.sentence == f"parked after {POISON_LIMIT} failures: unreadable policy"


def test_a_parked_row_that_was_ended_is_over_and_a_replay_frees_it() -> None:
    over = applied(parked(), cancel(parked(), NOW, "no", source=Source.OPERATOR))
    assert explain(over, NOW).wakes == "over"
    again = applied(over, replay(over, NOW))
    assert (again.failures, explain(again, NOW).wakes) == (0, "worker")


# The short text beside the reason


@pytest.mark.case("DL-003")
def test_a_delayed_execution_is_shown_as_delayed_until_its_moment() -> None:
    row = submitted(delay_until_ms=NOW + 300_000)
    shown = vector(row.state, row.reason, row.attempt_state)
    assert shown.public_state is PublicState.DELAYED
    assert shown.blocking_reason is Reason.WAITING_FOR_DELAY
    assert blocking_detail(row) == "delayed until 2023-11-14T22:18:20.000Z"
    assert not is_ready(row)


@pytest.mark.parametrize("row", [failed_once(), resuming(None, NOW + PAUSE)])
def test_every_pause_says_until_when(row: Execution) -> None:
    assert blocking_detail(row) == "delayed until 2023-11-14T22:13:20.500Z"


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        (sample(State.ORPHANED), "lease expired, awaiting reclaim"),
        (sample(State.REVOKED), "lease revoked: gone"),
        (changed(sample(State.REVOKED), outcome_detail=""), "lease revoked: operator"),
    ],
)
def test_a_lost_lease_says_how_it_was_lost(row: Execution, detail: str) -> None:
    assert blocking_detail(row) == detail


def test_there_is_a_detail_exactly_where_there_is_something_to_add() -> None:
    for row, _ in reach().spots:
        has_detail = row.state in (State.DELAYED, State.ORPHANED, State.REVOKED)
        assert bool(blocking_detail(row)) == has_detail
