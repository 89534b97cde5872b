"""Cancel of a whole flow: one commit flips it and leaves a line; members follow in portions.

How far it came is in the members themselves: whoever has ended needs no cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState, Line, LineKind, line_id
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.settling import settled
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Value
from flowfabric.core.operator import Source, cancel
from flowfabric.core.states import RUNNABLE, TERMINAL, State
from flowfabric.core.transition import Changeset, Transition, clip
from flowfabric.errors import FlowAlreadyTerminal

DEADLINE = "flow_deadline"
CANCELLED = "flow_cancelled"

_CANCELLED = FlowState.CANCELLED
_PENDING = tuple(state for state in State if state in RUNNABLE)
_ALL = tuple(state for state in State if state not in TERMINAL)


def require_open(flow: Flow) -> None:
    if flow.state is not FlowState.OPEN:
        raise FlowAlreadyTerminal(f"flow {flow.id} is {flow.state}")


def cancel_flow(flow: Flow, now_ms: int, policy: CancelPolicy, reason: str) -> Changeset:
    """Take no more members, and owe the cancel of those that the policy names."""
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
    return Changeset(flows=[FlowPatch(flow.id, flow.rev, patch)], lines=lines)


def cancel_line(flow: Flow, now_ms: int) -> Line:
    """What a cancelled flow leaves to be done."""
    return Line(
        flow=flow.id,
        at_ms=now_ms,
        id=line_id(LineKind.CANCEL_FLOW, flow.id),
        kind=LineKind.CANCEL_FLOW,
    )


def owed_states(flow: Flow) -> tuple[State, ...]:
    """Which members the cancel of this flow is about; none while it goes on."""
    if flow.state is not _CANCELLED or flow.cancel_policy == CancelPolicy.FLOW_ONLY:
        return ()
    return _PENDING if flow.cancel_policy == CancelPolicy.CANCEL_PENDING else _ALL


def owed_cancel(flow: Flow, row: Execution, now_ms: int) -> Transition | None:
    """The cancel that the flow owes to this member, if it does."""
    if row.state not in owed_states(flow):
        return None
    reason = flow.cancel_reason or CANCELLED
    return cancel(row, now_ms, reason, source=Source.FLOW_CASCADE)


def on_cancel_flow(
    work: Round, line: Line, members: Sequence[ExecutionId], *, is_last: bool
) -> int:
    """Cancel these members; the line goes with the last of them. Answers how many."""
    cancelled = 0
    for id in members:
        head = work.head(id)
        if head is None or work.ends(id):
            continue
        if (transition := owed_cancel(work.flow, head, work.now_ms)) is not None:
            work.write(transition)
            cancelled += 1
    if is_last:
        work.finish(line)
    elif members:
        work.lines.append(msgspec.structs.replace(line, about=members[-1]))
    return cancelled
