"""An execution ends by one of seven roads, and each leaves the same behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from flowfabric.core.lifecycle import Failure, complete, fail
from flowfabric.core.model import NO_ATTEMPT, Execution
from flowfabric.core.operator import Source, cancel, revoke
from flowfabric.core.policy import Policy, encode_policy
from flowfabric.core.states import TERMINAL, AttemptKind, AttemptState, Reason, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Transition
from tests.core.build import NOW, changed, lease_of, limited, running, suspended
from tests.core.walk import Spot, by_state

CAPPED = encode_policy(Policy(timeout_policy=limited(reclaims=0)))


class Road(NamedTuple):
    """A way to the end: a row that stands right before it, and the last step."""

    outcome: State
    is_for_all: bool
    last_step: Callable[[Execution, int], object]


def overdue(row: Execution, now_ms: int, **due: int | None) -> Transition:
    """What the timer does when nothing but the given instants is due."""
    quiet = {"deadline_ms": None, "attempt_until_ms": None, "lease_until_ms": now_ms + 1}
    if row.state is not State.ACTIVE:
        quiet["lease_until_ms"] = None
    found = on_due(changed(row, **{**quiet, **due}), now_ms)
    assert found.duty is not None
    return found.transition


ROADS: dict[str, Road] = {
    "complete": Road(State.COMPLETED, False, lambda row, now: complete(lease_of(row), now, b"1")),
    "fail": Road(
        State.FAILED, False, lambda row, now: fail(lease_of(row), now, Failure("x", fatal=True))
    ),
    "cancel": Road(
        State.CANCELLED, True, lambda row, now: cancel(row, now, "no", source=Source.OPERATOR)
    ),
    "attempt timeout": Road(
        State.EXPIRED, False, lambda row, now: overdue(row, now, attempt_until_ms=now)
    ),
    "deadline": Road(State.EXPIRED, True, lambda row, now: overdue(row, now, deadline_ms=now)),
    "reclaim cap, expired": Road(
        State.FAILED, False, lambda row, now: overdue(capped(row), now, lease_until_ms=now)
    ),
    "reclaim cap, revoked": Road(
        State.FAILED, False, lambda row, now: revoke(capped(row), now, "gone")
    ),
}


def capped(row: Execution) -> Execution:
    return changed(row, policy=CAPPED)


def ended(road: Road, row: Execution, now_ms: int) -> tuple[Execution, Transition]:
    said = road.last_step(row, now_ms)
    assert isinstance(said, Transition)
    return msgspec.structs.replace(row, **said.patch), said


def can_end(road: Road, row: Execution) -> bool:
    """Five of the roads are the end of an attempt that runs; two are open to everything."""
    is_running = row.state is State.ACTIVE and row.reason is not Reason.GRANTED
    return row.state not in TERMINAL and (road.is_for_all or is_running)


def spots(road: Road, state: State) -> list[Spot]:
    return [
        spot
        for spot in by_state(state)
        if can_end(road, spot.row) and not retries_on_timeout(road, spot.row)
    ]


def retries_on_timeout(road: Road, row: Execution) -> bool:
    return road is ROADS["attempt timeout"] and '"on_attempt_timeout":"retry"' in row.policy


LEGAL = [
    (name, state)
    for name, road in ROADS.items()
    for state in sorted(set(State) - TERMINAL)
    if road.is_for_all or state is State.ACTIVE
]


@pytest.mark.parametrize(("name", "state"), LEGAL)
def test_every_road_leaves_nothing_open_from_every_state(name: str, state: State) -> None:
    road = ROADS[name]
    rows = spots(road, state)
    assert rows
    for row, now in rows:
        after, _ = ended(road, row, now)
        assert (after.state, after.reason) == (road.outcome, Reason.NONE)
        assert (after.lease_until_ms, after.attempt_until_ms) == (None, None)
        assert (after.due_ms, after.worker) == (None, "")
        assert (after.ended_ms, after.updated_ms) == (now, now)


@pytest.mark.parametrize(("name", "state"), LEGAL)
def test_every_road_closes_the_record_of_an_open_attempt(name: str, state: State) -> None:
    road = ROADS[name]
    for row, now in spots(road, state):
        after, said = ended(road, row, now)
        if has_open_attempt(row):
            assert said.attempt is not None
            assert said.attempt.lifecycle.is_terminal
            assert (said.attempt.attempt, said.attempt.ended_ms) == (row.attempt, now)
        else:
            assert said.attempt is None
        ran = row.attempt != NO_ATTEMPT
        assert after.attempt_state is (AttemptState.TERMINAL if ran else row.attempt_state)


def has_open_attempt(row: Execution) -> bool:
    """It runs, or it was given back to go on; every other attempt was closed when it ended."""
    is_interrupted = row.attempt_state is AttemptState.INTERRUPTED
    goes_on = is_interrupted and row.next_kind is AttemptKind.RESUME
    return row.attempt_state is AttemptState.RUNNING or goes_on


def test_all_roads_leave_the_same_columns_behind() -> None:
    row = changed(running(), policy=CAPPED, deadline_ms=NOW + 9, attempt_until_ms=NOW + 9)
    how_it_ended = {"state", "outcome_detail", "outcome_category", "epoch"}
    left = [
        {
            column: value
            for column, value in msgspec.structs.asdict(ended(road, row, NOW)[0]).items()
            if column not in how_it_ended
        }
        for road in ROADS.values()
    ]
    assert len(left) == 7
    assert all(columns == left[0] for columns in left)


@pytest.mark.parametrize(
    ("name", "detail", "category", "epoch"),
    [
        ("complete", "", "", 1),
        ("fail", "x", "handler_error", 1),
        ("cancel", "no", "operator_override", 2),
        ("attempt timeout", "attempt_timeout", "attempt_timeout", 2),
        ("deadline", "execution_deadline", "execution_deadline", 2),
        ("reclaim cap, expired", "max_reclaims_exceeded", "max_reclaims_exceeded", 2),
        ("reclaim cap, revoked", "max_reclaims_exceeded", "max_reclaims_exceeded", 2),
    ],
)
def test_every_road_says_how_it_ended_and_fences_off_who_was_not_asked(
    name: str, detail: str, category: str, epoch: int
) -> None:
    after, said = ended(ROADS[name], running(), NOW)
    assert (after.outcome_detail, after.outcome_category, after.epoch) == (detail, category, epoch)
    assert said.log is not None
    assert said.log.kind == after.state


@pytest.mark.parametrize("name", ["cancel", "deadline"])
def test_a_suspended_attempt_is_closed_by_the_end_of_its_execution(name: str) -> None:
    after, said = ended(ROADS[name], suspended(), NOW)
    assert said.attempt is not None
    assert said.attempt.lifecycle.is_terminal
    assert (after.epoch, after.attempt_state) == (1, AttemptState.TERMINAL)


def test_a_grant_over_an_attempt_that_was_to_go_on_closes_it_too() -> None:
    resumed = [
        spot
        for spot in by_state(State.ACTIVE)
        if spot.row.reason is Reason.GRANTED and spot.row.next_kind is AttemptKind.RESUME
    ]
    assert resumed
    for row, now in resumed:
        _, said = ended(ROADS["cancel"], row, now)
        assert said.attempt is not None
        assert said.attempt.lifecycle.is_terminal
