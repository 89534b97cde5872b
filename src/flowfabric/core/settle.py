"""One pure function picks the state of whatever is neither running nor over.

Facts are stored, the state is settled from them. An execution can have several reasons not to
run at once (paused by an operator, waiting for upstreams, delayed); taking one away must not
release it past the others, so no decision ever writes `waiting` by itself.

    order:  operator > dependencies > time > admission > lost lease > waiting
"""

from __future__ import annotations

import msgspec

from flowfabric.core.duration import earliest
from flowfabric.core.model import Admission, Execution, Loss, Value
from flowfabric.core.states import AttemptKind, Reason, State

_ADMITTED, _DELAYED = Admission.NONE, State.DELAYED


class Facts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Everything that can keep an execution from running."""

    deadline_ms: int | None
    next_kind: AttemptKind
    not_before_ms: int | None = None
    paused: bool = False
    deps_open: bool = False
    admission: Admission = Admission.NONE
    recheck_ms: int | None = None
    lost: Loss = Loss.NONE


def facts_of(row: Execution, *, deps_open: bool | None = None, lost: Loss | None = None) -> Facts:
    """The facts of a row, some of them as they are about to be."""
    return Facts(
        deadline_ms=row.deadline_ms,
        next_kind=row.next_kind,
        not_before_ms=row.not_before_ms,
        paused=row.paused,
        deps_open=row.deps_open if deps_open is None else deps_open,
        admission=row.admission,
        recheck_ms=row.recheck_ms,
        lost=row.lost if lost is None else lost,
    )


_ADMISSION: dict[Admission, tuple[State, Reason]] = {
    Admission.BUDGET: (State.BLOCKED_BUDGET, Reason.WAITING_FOR_BUDGET),
    Admission.QUOTA: (State.BLOCKED_QUOTA, Reason.WAITING_FOR_QUOTA),
    Admission.ROUTE: (State.BLOCKED_ROUTE, Reason.WAITING_FOR_CAPABLE_WORKER),
    Admission.LANE: (State.BLOCKED_LANE, Reason.PAUSED_BY_POLICY),
}

_BY_OPERATOR = (State.BLOCKED_OPERATOR, Reason.PAUSED_BY_OPERATOR)
_BY_DEPENDENCIES = (State.BLOCKED_DEPENDENCIES, Reason.WAITING_FOR_CHILDREN)

GATE_REASON: dict[Admission, Reason] = {
    admission: reason for admission, (_, reason) in _ADMISSION.items()
}

_LOST: dict[Loss, tuple[State, Reason]] = {
    Loss.NONE: (State.WAITING, Reason.WAITING_FOR_WORKER),
    Loss.EXPIRED: (State.ORPHANED, Reason.WAITING_FOR_WORKER),
    Loss.REVOKED: (State.REVOKED, Reason.WAITING_FOR_WORKER),
}


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The columns that follow from the facts."""

    state: State
    reason: Reason
    due_ms: int | None
    not_before_ms: int | None

    def patch(self, **more: Value) -> dict[str, Value]:
        return {
            "state": self.state,
            "reason": self.reason,
            "due_ms": self.due_ms,
            "not_before_ms": self.not_before_ms,
            **more,
        }


def settle(facts: Facts, now_ms: int) -> Settled:
    """A delay that is over is forgotten: a clock a little behind must not see it again."""
    not_before = facts.not_before_ms
    if not_before is not None and not_before <= now_ms:
        not_before = None
    state, reason = _situation(facts, now_ms)
    return Settled(state, reason, _next_due(state, facts), not_before)


def _situation(facts: Facts, now_ms: int) -> tuple[State, Reason]:
    if facts.paused:
        return _BY_OPERATOR
    if facts.deps_open:
        return _BY_DEPENDENCIES
    if facts.not_before_ms is not None and facts.not_before_ms > now_ms:
        return State.DELAYED, _delay_reason(facts.next_kind)
    if facts.admission is not _ADMITTED:
        return _ADMISSION[facts.admission]
    return _LOST[facts.lost]


def _delay_reason(next_kind: AttemptKind) -> Reason:
    if next_kind is AttemptKind.RETRY:
        return Reason.WAITING_FOR_RETRY_BACKOFF
    return Reason.WAITING_FOR_DELAY


def _next_due(state: State, facts: Facts) -> int | None:
    wake = None
    if state is _DELAYED:
        wake = facts.not_before_ms
    elif facts.admission is not _ADMITTED:
        wake = facts.recheck_ms
    return facts.deadline_ms if wake is None else earliest(wake, facts.deadline_ms)
