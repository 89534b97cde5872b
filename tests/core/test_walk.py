"""What holds of every step that any decision makes, from every row that can be reached."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from flowfabric.core.endings import is_unwanted
from flowfabric.core.flow.cancel import owed_change
from flowfabric.core.lifecycle import start
from flowfabric.core.model import COLUMNS, WRITABLE, Execution, Writer
from flowfabric.core.states import (
    ALLOWED,
    ATTEMPT_STATES,
    REASONS,
    TERMINAL,
    AttemptState,
    Reason,
    State,
)
from flowfabric.core.transition import guard_holds, is_ready, is_terminal, patched
from tests.core.build import applied, ask, changed, lease_of, sample, taken
from tests.core.walk import CANCELLED, FROM_OUTSIDE, ON_GRANT, ON_LEASE, Move, reach


def test_every_decision_writes_only_what_its_writer_may() -> None:
    seen = {writer: set[str]() for writer in Writer}
    for move in reach().moves:
        seen[move.writer] |= move.patch.keys()
    for writer, columns in seen.items():
        assert columns <= WRITABLE[writer]
    # Flows, rows that cannot be handled and tokens of requests are the rest.
    unwritten = {"deps_open", "failures", "flow", "parked", "requests"}
    writable = {name for name, column in COLUMNS.items() if column.writers}
    assert writable - set().union(*seen.values()) == unwritten


def test_every_decision_writes_values_of_the_type_of_their_column() -> None:
    for move in reach().moves:
        row = move.after.row
        assert msgspec.convert(msgspec.to_builtins(row), Execution) == row


def test_the_walk_visits_every_state_and_every_verb() -> None:
    assert {spot.row.state for spot in reach().spots} == set(State)
    verbs = {"claim", "grant", "timer", *ON_LEASE, *ON_GRANT, *FROM_OUTSIDE}
    assert {move.verb for move in reach().moves} == verbs


def steps(**only: str) -> Iterator[Move]:
    for move in reach().moves:
        if all(getattr(move, name) == value for name, value in only.items()):
            yield move


def test_every_step_is_one_that_the_table_allows() -> None:
    for move in steps():
        before, after = move.before.row, move.after.row
        assert after.state is before.state or after.state in ALLOWED[before.state]
        assert after.reason in REASONS[after.state]
        assert after.attempt_state in ATTEMPT_STATES[after.state]


def test_the_epoch_never_falls_and_rises_with_every_claim() -> None:
    for move in steps():
        raised = move.after.row.epoch - move.before.row.epoch
        assert raised in (0, 1)
        assert raised == 1 or move.verb not in ("claim", "grant")


def test_a_lease_that_ends_from_outside_raises_the_epoch() -> None:
    for move in steps():
        before, after = move.before.row, move.after.row
        if before.state is State.ACTIVE and after.state is not State.ACTIVE:
            from_outside = move.writer is not Writer.WORKER
            assert (after.epoch > before.epoch) == from_outside


def test_a_lease_is_there_exactly_while_somebody_holds_it() -> None:
    for move in steps():
        row = move.after.row
        is_held = row.state is State.ACTIVE
        assert (row.lease_until_ms is not None) == is_held
        assert bool(row.worker) == is_held
        assert row.attempt_until_ms is None or row.attempt_state is AttemptState.RUNNING


def test_the_token_stays_after_the_end_so_that_its_owner_is_recognised() -> None:
    for move in steps():
        assert move.after.row.lease_token == move.before.row.lease_token or move.verb in (
            "claim",
            "grant",
        )


def test_the_end_has_a_time_and_is_left_by_replay_alone() -> None:
    for move in steps():
        after = move.after.row
        assert (after.ended_ms is not None) == (after.state in TERMINAL) == is_terminal(after)
        if move.before.row.state in TERMINAL:
            assert move.verb == "replay" or after.state is move.before.row.state


def test_the_number_of_the_attempt_never_falls_and_the_first_start_is_kept() -> None:
    for move in steps():
        before, after = move.before.row, move.after.row
        assert after.attempt >= before.attempt
        assert after.started_ms == before.started_ms or before.started_ms is None


def test_every_change_of_state_has_its_time() -> None:
    for move in steps():
        if "state" in move.patch:
            assert move.after.row.updated_ms == move.after.now_ms


def test_every_change_of_state_leaves_a_line_in_the_log() -> None:
    for move in steps():
        if move.transition is not None and move.after.row.state is not move.before.row.state:
            assert move.transition.log is not None


def test_every_line_of_the_log_is_under_a_kilobyte() -> None:
    for move in steps():
        if move.transition is not None and move.transition.log is not None:
            assert len(msgspec.json.encode(move.transition.log)) < 1024


def test_an_attempt_is_recorded_with_the_number_that_the_head_had() -> None:
    for move in steps():
        record = move.transition.attempt if move.transition else None
        if record is not None:
            assert record.attempt == move.before.row.attempt >= 0
            assert (record.ended_ms is not None) == record.lifecycle.is_terminal


# Members of a cancelled flow


def test_what_is_not_wanted_any_more_goes_on_or_ends() -> None:
    unwanted = [move for move in steps() if is_unwanted(move.before.row)]
    assert {move.verb for move in unwanted} >= {*ON_LEASE, "revoke", "timer"}
    for move in unwanted:
        row = move.after.row
        assert row.state in TERMINAL or (row.state is State.ACTIVE and is_unwanted(row))


def test_after_the_cancel_of_its_flow_nothing_is_left_that_could_start() -> None:
    for move in steps(verb="cancel its flow"):
        row = move.after.row
        assert row.state is State.CANCELLED or is_unwanted(row)
        assert owed_change(CANCELLED, row, move.after.now_ms) is None


def test_a_lease_from_before_the_cancel_ends_the_work_but_cannot_give_it_back() -> None:
    checked = set()
    for move in steps(writer=Writer.WORKER):
        row, now_ms = move.before.row, move.before.now_ms
        mark = owed_change(CANCELLED, row, now_ms)
        if is_unwanted(row) or row.reason is Reason.GRANTED:
            continue
        assert move.transition is not None
        assert mark is not None
        is_given_back = move.after.row.state not in TERMINAL | {State.ACTIVE}
        marked = patched(row, mark.patch)
        assert guard_holds(move.transition.guard, marked, now_ms) != is_given_back
        checked.add(move.verb)
    assert checked == set(ON_LEASE)


# Claims copy


@pytest.mark.parametrize("state", State)
def test_the_ready_index_holds_what_can_be_claimed(state: State) -> None:
    assert is_ready(sample(state)) == (state in ("waiting", "orphaned", "revoked"))


def test_a_claim_copies_the_answers_that_the_last_decision_wrote() -> None:
    for move in steps(verb="claim"):
        before, after = move.before.row, move.after.row
        assert (after.attempt, after.attempt_kind) == (before.next_attempt, before.next_kind)
        left = before.attempt_left_ms
        until = None if left is None else move.before.now_ms + left
        assert after.attempt_until_ms == until
        assert after.attempt_state is AttemptState.RUNNING
        assert (after.rev, after.renewed_ms) == (before.rev + 1, None)
        assert after.started_ms == (before.started_ms or move.before.now_ms)


def test_a_grant_counts_nothing_and_keeps_the_facts() -> None:
    kept = (
        *("attempt", "attempt_kind", "attempt_state", "attempt_started_ms", "next_attempt"),
        *("next_kind", "attempt_left_ms", "lost", "started_ms", "reclaim_count", "retry_count"),
    )
    for move in steps(verb="grant"):
        before, after = move.before.row, move.after.row
        assert after.reason is Reason.GRANTED
        assert after.due_ms == min(
            instant for instant in (after.lease_until_ms, after.deadline_ms) if instant is not None
        )
        for column in kept:
            assert getattr(after, column) == getattr(before, column)


def test_a_started_grant_is_the_row_that_a_claim_would_have_made() -> None:
    for move in steps(verb="claim"):
        spot = move.before
        grant = taken(spot.row, ask(spot.now_ms, start=False))
        started = applied(grant, start(lease_of(grant), spot.now_ms), spot.now_ms)
        assert changed(started, rev=move.after.row.rev) == move.after.row
