"""Cancel of a whole flow: one commit flips it and leaves a line; members follow in portions.

How far it came is in the members themselves: one that has ended needs no cancel, and one that may
end is marked, so that it is cancelled when it comes back unfinished. After the last portion nothing
starts in the flow. Until its portion is reached, a member may still be claimed; it is then treated
as one that was running before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState, Line, LineKind, line_id
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.settling import settled
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution, Value, Writer
from flowfabric.core.operator import Source, cancel, observed
from flowfabric.core.states import TERMINAL, Reason, State
from flowfabric.core.transition import Changeset, Transition, clip
from flowfabric.errors import FlowAlreadyTerminal

DEADLINE = "flow_deadline"
CANCELLED = "flow_cancelled"

_CANCELLED = FlowState.CANCELLED
_NOT_ENDED = tuple(state for state in State if state not in TERMINAL)


def require_open(flow: Flow) -> None:
    if flow.state is not FlowState.OPEN:
        raise FlowAlreadyTerminal(f"flow {flow.id} is {flow.state}")


class Request(NamedTuple):
    """The wish to cancel a flow that others keep changing."""

    line: Line
    policy: CancelPolicy
    reason: str


def cancel_request(flow: FlowId, now_ms: int, policy: CancelPolicy, reason: str) -> Line:
    """The wish as an outbox entry: it can be added whatever else happens to the flow."""
    kind = LineKind.REQUEST_CANCEL
    about = f"{policy} {clip(reason)}"
    return Line(flow=flow, at_ms=now_ms, id=line_id(kind, flow), kind=kind, about=about)


def open_request(lines: Iterable[Line]) -> Request | None:
    """The oldest wish among these lines."""
    for line in lines:
        if line.kind is LineKind.REQUEST_CANCEL:
            policy, _, reason = line.about.partition(" ")
            return Request(line, CancelPolicy(policy), reason)
    return None


def require_same_cancel(flow: Flow, wish: Request | None, policy: CancelPolicy) -> None:
    """A cancel can be asked for again; one with another policy is refused, because how members are
    cancelled cannot be changed any more."""
    first = flow.cancel_policy
    if flow.state is FlowState.OPEN:
        first = policy if wish is None else wish.policy
    if first != policy:
        raise FlowAlreadyTerminal(
            f"flow {flow.id} is being cancelled by {first}, not {policy}",
            hint=f"pass policy='{first}', or cancel its members one by one",
            details={"flow": flow.id, "policy": first},
        )


def as_cancelled(flow: Flow, policy: CancelPolicy) -> Flow:
    """The flow as it is once its cancel was carried out."""
    if flow.state is _CANCELLED:
        return flow
    return msgspec.structs.replace(flow, state=_CANCELLED, cancel_policy=policy)


def cancel_flow(
    flow: Flow, now_ms: int, policy: CancelPolicy, reason: str, *, wishes: Iterable[Line] = ()
) -> Changeset:
    """Take no more members, and owe the cancel of those that the policy names. Wishes to do so,
    among these lines, are fulfilled with it."""
    require_open(flow)
    patch: dict[str, Value] = {
        "state": FlowState.CANCELLED,
        "cancel_policy": policy,
        "cancel_reason": clip(reason),
        "cancelled_ms": now_ms,
        "due_ms": None,
        "updated_ms": now_ms,
    }
    if flow.total == 0:
        patch |= settled(flow, {}, 0, now_ms)
    owes = flow.total > 0 and policy is not CancelPolicy.FLOW_ONLY
    lines = [cancel_line(flow, now_ms)] if owes else []
    done = [line for line in wishes if line.kind is LineKind.REQUEST_CANCEL]
    return Changeset(flows=[FlowPatch(flow.id, flow.rev, patch)], lines=lines, done=done)


def cancel_line(flow: Flow, now_ms: int) -> Line:
    """What a cancelled flow leaves to be done."""
    return Line(
        flow=flow.id,
        at_ms=now_ms,
        id=line_id(LineKind.CANCEL_FLOW, flow.id),
        kind=LineKind.CANCEL_FLOW,
    )


def cancelled_states(flow: Flow) -> tuple[State, ...]:
    """The states of members that the cancel of this flow is about; none while it goes on."""
    if flow.state is not _CANCELLED or flow.cancel_policy == CancelPolicy.FLOW_ONLY:
        return ()
    return _NOT_ENDED


def require_replayable(flow: Flow) -> None:
    """Nothing starts in a flow whose members were cancelled, also not again."""
    if cancelled_states(flow):
        raise FlowAlreadyTerminal(
            f"flow {flow.id} is {flow.state}: none of its members can run again",
            details={"flow": flow.id, "policy": flow.cancel_policy},
        )


def is_owed_cancel(flow: Flow, row: Execution) -> bool:
    """Whether the flow owes this member a cancel. One that runs may end, if the policy says so; a
    grant that has not started does not run."""
    if row.state not in cancelled_states(flow):
        return False
    runs = row.state is State.ACTIVE and row.reason is not Reason.GRANTED
    return not runs or flow.cancel_policy != CancelPolicy.CANCEL_PENDING


def owed_cancel(flow: Flow, row: Execution, now_ms: int) -> Transition | None:
    """The cancel that the flow owes to this member, if it does."""
    # Asked for every member that is set free, mostly in flows that are not cancelled.
    if flow.state is not _CANCELLED or not is_owed_cancel(flow, row):
        return None
    return cancel(row, now_ms, _why(flow), source=Source.FLOW_CASCADE, category=CANCELLED)


def is_cancelled_with(flow: Flow, row: Execution) -> bool:
    """Whether it was the cancel of the flow that ended this member."""
    is_over = flow.state is _CANCELLED and row.state is State.CANCELLED
    return is_over and row.outcome_category == CANCELLED


def owed_change(flow: Flow, row: Execution, now_ms: int) -> Transition | None:
    """What the cancel of the flow does to this member, if anything is left to be done: it is
    cancelled, or marked so that it is when it comes back."""
    if row.state not in cancelled_states(flow) or row.reason is Reason.CANCEL_ON_RETURN:
        return None
    return owed_cancel(flow, row, now_ms) or _mark(flow, row, now_ms)


def _mark(flow: Flow, row: Execution, now_ms: int) -> Transition:
    patch: dict[str, Value] = {
        "state": State.ACTIVE,
        "reason": Reason.CANCEL_ON_RETURN,
        "outcome_detail": _why(flow),
        "outcome_category": CANCELLED,
        "updated_ms": now_ms,
    }
    return Transition(row.id, observed(row), Writer.ENGINE, patch)


def _why(flow: Flow) -> str:
    return flow.cancel_reason or CANCELLED


def on_cancel_flow(
    work: Round, line: Line, members: Sequence[ExecutionId], *, is_last: bool
) -> int:
    """Cancel or mark these members; the line goes with the last of them. Answers how many were
    cancelled."""
    cancelled = 0
    for id in members:
        head = work.head(id)
        if head is None or work.ends(id):
            continue
        if (transition := owed_change(work.flow, head, work.now_ms)) is not None:
            work.write(transition)
            cancelled += is_owed_cancel(work.flow, head)
    if is_last:
        work.finish(line)
    elif members:
        work.lines.append(msgspec.structs.replace(line, about=members[-1]))
    return cancelled
