"""The seventeen situations an execution can be in, and who may follow whom.

Two rules. Everything about legal states lives in this file; this file knows nothing about verbs.

An execution stores one `State`, a `Reason` and an `AttemptState`. The seven public dimensions
(phase, ownership, eligibility, blocking reason, outcome, attempt state, public state) are derived
from these three by the tables below, so an illegal combination cannot be stored. The tables are
the truth: the transitions assert them, the diagram in the documentation is drawn from them, and
the tests walk every pair.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, assert_never


class State(StrEnum):
    WAITING = "waiting"  # ready for any worker
    DELAYED = "delayed"  # ready later: a submit delay, a retry pause, a worker's own delay
    BLOCKED_DEPENDENCIES = "blocked_dependencies"
    BLOCKED_BUDGET = "blocked_budget"
    BLOCKED_QUOTA = "blocked_quota"
    BLOCKED_ROUTE = "blocked_route"
    BLOCKED_LANE = "blocked_lane"
    BLOCKED_OPERATOR = "blocked_operator"
    ACTIVE = "active"  # a worker holds the lease, or was granted it and has not started
    ORPHANED = "orphaned"  # the lease ended unrenewed; claimable as a new attempt
    REVOKED = "revoked"  # the lease was taken away; claimable as a new attempt
    SUSPENDED = "suspended"  # waits for something outside, without a worker
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


class Reason(StrEnum):
    """Why it is not running; `none` while it runs and after the end."""

    NONE = "none"
    GRANTED = "granted"  # active but not started; shown as waiting_for_worker
    CANCEL_ON_RETURN = "cancel_on_return"  # active, never to be tried again; shown as none
    WAITING_FOR_WORKER = "waiting_for_worker"
    WAITING_FOR_RETRY_BACKOFF = "waiting_for_retry_backoff"
    WAITING_FOR_RESUME_DELAY = "waiting_for_resume_delay"
    WAITING_FOR_DELAY = "waiting_for_delay"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_CALLBACK = "waiting_for_callback"
    WAITING_FOR_TOOL_RESULT = "waiting_for_tool_result"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    WAITING_FOR_BUDGET = "waiting_for_budget"
    WAITING_FOR_QUOTA = "waiting_for_quota"
    WAITING_FOR_CAPABLE_WORKER = "waiting_for_capable_worker"
    WAITING_FOR_LOCALITY_MATCH = "waiting_for_locality_match"
    PAUSED_BY_OPERATOR = "paused_by_operator"
    PAUSED_BY_POLICY = "paused_by_policy"
    PAUSED_BY_FLOW_CANCEL = "paused_by_flow_cancel"


class AttemptState(StrEnum):
    NONE = "none"
    PENDING_FIRST = "pending_first_attempt"
    RUNNING = "running_attempt"
    INTERRUPTED = "attempt_interrupted"
    PENDING_RETRY = "pending_retry_attempt"
    PENDING_REPLAY = "pending_replay_attempt"
    TERMINAL = "attempt_terminal"


class AttemptKind(StrEnum):
    """How an attempt came to be. `resume` goes on with the attempt that was interrupted."""

    INITIAL = "initial"
    RETRY = "retry"
    RECLAIM = "reclaim"
    REPLAY = "replay"
    RESUME = "resume"


class AttemptLifecycle(StrEnum):
    CREATED = "created"
    STARTED = "started"
    SUSPENDED = "suspended"
    ENDED_SUCCESS = "ended_success"
    ENDED_FAILURE = "ended_failure"
    ENDED_CANCELLED = "ended_cancelled"
    INTERRUPTED_RECLAIMED = "interrupted_reclaimed"

    @property
    def is_terminal(self) -> bool:
        return self not in (self.CREATED, self.STARTED, self.SUSPENDED)


class Phase(StrEnum):
    SUBMITTED = "submitted"
    RUNNABLE = "runnable"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    TERMINAL = "terminal"


class Ownership(StrEnum):
    UNOWNED = "unowned"
    LEASED = "leased"
    LEASE_EXPIRED_RECLAIMABLE = "lease_expired_reclaimable"
    LEASE_REVOKED = "lease_revoked"


class Eligibility(StrEnum):
    ELIGIBLE_NOW = "eligible_now"
    NOT_ELIGIBLE_UNTIL_TIME = "not_eligible_until_time"
    BLOCKED_BY_DEPENDENCIES = "blocked_by_dependencies"
    BLOCKED_BY_BUDGET = "blocked_by_budget"
    BLOCKED_BY_QUOTA = "blocked_by_quota"
    BLOCKED_BY_ROUTE = "blocked_by_route"
    BLOCKED_BY_LANE_STATE = "blocked_by_lane_state"
    BLOCKED_BY_OPERATOR = "blocked_by_operator"
    NOT_APPLICABLE = "not_applicable"


class Outcome(StrEnum):
    NONE = "none"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


class PublicState(StrEnum):
    """The state of an execution as people see it."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RATE_LIMITED = "rate_limited"
    WAITING_CHILDREN = "waiting_children"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    RESUMABLE = "resumable"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


class LaneState(StrEnum):
    """Whether a lane takes new work, and whether workers may claim from it."""

    ACTIVE = "active"
    PAUSED = "paused"  # takes work, hands none out
    DRAINING = "draining"  # hands out what it has, takes none
    DISABLED = "disabled"  # neither


class Shape(NamedTuple):
    """The dimensions that depend on the state alone."""

    phase: Phase
    ownership: Ownership
    eligibility: Eligibility
    outcome: Outcome


class Vector(NamedTuple):
    """All seven public dimensions."""

    phase: Phase
    ownership: Ownership
    eligibility: Eligibility
    blocking_reason: Reason
    outcome: Outcome
    attempt_state: AttemptState
    public_state: PublicState


def _runnable(eligibility: Eligibility) -> Shape:
    return Shape(Phase.RUNNABLE, Ownership.UNOWNED, eligibility, Outcome.NONE)


def _active(ownership: Ownership) -> Shape:
    return Shape(Phase.ACTIVE, ownership, Eligibility.NOT_APPLICABLE, Outcome.NONE)


def _terminal(outcome: Outcome) -> Shape:
    return Shape(Phase.TERMINAL, Ownership.UNOWNED, Eligibility.NOT_APPLICABLE, outcome)


SHAPE: dict[State, Shape] = {
    State.WAITING: _runnable(Eligibility.ELIGIBLE_NOW),
    State.DELAYED: _runnable(Eligibility.NOT_ELIGIBLE_UNTIL_TIME),
    State.BLOCKED_DEPENDENCIES: _runnable(Eligibility.BLOCKED_BY_DEPENDENCIES),
    State.BLOCKED_BUDGET: _runnable(Eligibility.BLOCKED_BY_BUDGET),
    State.BLOCKED_QUOTA: _runnable(Eligibility.BLOCKED_BY_QUOTA),
    State.BLOCKED_ROUTE: _runnable(Eligibility.BLOCKED_BY_ROUTE),
    State.BLOCKED_LANE: _runnable(Eligibility.BLOCKED_BY_LANE_STATE),
    State.BLOCKED_OPERATOR: _runnable(Eligibility.BLOCKED_BY_OPERATOR),
    State.ACTIVE: _active(Ownership.LEASED),
    State.ORPHANED: _active(Ownership.LEASE_EXPIRED_RECLAIMABLE),
    State.REVOKED: _active(Ownership.LEASE_REVOKED),
    State.SUSPENDED: Shape(
        Phase.SUSPENDED, Ownership.UNOWNED, Eligibility.NOT_APPLICABLE, Outcome.NONE
    ),
    State.COMPLETED: _terminal(Outcome.SUCCESS),
    State.FAILED: _terminal(Outcome.FAILED),
    State.CANCELLED: _terminal(Outcome.CANCELLED),
    State.EXPIRED: _terminal(Outcome.EXPIRED),
    State.SKIPPED: _terminal(Outcome.SKIPPED),
}

TERMINAL = frozenset(s for s in State if SHAPE[s].phase is Phase.TERMINAL)
RUNNABLE = frozenset(s for s in State if SHAPE[s].phase is Phase.RUNNABLE)
BLOCKED = frozenset(s for s in RUNNABLE if s not in (State.WAITING, State.DELAYED))
CLAIMABLE = frozenset({State.WAITING, State.ORPHANED, State.REVOKED})

_ENDED_EARLY = frozenset({State.CANCELLED, State.EXPIRED, State.SKIPPED})
_REPLAYED = frozenset({State.WAITING, State.BLOCKED_DEPENDENCIES})

ALLOWED: dict[State, frozenset[State]] = {
    State.WAITING: BLOCKED | _ENDED_EARLY | {State.ACTIVE},
    State.DELAYED: BLOCKED | _ENDED_EARLY | {State.WAITING},
    **{s: (RUNNABLE - {s}) | _ENDED_EARLY for s in BLOCKED},
    State.ACTIVE: BLOCKED
    | _ENDED_EARLY
    | {
        State.WAITING,
        State.DELAYED,
        State.ORPHANED,
        State.REVOKED,
        State.SUSPENDED,
        State.COMPLETED,
        State.FAILED,
    },
    State.ORPHANED: _ENDED_EARLY | {State.ACTIVE},
    State.REVOKED: _ENDED_EARLY | {State.ACTIVE},
    State.SUSPENDED: BLOCKED | _ENDED_EARLY | {State.WAITING, State.DELAYED, State.FAILED},
    **dict.fromkeys(TERMINAL, _REPLAYED),
}

_PENDING = frozenset(
    {
        AttemptState.PENDING_FIRST,
        AttemptState.PENDING_RETRY,
        AttemptState.PENDING_REPLAY,
        AttemptState.INTERRUPTED,
    }
)
_INTERRUPTED = frozenset({AttemptState.INTERRUPTED})
_OVER = frozenset({AttemptState.TERMINAL})

# A cancel or an expiry before any attempt leaves the attempt pending: nothing ran, nothing ended.
ATTEMPT_STATES: dict[State, frozenset[AttemptState]] = {
    **dict.fromkeys(RUNNABLE, _PENDING),
    State.ACTIVE: _PENDING | {AttemptState.RUNNING},
    State.ORPHANED: _INTERRUPTED,
    State.REVOKED: _INTERRUPTED,
    State.SUSPENDED: _INTERRUPTED,
    State.COMPLETED: _OVER,
    State.FAILED: _OVER,
    State.CANCELLED: _OVER | _PENDING,
    State.EXPIRED: _OVER | _PENDING,
    State.SKIPPED: _OVER | {AttemptState.NONE},
}

_NO_REASON = frozenset({Reason.NONE})

REASONS: dict[State, frozenset[Reason]] = {
    State.WAITING: frozenset({Reason.WAITING_FOR_WORKER}),
    State.DELAYED: frozenset(
        {
            Reason.WAITING_FOR_DELAY,
            Reason.WAITING_FOR_RETRY_BACKOFF,
            Reason.WAITING_FOR_RESUME_DELAY,
        }
    ),
    State.BLOCKED_DEPENDENCIES: frozenset({Reason.WAITING_FOR_CHILDREN}),
    State.BLOCKED_BUDGET: frozenset({Reason.WAITING_FOR_BUDGET}),
    State.BLOCKED_QUOTA: frozenset({Reason.WAITING_FOR_QUOTA}),
    State.BLOCKED_ROUTE: frozenset({Reason.WAITING_FOR_CAPABLE_WORKER}),
    State.BLOCKED_LANE: frozenset({Reason.PAUSED_BY_POLICY}),
    State.BLOCKED_OPERATOR: frozenset({Reason.PAUSED_BY_OPERATOR}),
    State.ACTIVE: frozenset({Reason.NONE, Reason.GRANTED, Reason.CANCEL_ON_RETURN}),
    State.ORPHANED: frozenset({Reason.WAITING_FOR_WORKER}),
    State.REVOKED: frozenset({Reason.WAITING_FOR_WORKER}),
    State.SUSPENDED: frozenset(
        {
            Reason.WAITING_FOR_SIGNAL,
            Reason.WAITING_FOR_APPROVAL,
            Reason.WAITING_FOR_CALLBACK,
            Reason.WAITING_FOR_TOOL_RESULT,
            Reason.WAITING_FOR_BUDGET,
            Reason.PAUSED_BY_OPERATOR,
            Reason.PAUSED_BY_POLICY,
        }
    ),
    **dict.fromkeys(TERMINAL, _NO_REASON),
}

_BY_OUTCOME: dict[Outcome, PublicState] = {
    Outcome.SUCCESS: PublicState.COMPLETED,
    Outcome.FAILED: PublicState.FAILED,
    Outcome.CANCELLED: PublicState.CANCELLED,
    Outcome.EXPIRED: PublicState.EXPIRED,
    Outcome.SKIPPED: PublicState.SKIPPED,
    Outcome.NONE: PublicState.FAILED,
}

_BY_ELIGIBILITY: dict[Eligibility, PublicState] = {
    Eligibility.ELIGIBLE_NOW: PublicState.WAITING,
    Eligibility.NOT_ELIGIBLE_UNTIL_TIME: PublicState.DELAYED,
    Eligibility.BLOCKED_BY_DEPENDENCIES: PublicState.WAITING_CHILDREN,
    Eligibility.BLOCKED_BY_BUDGET: PublicState.RATE_LIMITED,
    Eligibility.BLOCKED_BY_QUOTA: PublicState.RATE_LIMITED,
    Eligibility.BLOCKED_BY_ROUTE: PublicState.WAITING,
    Eligibility.BLOCKED_BY_LANE_STATE: PublicState.WAITING,
    Eligibility.BLOCKED_BY_OPERATOR: PublicState.WAITING,
    Eligibility.NOT_APPLICABLE: PublicState.WAITING,
}


def derive_public_state(
    phase: Phase, eligibility: Eligibility, outcome: Outcome = Outcome.NONE
) -> PublicState:
    """The label people see. Total: every combination has an answer."""
    match phase:
        case Phase.TERMINAL:
            return _BY_OUTCOME[outcome]
        case Phase.SUSPENDED:
            return PublicState.SUSPENDED
        case Phase.ACTIVE:
            return PublicState.ACTIVE
        case Phase.RUNNABLE:
            return _BY_ELIGIBILITY[eligibility]
        case Phase.SUBMITTED:
            return PublicState.WAITING
        case _:
            assert_never(phase)


PUBLIC: dict[State, PublicState] = {
    state: derive_public_state(shape.phase, shape.eligibility, shape.outcome)
    for state, shape in SHAPE.items()
}


_SHOWN_AS: dict[Reason, Reason] = {
    Reason.GRANTED: Reason.WAITING_FOR_WORKER,
    Reason.CANCEL_ON_RETURN: Reason.NONE,
}


def vector(state: State, reason: Reason, attempt_state: AttemptState) -> Vector:
    """The public dimensions of what is stored."""
    shape = SHAPE[state]
    return Vector(
        shape.phase,
        shape.ownership,
        shape.eligibility,
        _SHOWN_AS.get(reason, reason),
        shape.outcome,
        attempt_state,
        PUBLIC[state],
    )
