"""What a transition may say, what a guard compares, and which columns anybody may write."""

from __future__ import annotations

from itertools import product

import pytest

from flowfabric.core.ids import ExecutionId, public_id
from flowfabric.core.model import COLUMNS, WRITABLE, Execution, Lane, Writer
from flowfabric.core.states import (
    ALLOWED,
    ATTEMPT_STATES,
    REASONS,
    AttemptState,
    LaneState,
    Reason,
    State,
)
from flowfabric.core.transition import (
    Changeset,
    Held,
    LaneChange,
    Seen,
    Transition,
    clip,
    guard_holds,
    lane_changed,
)
from flowfabric.errors import IllegalTransition
from tests.core.build import (
    ATTEMPT_LIMIT,
    DEADLINE,
    ID,
    NOW,
    TTL,
    ask,
    changed,
    granted,
    lease_of,
    limited,
    orphaned,
    retrying,
    running,
    sample,
    submitted,
    taken,
)

HELD = Held(1, "token-a")


def said(state: State, **more: str) -> dict[str, str]:
    """A patch into this state with a reason that fits."""
    return {"state": state, "reason": min(REASONS[state]), **more}


def decide(before: State, patch: dict[str, str]) -> Transition:
    return Transition(ID, Seen(1, before), Writer.ENGINE, patch)


# What cannot be constructed

PAIRS = [(before, after) for before, after in product(State, State) if before is not after]
ILLEGAL_PAIRS = [(before, after) for before, after in PAIRS if after not in ALLOWED[before]]
LEGAL_PAIRS = [(before, after) for before, after in PAIRS if after in ALLOWED[before]]


@pytest.mark.parametrize(("before", "after"), ILLEGAL_PAIRS)
def test_a_step_that_the_table_does_not_allow_is_refused(before: State, after: State) -> None:
    with pytest.raises(IllegalTransition, match=f"{before} cannot become {after}"):
        decide(before, said(after))


def test_every_step_that_the_table_allows_can_be_said() -> None:
    for before, after in LEGAL_PAIRS:
        assert decide(before, said(after)).patch["state"] is after


def test_a_state_may_be_written_again() -> None:
    for state in State:
        assert decide(state, said(state)).patch["state"] is state


@pytest.mark.parametrize("state", State)
def test_an_attempt_state_that_does_not_fit_the_state_is_refused(state: State) -> None:
    for attempt_state in set(AttemptState) - ATTEMPT_STATES[state]:
        with pytest.raises(IllegalTransition, match=f"attempt state {attempt_state}"):
            decide(state, said(state, attempt_state=attempt_state))
    for attempt_state in ATTEMPT_STATES[state]:
        decide(state, said(state, attempt_state=attempt_state))


@pytest.mark.parametrize("state", State)
def test_a_reason_that_does_not_fit_the_state_is_refused(state: State) -> None:
    for reason in set(Reason) - REASONS[state]:
        with pytest.raises(IllegalTransition, match=f"reason {reason}"):
            decide(state, said(state, reason=reason))
    for reason in REASONS[state]:
        decide(state, said(state, reason=reason))


@pytest.mark.parametrize("state", State)
def test_a_state_without_its_reason_is_refused(state: State) -> None:
    with pytest.raises(IllegalTransition, match="reason None"):
        decide(state, {"state": state})


@pytest.mark.parametrize("after", State)
def test_what_a_worker_says_starts_from_active(after: State) -> None:
    if after is State.ACTIVE or after in ALLOWED[State.ACTIVE]:
        assert Transition(ID, HELD, Writer.WORKER, said(after)).guard == HELD
    else:
        with pytest.raises(IllegalTransition, match=f"active cannot become {after}"):
            Transition(ID, HELD, Writer.WORKER, said(after))


@pytest.mark.parametrize("writer", Writer)
def test_a_writer_is_refused_every_column_that_does_not_name_it(writer: Writer) -> None:
    refused = sorted(COLUMNS.keys() - WRITABLE[writer])
    assert refused
    for column in refused:
        with pytest.raises(IllegalTransition, match=f"{writer} may not write {column}"):
            Transition(ID, Seen(1, State.WAITING), writer, {column: None})


@pytest.mark.parametrize("writer", Writer)
def test_a_column_that_does_not_exist_is_refused(writer: Writer) -> None:
    with pytest.raises(IllegalTransition, match="may not write epoch_of_mind"):
        Transition(ID, Seen(1, State.WAITING), writer, {"epoch_of_mind": 1})


def test_all_columns_that_are_refused_are_named() -> None:
    with pytest.raises(IllegalTransition, match=r"engine may not write id, lane$"):
        decide(State.WAITING, {"lane": "x", "outcome_detail": "y", "id": "z"})


def test_two_changes_of_one_record_are_refused_in_one_changeset() -> None:
    one = decide(State.WAITING, {})
    other = Transition(ExecutionId(ID[:-1] + "0"), one.guard, one.writer, {})
    assert Changeset([one, other]).transitions == [one, other]
    with pytest.raises(IllegalTransition, match=f"two changes of {public_id(ID)} in one call"):
        Changeset([other, one, decide(State.WAITING, {"priority": "9"})])


def test_two_changes_of_one_lane_are_refused_in_one_changeset() -> None:
    pause = LaneChange("main", 1, LaneState.PAUSED)
    assert Changeset(lanes=[pause, LaneChange("other", 1, LaneState.PAUSED)]).lanes[0] == pause
    with pytest.raises(IllegalTransition, match="two changes of main"):
        Changeset(lanes=[pause, LaneChange("main", 1, LaneState.ACTIVE)])


# The table of columns


def test_every_column_of_the_head_has_an_owner_and_nothing_else_has() -> None:
    assert set(COLUMNS) == set(Execution.__struct_fields__)
    assert {column.owner for column in COLUMNS.values()} == {"execution"}


def test_who_may_write_is_read_from_the_table_of_columns() -> None:
    for writer, (name, column) in product(Writer, COLUMNS.items()):
        assert (name in WRITABLE[writer]) == (writer in column.writers)
    assert WRITABLE[Writer.SUBMIT] == frozenset()


def test_what_was_asked_for_is_written_once() -> None:
    once = {name for name, column in COLUMNS.items() if not column.writers}
    assert once == {
        "id",
        "namespace",
        "lane",
        "kind",
        "route",
        "creator",
        "created_ms",
        "policy",
        "rev",
    }


# Claims and guards


@pytest.mark.parametrize(
    ("attempt_ms", "deadline", "expected"),
    [
        (None, None, NOW + TTL),
        (ATTEMPT_LIMIT, None, NOW + ATTEMPT_LIMIT),
        (TTL + 1, None, NOW + TTL),
        (None, DEADLINE, NOW + TTL),
        (None, NOW + 3, NOW + 3),
        (2, NOW + 3, NOW + 2),
    ],
)
def test_the_timer_of_a_claim_is_the_earliest_of_its_limits(
    attempt_ms: int | None, deadline: int | None, expected: int
) -> None:
    policy = retrying(timeout=limited(attempt_ms=attempt_ms))
    assert running(policy=policy, deadline_ms=deadline).due_ms == expected


@pytest.mark.parametrize(
    "broken",
    [
        {"state": State.WAITING},
        {"state": State.ORPHANED},
        {"epoch": 2},
        {"epoch": 0},
        {"lease_token": "token-b"},
        {"reason": Reason.GRANTED},
        {"lease_until_ms": None},
        {"lease_until_ms": NOW},
        {"lease_until_ms": NOW - 1},
    ],
)
def test_a_lease_holds_only_while_all_of_it_is_true(broken: dict[str, object]) -> None:
    row = running()
    assert guard_holds(HELD, row, NOW)
    assert not guard_holds(HELD, changed(row, **broken), NOW)


def test_a_lease_is_over_at_its_very_end_by_the_clock_of_the_store() -> None:
    row = running()
    assert guard_holds(HELD, row, NOW + TTL - 1)
    assert not guard_holds(HELD, row, NOW + TTL)


def test_a_grant_is_held_by_whoever_has_not_started_it() -> None:
    row = granted()
    assert guard_holds(Held(1, "token-a", started=False), row, NOW)
    assert not guard_holds(Held(1, "token-a", started=True), row, NOW)


def test_an_old_lease_is_fenced_even_when_the_epoch_repeats() -> None:
    """After a fail-over the epoch can be handed out twice; the token cannot."""
    first = lease_of(running())
    second = taken(submitted(), ask(worker="worker-b", token="token-b"))
    assert second.epoch == first.epoch
    assert not guard_holds(Held(first.epoch, first.token), second, NOW)


@pytest.mark.parametrize("state", State)
def test_an_observation_holds_until_anything_is_written(state: State) -> None:
    row = sample(state)
    assert guard_holds(Seen(row.rev, state), row, NOW)
    assert not guard_holds(Seen(row.rev, state), changed(row, rev=row.rev + 1), NOW)


def test_a_reclaimed_row_refuses_its_former_holder() -> None:
    lost = orphaned()
    again = taken(lost, ask(NOW + TTL, worker="worker-b", token="token-b"))
    assert not guard_holds(HELD, lost, NOW)
    assert not guard_holds(HELD, again, NOW + TTL)
    assert guard_holds(Held(again.epoch, "token-b"), again, NOW + TTL)


# Lanes and texts


def test_a_lane_changes_only_from_the_revision_that_was_read() -> None:
    pause = LaneChange("main", 3, LaneState.PAUSED)
    assert lane_changed(Lane("main", rev=3), pause) == Lane("main", LaneState.PAUSED, 4)
    assert lane_changed(Lane("main", rev=4), pause) is None
    assert lane_changed(None, pause) is None


def test_a_lane_that_was_not_there_is_made_unless_somebody_made_it() -> None:
    new = LaneChange("main", 0, LaneState.DRAINING)
    assert lane_changed(None, new) == Lane("main", LaneState.DRAINING, 1)
    assert lane_changed(Lane("main"), new) is None


def test_a_text_that_is_too_long_is_cut_and_shows_it() -> None:
    assert clip("short") == "short"
    assert clip("x" * 400) == "x" * 400
    cut = clip("x" * 481)
    assert len(cut.encode()) == 400
    assert cut.endswith("x…")


def test_a_reason_or_an_attempt_state_comes_with_a_state() -> None:
    seen = Seen(1, State.WAITING)
    with pytest.raises(IllegalTransition):
        Transition(ID, seen, Writer.ENGINE, {"reason": Reason.PAUSED_BY_OPERATOR})
    with pytest.raises(IllegalTransition):
        Transition(ID, seen, Writer.ENGINE, {"attempt_state": AttemptState.INTERRUPTED})


@pytest.mark.case("PA-015")
def test_epochs_and_attempts_rise_by_one_as_numbers() -> None:
    first = taken(changed(submitted(), epoch=9))
    assert first.epoch == 10
    assert first.attempt == 0
    second = taken(changed(first, state=State.WAITING, next_attempt=first.attempt + 1))
    assert (second.epoch, second.attempt) == (11, 1)
    assert second.epoch > first.epoch > 9
