"""The summary of a flow: how many members are in which public state, and what that makes of it.

The derived state is only shown. Whether a flow takes members is told by its own state, which
nothing here touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import assert_never

import msgspec

from flowfabric.core.flow.model import Flow, FlowState, Line, LineKind
from flowfabric.core.flow.outcome import FlowOutcome
from flowfabric.core.states import PUBLIC, PublicState


class FlowStatus(StrEnum):
    """What a flow looks like from the outside."""

    OPEN = "open"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Exact at any size: `sampled_members` is the number of members that were counted, which is
    all of them. A member whose state cannot be read is counted there and nowhere else."""

    total_members: int
    sampled_members: int
    members_completed: int
    members_failed: int
    members_cancelled: int
    members_expired: int
    members_skipped: int
    members_active: int
    members_suspended: int
    members_waiting: int
    members_delayed: int
    members_rate_limited: int
    members_waiting_children: int
    public_flow_state: FlowStatus
    last_summary_update_at: int


_SHOWN = {
    f"members_{state.value}": state for state in PublicState if state is not PublicState.RESUMABLE
}
_NOBODY = dict.fromkeys(PublicState, 0)
_GOOD = (PublicState.COMPLETED, PublicState.SKIPPED)
_BAD = (PublicState.FAILED, PublicState.CANCELLED, PublicState.EXPIRED)
_HELD_UP = (
    PublicState.SUSPENDED,
    PublicState.DELAYED,
    PublicState.RATE_LIMITED,
    PublicState.WAITING_CHILDREN,
)
_PUBLIC: dict[str, PublicState] = {state.value: shown for state, shown in PUBLIC.items()}


def summarize(tally: Mapping[str, int], now_ms: int) -> Summary:
    """The summary of a flow with so many members in each stored state."""
    counts = _NOBODY.copy()
    for state, count in tally.items():
        if state in _PUBLIC:
            counts[_PUBLIC[state]] += count
    total = sum(tally.values())
    return Summary(
        total_members=total,
        sampled_members=total,
        **{name: counts[state] for name, state in _SHOWN.items()},
        public_flow_state=_derive(counts, total),
        last_summary_update_at=now_ms,
    )


def unknown_states(tally: Mapping[str, int]) -> list[str]:
    """What members say about themselves that no state is called."""
    return sorted(state for state in tally if state not in _PUBLIC)


def _derive(counts: Mapping[PublicState, int], total: int) -> FlowStatus:
    bad = sum(counts[state] for state in _BAD)
    ended = bad + sum(counts[state] for state in _GOOD)
    if total and ended == total:
        return FlowStatus.FAILED if bad else FlowStatus.COMPLETED
    if counts[PublicState.ACTIVE]:
        return FlowStatus.RUNNING
    if any(counts[state] for state in _HELD_UP):
        return FlowStatus.BLOCKED
    return FlowStatus.OPEN


class FlowSnapshot(msgspec.Struct, frozen=True):
    """A flow at one moment. `state` counts the members; a cancelled flow is `cancelled` whatever
    its members do. `cancel_requested_ms`: when its cancel was requested, even if it is not carried
    out yet. `outcome`: whether the flow succeeded; failures that were absorbed do not count."""

    state: FlowStatus
    summary: Summary
    flow: Flow
    cancel_requested_ms: int | None = None
    outcome: FlowOutcome = FlowOutcome.PENDING


def snapshot(
    flow: Flow, tally: Mapping[str, int], now_ms: int, lines: Iterable[Line] = ()
) -> FlowSnapshot:
    """The flow with so many members in each stored state, and these open lines."""
    summary = summarize(tally, now_ms)
    is_cancelled = flow.state is FlowState.CANCELLED
    state = FlowStatus.CANCELLED if is_cancelled else summary.public_flow_state
    wishes = (line.at_ms for line in lines if line.kind is LineKind.REQUEST_CANCEL)
    requested_ms = flow.cancelled_ms if is_cancelled else min(wishes, default=None)
    return FlowSnapshot(state, summary, flow, requested_ms, _outcome(flow, state))


def _outcome(flow: Flow, state: FlowStatus) -> FlowOutcome:
    match state:
        case FlowStatus.CANCELLED:
            return FlowOutcome.CANCELLED
        case FlowStatus.COMPLETED:
            return FlowOutcome.SUCCESS
        case FlowStatus.FAILED:
            return stored_outcome(flow) if flow.settled else FlowOutcome.PENDING
        case FlowStatus.OPEN | FlowStatus.RUNNING | FlowStatus.BLOCKED:
            return FlowOutcome.PENDING
        case _:
            assert_never(state)


def is_unjudged(seen: FlowSnapshot) -> bool:
    """Whether it has settled and what is stored does not say with which outcome."""
    return seen.flow.settled and seen.outcome is FlowOutcome.PENDING


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored beside the summary itself."""

    outcome: FlowOutcome = FlowOutcome.PENDING


_summary = msgspec.json.Decoder(Summary)
_kept = msgspec.json.Decoder(_Kept)


def encode_summary(summary: Summary, outcome: FlowOutcome = FlowOutcome.PENDING) -> str:
    """The stored text: the summary, and the outcome if it is known."""
    if outcome is FlowOutcome.PENDING:
        return msgspec.json.encode(summary).decode()
    return msgspec.json.encode({**msgspec.structs.asdict(summary), "outcome": outcome}).decode()


def stored_outcome(flow: Flow) -> FlowOutcome:
    """The outcome that was written when the flow settled; pending if none was."""
    try:
        return _kept.decode(flow.summary or "{}").outcome
    except msgspec.DecodeError:
        return FlowOutcome.PENDING


def stored_summary(flow: Flow) -> Summary | None:
    """The last projection; None before the first one, or if it cannot be read."""
    if not flow.summary:
        return None
    try:
        return _summary.decode(flow.summary)
    except msgspec.DecodeError:
        return None
