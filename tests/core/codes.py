"""The error codes of the catalogue, what a program should do about each, and those that wait for a
feature. No test lives here."""

from __future__ import annotations

import pytest

from flowfabric.errors import Reaction

# Where the catalogue's two tables differ, the first one: the other would repeat blindly what has
# been decided, or take a mistake for an answer.
CATALOGUE: dict[Reaction, str] = {
    Reaction.TERMINAL: """
        attempt_not_found attempt_not_started budget_attach_conflict budget_not_found
        budget_override_not_allowed cycle_detected dependency_already_exists
        execution_already_in_flow execution_not_active execution_not_eligible_for_attempt
        execution_not_found execution_not_in_flow execution_not_terminal fence_required
        flow_already_terminal flow_not_found invalid_blocking_reason invalid_budget_scope
        invalid_capabilities invalid_dependency invalid_grace_ms invalid_input invalid_kid
        invalid_lease_for_suspend invalid_policy_json invalid_quota_spec invalid_secret_hex
        invalid_tag_key invalid_token invalid_waitpoint_for_execution invalid_waitpoint_key
        lease_expired lease_revoked max_replays_exhausted max_retries_exhausted not_runnable
        partial_fence_triple payload_too_large quota_attach_conflict quota_policy_not_found
        replay_not_allowed resume_condition_not_met retention_limit_exceeded rotation_conflict
        self_referencing_edge signal_limit_exceeded stale_lease stale_owner_cannot_append
        stream_closed target_not_signalable terminal unauthorized waitpoint_not_token_bound
    """,
    Reaction.RETRYABLE: """
        capability_mismatch claim_grant_expired concurrency_limit_exceeded execution_not_leaseable
        invalid_claim_grant invalid_offset lease_conflict no_eligible_execution
        not_a_resumed_execution rate_limit_exceeded stale_graph_revision
        use_claim_resumed_execution waitpoint_not_found waitpoint_pending_use_buffer_script
    """,
    Reaction.COOPERATIVE: "budget_exceeded",
    Reaction.INFORMATIONAL: """
        already_suspended attempt_already_terminal budget_soft_exceeded deps_not_satisfied
        duplicate_signal execution_not_eligible execution_not_in_eligible_set
        execution_not_reclaimable execution_not_suspended grant_already_exists no_active_lease
        not_blocked_by_deps ok_already_applied pending_waitpoint_expired stream_already_closed
        waitpoint_already_exists waitpoint_closed waitpoint_not_open waitpoint_not_pending
    """,
    Reaction.BUG: "active_attempt_exists attempt_not_in_created_state corruption",
    Reaction.EXPECTED: "stream_not_found",
    Reaction.SOFT_ERROR: "invalid_frame_type",
}

_NOT_BUILT = (
    (
        pytest.mark.xfail(strict=True, reason="not built: suspensions, waitpoints and signals"),
        """
        already_suspended duplicate_signal execution_not_suspended not_a_resumed_execution
        use_claim_resumed_execution waitpoint_not_found
        invalid_lease_for_suspend invalid_token invalid_waitpoint_for_execution
        invalid_waitpoint_key pending_waitpoint_expired resume_condition_not_met
        signal_limit_exceeded target_not_signalable waitpoint_already_exists waitpoint_closed
        waitpoint_not_open waitpoint_not_pending waitpoint_not_token_bound
        waitpoint_pending_use_buffer_script
        """,
    ),
    (
        pytest.mark.xfail(strict=True, reason="not built: streams"),
        """
        invalid_frame_type stream_not_found
        invalid_offset retention_limit_exceeded stale_owner_cannot_append stream_already_closed
        stream_closed
        """,
    ),
    (
        pytest.mark.xfail(strict=True, reason="not built: budgets and quotas"),
        """
        budget_exceeded budget_soft_exceeded concurrency_limit_exceeded rate_limit_exceeded
        budget_attach_conflict budget_not_found budget_override_not_allowed invalid_budget_scope
        invalid_quota_spec quota_attach_conflict quota_policy_not_found
        """,
    ),
    (
        pytest.mark.xfail(strict=True, reason="not built: capabilities of workers"),
        "capability_mismatch invalid_capabilities",
    ),
    (
        pytest.mark.xfail(strict=True, reason="not built: a server with callers and secrets"),
        "invalid_grace_ms invalid_kid invalid_secret_hex rotation_conflict unauthorized",
    ),
)
_LATER = {code: mark for mark, codes in _NOT_BUILT for code in codes.split()}

# Codes of calls that do not exist here: an attempt begins with its claim and ends with its lease,
# what a member waits for is decided by the dispatch and never asked for, a lease is passed as a
# whole, a claim that finds nothing answers nothing, and what is repeated is answered as the first.
NO_SUCH_CALL = (
    "active_attempt_exists",
    "attempt_not_in_created_state",
    "execution_not_in_eligible_set",
    "execution_not_reclaimable",
    "grant_already_exists",
    "lease_conflict",
    "max_retries_exhausted",
    "no_eligible_execution",
    "ok_already_applied",
    "partial_fence_triple",
    "attempt_already_terminal",
    "attempt_not_found",
    "attempt_not_started",
    "deps_not_satisfied",
    "execution_not_eligible_for_attempt",
    "not_blocked_by_deps",
    "not_runnable",
    "replay_not_allowed",
    "terminal",
)


def documented() -> list[object]:
    """Every code that we have or are going to have, with its reaction."""
    return [
        pytest.param(code, reaction, marks=_LATER.get(code, ()), id=code)
        for reaction, codes in CATALOGUE.items()
        for code in codes.split()
        if code not in NO_SUCH_CALL
    ]
