"""Why is it not running? One sentence, the code behind it, and what will wake it.

Every non-terminal execution is claimable, held by a live lease, has a due time, or names what
blocks it. `Explanation.wakes` says which; nothing may answer `nothing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple, assert_never

import msgspec

from flowfabric.core.duration import format_ms
from flowfabric.core.flow.eligibility import Standing, Waits, standing_of
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import UNREAD
from flowfabric.core.model import Execution
from flowfabric.core.states import (
    CLAIMABLE,
    TERMINAL,
    LaneState,
    PublicState,
    Reason,
    State,
    vector,
)
from flowfabric.printing import one_line, with_public_ids


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an execution is not running: `sentence` for people, the rest for programs."""

    state: State
    public_state: PublicState
    reason: Reason
    sentence: str
    wakes: str
    member: str = ""
    until_ms: int | None = None
    eligibility: Standing = Standing.ELIGIBLE
    waits_for: tuple[ExecutionId, ...] = ()
    to_replay: tuple[ExecutionId, ...] = ()


NO_NAMES: Mapping[str, str] = MappingProxyType({})


class _Why(NamedTuple):
    sentence: str
    wakes: str
    until_ms: int | None = None


def explain(
    row: Execution,
    now_ms: int,
    lane: LaneState = LaneState.ACTIVE,
    waits: Waits | None = None,
    *,
    unserved: str = "",
    names: Mapping[str, str] = NO_NAMES,
) -> Explanation:
    """What the execution does, or what keeps it from being done; `waits`: by its flow; `unserved`:
    why no live worker takes it; `names`: of members, as far as they are known."""
    waits = waits or Waits(standing_of(row))
    why = _parked(row) if _is_parked(row, now_ms) else _why(row, now_ms, lane)
    if why.wakes == "worker" and unserved:
        why = _Why(unserved, "worker")
    if why.wakes == "dependencies":
        why = _Why(_dependencies(waits, names), "operator" if waits.to_replay else why.wakes)
    shown = vector(row.state, row.reason, row.attempt_state)
    return Explanation(
        state=row.state,
        public_state=shown.public_state,
        reason=shown.blocking_reason,
        sentence=with_public_ids(one_line(why.sentence)),
        wakes=why.wakes,
        member=names.get(row.id, ""),
        until_ms=why.until_ms,
        eligibility=waits.standing,
        waits_for=waits.unfinished,
        to_replay=waits.to_replay,
    )


def _why(row: Execution, now_ms: int, lane: LaneState) -> _Why:
    match row.state:
        case State.WAITING | State.ORPHANED | State.REVOKED:
            return _claimable(row, lane)
        case State.DELAYED:
            return _delayed(row, now_ms)
        case State.ACTIVE:
            return _active(row, now_ms)
        case State.BLOCKED_OPERATOR:
            return _Why("paused by an operator; resume it to go on", "operator")
        case State.BLOCKED_LANE:
            return _Why("paused by policy; unblock it to go on", "operator")
        case State.BLOCKED_DEPENDENCIES:
            return _Why("waiting for the executions it depends on", "dependencies")
        case State.BLOCKED_BUDGET | State.BLOCKED_QUOTA | State.BLOCKED_ROUTE:
            return _gate(row, now_ms)
        case State.SUSPENDED:
            return _Why("suspended until something outside answers", "signal", row.due_ms)
        case State.COMPLETED:
            return _Why(f"completed at {_clock(row.ended_ms)}", "over")
        case State.FAILED | State.CANCELLED | State.EXPIRED | State.SKIPPED:
            detail = f": {row.outcome_detail}" if row.outcome_detail else ""
            return _Why(f"{row.state} at {_clock(row.ended_ms)}{detail}", "over")
        case _:
            assert_never(row.state)


def _dependencies(waits: Waits, names: Mapping[str, str]) -> str:
    if waits.is_held:
        return "replayed; held until its downstream members are reset"
    if waits.to_replay:
        first, others = waits.to_replay[0], len(waits.to_replay) - 1
        more = f" and {others} more" if others else ""
        shown = f"{names[first]!r} ({first})" if first in names else first
        return f"waiting for upstreams that ended before it was replayed; replay {shown}{more}"
    if waits.standing is Standing.IMPOSSIBLE:
        return "its dependencies can no longer be met; it is about to be skipped"
    if waits.standing is Standing.ELIGIBLE:
        return "its dependencies are met; it is about to be released"
    if waits.upstreams:
        left = len(waits.unfinished)
        known = [repr(names[each]) for each in waits.unfinished if each in names]
        among = f", among them {', '.join(known)}" if known else ""
        return f"waiting for {left} of the {waits.upstreams} executions it depends on{among}"
    return "waiting for the executions it depends on"


def _claimable(row: Execution, lane: LaneState) -> _Why:
    if lane in (LaneState.PAUSED, LaneState.DISABLED):
        return _Why(f"lane '{row.lane}' is {lane}; resume the lane to go on", "lane")
    told = {
        State.ORPHANED: "its worker stopped renewing the lease; any other worker of",
        State.REVOKED: f"its lease was revoked ({row.outcome_detail or 'operator'}); any worker of",
    }.get(row.state, "ready; the next free worker of")
    return _Why(f"{_unread(row)}{told} lane '{row.lane}' can take task '{row.kind}'", "worker")


def _delayed(row: Execution, now_ms: int) -> _Why:
    left = format_ms(max((row.not_before_ms or now_ms) - now_ms, 0))
    until = _clock(row.not_before_ms)
    if row.reason is Reason.WAITING_FOR_RETRY_BACKOFF:
        why = f"retry {row.retry_count} after: {row.outcome_detail}; " if row.outcome_detail else ""
        return _Why(f"{why}delayed until {until} (in {left})", "timer", row.not_before_ms)
    told = f"{_unread(row)}delayed until {until} (in {left})"
    return _Why(told, "timer", row.not_before_ms)


def _unread(row: Execution) -> str:
    """That a worker handed it back because it could not read it; empty if none did."""
    if row.outcome_category != UNREAD:
        return ""
    return f"the last worker could not read its {row.outcome_detail}; another version may; "


def _active(row: Execution, now_ms: int) -> _Why:
    left = format_ms(max((row.lease_until_ms or now_ms) - now_ms, 0))
    if row.reason is Reason.GRANTED:
        return _Why(f"granted to {row.worker}, not started yet", "timer", row.lease_until_ms)
    told = f"running on {row.worker}, attempt {row.attempt + 1}, lease for another {left}"
    if row.reason is Reason.CANCEL_ON_RETURN:
        told += "; its flow was cancelled: it may finish, and is not retried"
    return _Why(told, "lease", row.lease_until_ms)


def _gate(row: Execution, now_ms: int) -> _Why:
    gate = row.reason.removeprefix("waiting_for_").replace("_", " ")
    left = format_ms(max((row.recheck_ms or now_ms) - now_ms, 0))
    return _Why(f"waiting for {gate}; checked again in {left}", "timer", row.recheck_ms)


def _is_parked(row: Execution, now_ms: int) -> bool:
    """Nothing wakes it any more. A worker that can take it, or still renews its lease, would."""
    if not row.parked or row.state in CLAIMABLE | TERMINAL:
        return False
    return row.state is not State.ACTIVE or (row.lease_until_ms or 0) <= now_ms


def _parked(row: Execution) -> _Why:
    return _Why(f"parked after {row.failures} failures: {row.parked}", "operator")


def blocking_detail(row: Execution) -> str:
    """A short text beside the blocking reason; empty when there is nothing to add."""
    match row.state:
        case State.DELAYED:
            return f"delayed until {_clock(row.not_before_ms)}"
        case State.ORPHANED:
            return "lease expired, awaiting reclaim"
        case State.REVOKED:
            return one_line(f"lease revoked: {row.outcome_detail or 'operator'}")
        case _:
            return ""


def _clock(instant_ms: int | None) -> str:
    if instant_ms is None:
        return "an unknown time"
    moment = datetime.fromtimestamp(instant_ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
