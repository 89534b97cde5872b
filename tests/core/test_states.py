"""The tables of states: complete, consistent, and equal to the documented vocabulary."""

from __future__ import annotations

from enum import StrEnum
from itertools import product

import pytest

from flowfabric.core.states import (
    ALLOWED,
    ATTEMPT_STATES,
    BLOCKED,
    CLAIMABLE,
    PUBLIC,
    REASONS,
    RUNNABLE,
    SHAPE,
    TERMINAL,
    AttemptKind,
    AttemptLifecycle,
    AttemptState,
    Eligibility,
    LaneState,
    Outcome,
    Ownership,
    Phase,
    PublicState,
    Reason,
    State,
    derive_public_state,
    vector,
)

# `fallback` is documented and never produced; `resume` says that a claim goes on with an attempt.
VOCABULARY: dict[type[StrEnum], str] = {
    Phase: "submitted runnable active suspended terminal",
    Ownership: "unowned leased lease_expired_reclaimable lease_revoked",
    Eligibility: "eligible_now not_eligible_until_time blocked_by_dependencies blocked_by_budget "
    "blocked_by_quota blocked_by_route blocked_by_lane_state blocked_by_operator not_applicable",
    Reason: "none waiting_for_worker waiting_for_retry_backoff waiting_for_resume_delay "
    "waiting_for_delay waiting_for_signal waiting_for_approval waiting_for_callback "
    "waiting_for_tool_result waiting_for_children waiting_for_budget waiting_for_quota "
    "waiting_for_capable_worker waiting_for_locality_match paused_by_operator paused_by_policy "
    "paused_by_flow_cancel granted cancel_on_return",
    Outcome: "none success failed cancelled expired skipped",
    AttemptState: "none pending_first_attempt running_attempt attempt_interrupted "
    "pending_retry_attempt pending_replay_attempt attempt_terminal",
    PublicState: "waiting delayed rate_limited waiting_children active suspended resumable "
    "completed failed cancelled expired skipped",
    AttemptLifecycle: "created started suspended ended_success ended_failure ended_cancelled "
    "interrupted_reclaimed",
    AttemptKind: "initial retry reclaim replay resume",
    LaneState: "active paused draining disabled",
}

# Documented words that nothing stores, and the one that is stored but never shown.
NEVER_STORED = {
    Reason.WAITING_FOR_LOCALITY_MATCH,
    Reason.PAUSED_BY_FLOW_CANCEL,
}
NEVER_SHOWN = {PublicState.RESUMABLE}


@pytest.mark.parametrize("words", VOCABULARY, ids=lambda words: words.__name__)
def test_each_dimension_has_exactly_the_documented_words(words: type[StrEnum]) -> None:
    assert {member.value for member in words} == set(VOCABULARY[words].split())


def test_there_are_seventeen_states_and_every_table_speaks_of_all_of_them() -> None:
    assert len(State) == 17
    for table in (SHAPE, ALLOWED, ATTEMPT_STATES, REASONS, PUBLIC):
        assert set(table) == set(State)


def test_no_two_states_look_alike_from_outside() -> None:
    assert len(set(SHAPE.values())) == len(State)


def test_every_state_can_be_stored_with_some_reason_and_attempt_state() -> None:
    for state in State:
        assert REASONS[state]
        assert ATTEMPT_STATES[state]


def test_the_words_that_nothing_stores_are_in_no_table() -> None:
    stored = {reason for reasons in REASONS.values() for reason in reasons}
    assert set(Reason) - stored == NEVER_STORED
    assert set(PublicState) - set(PUBLIC.values()) == NEVER_SHOWN
    assert Phase.SUBMITTED not in {shape.phase for shape in SHAPE.values()}


@pytest.mark.case("LC-036")
@pytest.mark.parametrize(
    ("phase", "eligibility", "outcome", "expected"),
    [
        ("submitted", "eligible_now", "none", "waiting"),
        ("runnable", "eligible_now", "none", "waiting"),
        ("runnable", "not_eligible_until_time", "none", "delayed"),
        ("runnable", "blocked_by_dependencies", "none", "waiting_children"),
        ("runnable", "blocked_by_budget", "none", "rate_limited"),
        ("runnable", "blocked_by_quota", "none", "rate_limited"),
        ("runnable", "blocked_by_route", "none", "waiting"),
        ("runnable", "blocked_by_lane_state", "none", "waiting"),
        ("runnable", "blocked_by_operator", "none", "waiting"),
        ("runnable", "not_applicable", "none", "waiting"),
        ("suspended", "not_applicable", "none", "suspended"),
        ("active", "not_applicable", "none", "active"),
        ("terminal", "not_applicable", "success", "completed"),
        ("terminal", "not_applicable", "failed", "failed"),
        ("terminal", "not_applicable", "cancelled", "cancelled"),
        ("terminal", "not_applicable", "expired", "expired"),
        ("terminal", "not_applicable", "skipped", "skipped"),
        ("terminal", "not_applicable", "none", "failed"),
    ],
)
def test_the_public_state_is_derived_as_documented(
    phase: str, eligibility: str, outcome: str, expected: str
) -> None:
    derived = derive_public_state(Phase(phase), Eligibility(eligibility), Outcome(outcome))
    assert derived == expected


@pytest.mark.parametrize(
    ("phase", "decides"),
    [
        (Phase.TERMINAL, "outcome"),
        (Phase.RUNNABLE, "eligibility"),
        (Phase.SUSPENDED, "nothing"),
        (Phase.ACTIVE, "nothing"),
        (Phase.SUBMITTED, "nothing"),
    ],
)
def test_the_derivation_is_total_and_each_phase_looks_at_one_dimension(
    phase: Phase, decides: str
) -> None:
    answers: dict[object, set[PublicState]] = {}
    for eligibility, outcome in product(Eligibility, Outcome):
        looked_at = {"outcome": outcome, "eligibility": eligibility, "nothing": None}[decides]
        answer = derive_public_state(phase, eligibility, outcome)
        answers.setdefault(looked_at, set()).add(answer)
    assert all(len(found) == 1 for found in answers.values())


@pytest.mark.case("LC-038")
def test_four_ends_of_an_attempt_are_final_and_three_phases_are_not() -> None:
    final = {lifecycle for lifecycle in AttemptLifecycle if lifecycle.is_terminal}
    assert final == {
        AttemptLifecycle.ENDED_SUCCESS,
        AttemptLifecycle.ENDED_FAILURE,
        AttemptLifecycle.ENDED_CANCELLED,
        AttemptLifecycle.INTERRUPTED_RECLAIMED,
    }


@pytest.mark.case("LC-039")
@pytest.mark.parametrize(
    ("member", "text"),
    [
        (PublicState.ACTIVE, "active"),
        (Reason.PAUSED_BY_FLOW_CANCEL, "paused_by_flow_cancel"),
        (PublicState.RESUMABLE, "resumable"),
    ],
)
def test_words_print_as_themselves_and_parse_back(member: StrEnum, text: str) -> None:
    assert str(member) == text
    assert type(member)(text) is member


def test_ownership_is_shown_only_where_somebody_owns_or_owned() -> None:
    owned = {state for state in State if SHAPE[state].ownership is not Ownership.UNOWNED}
    assert owned == {State.ACTIVE, State.ORPHANED, State.REVOKED}


@pytest.mark.parametrize("state", State)
def test_eligibility_and_outcome_apply_only_to_their_phase(state: State) -> None:
    shape = SHAPE[state]
    assert (shape.eligibility is Eligibility.NOT_APPLICABLE) == (shape.phase is not Phase.RUNNABLE)
    assert (shape.outcome is Outcome.NONE) == (shape.phase is not Phase.TERMINAL)


def test_the_sets_of_states_are_what_their_names_say() -> None:
    assert " ".join(sorted(TERMINAL)) == "cancelled completed expired failed skipped"
    assert {str(state) for state in BLOCKED} == {s for s in State if s.startswith("blocked_")}
    assert BLOCKED | {State.WAITING, State.DELAYED} == RUNNABLE
    assert {State.WAITING, State.ORPHANED, State.REVOKED} == CLAIMABLE


def test_a_grant_is_shown_as_waiting_for_its_worker() -> None:
    shown = vector(State.ACTIVE, Reason.GRANTED, AttemptState.PENDING_FIRST)
    assert shown.blocking_reason is Reason.WAITING_FOR_WORKER
    assert shown.public_state is PublicState.ACTIVE


def test_what_is_not_to_be_tried_again_is_shown_as_running() -> None:
    shown = vector(State.ACTIVE, Reason.CANCEL_ON_RETURN, AttemptState.RUNNING)
    assert shown == vector(State.ACTIVE, Reason.NONE, AttemptState.RUNNING)


@pytest.mark.parametrize("state", State)
def test_every_other_reason_is_shown_as_it_is_stored(state: State) -> None:
    stored = REASONS[state] - {Reason.GRANTED, Reason.CANCEL_ON_RETURN}
    for reason, attempt_state in product(stored, ATTEMPT_STATES[state]):
        shown = vector(state, reason, attempt_state)
        assert (shown.blocking_reason, shown.attempt_state) == (reason, attempt_state)


def test_no_state_follows_itself() -> None:
    assert [state for state in State if state in ALLOWED[state]] == []


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_the_end_is_left_only_to_run_again(state: State) -> None:
    assert ALLOWED[state] == {State.WAITING, State.BLOCKED_DEPENDENCIES}


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
def test_every_state_before_the_end_can_be_cancelled_expired_and_skipped(state: State) -> None:
    assert {State.CANCELLED, State.EXPIRED, State.SKIPPED} <= ALLOWED[state]


def test_only_what_is_claimable_becomes_active_and_only_active_work_succeeds() -> None:
    def before(state: State) -> set[State]:
        return {earlier for earlier in State if state in ALLOWED[earlier]}

    assert before(State.ACTIVE) == CLAIMABLE
    assert before(State.COMPLETED) == {State.ACTIVE}
    assert before(State.ORPHANED) == before(State.REVOKED) == {State.ACTIVE}
    assert before(State.SUSPENDED) == {State.ACTIVE}


@pytest.mark.parametrize("state", State)
def test_an_attempt_runs_only_in_an_active_execution(state: State) -> None:
    assert (AttemptState.RUNNING in ATTEMPT_STATES[state]) == (state is State.ACTIVE)
