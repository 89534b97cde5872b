"""Work that goes on where it came from: who ended a member may hold the next one at once.

A member that is set free is claimed in the same write, so that a chain needs no claim between its
members. Whether anybody else should have had it first is for the one who asks to know.
"""

from __future__ import annotations

from collections.abc import Container

from flowfabric.core.flow.round import Round
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Claim, Execution, Writer
from flowfabric.core.states import CLAIMABLE, State
from flowfabric.core.transition import LogLine, Transition, claimed, patched

HANDED_OVER = "handed_over"


def hand_over(work: Round, ask: Claim, among: Container[ExecutionId]) -> list[Execution]:
    """Claim up to `ask.limit` of those that this round has set free; answers them as they are
    then."""
    taken: list[Execution] = []
    for id, released in work.transitions.items():
        row = work.head(id)
        if row is None or row.state is not State.BLOCKED_DEPENDENCIES or id not in among:
            continue
        handed = _handed_over(row, released, ask) if len(taken) < ask.limit else None
        if handed is not None:
            work.transitions[id] = handed
            taken.append(patched(row, handed.patch))
    return taken


def _handed_over(row: Execution, released: Transition, ask: Claim) -> Transition | None:
    """Set free and claimed in one write; nothing if anything else keeps it, or it is not asked
    for."""
    is_asked_for = row.namespace == ask.namespace and row.lane in ask.lanes
    if released.patch["state"] not in CLAIMABLE or not is_asked_for:
        return None
    patch = {**released.patch, **claimed(row, ask)}
    line = LogLine(HANDED_OVER, {"worker": ask.worker, "kind": row.next_kind})
    return Transition(row.id, released.guard, Writer.HANDOVER, patch, line)
