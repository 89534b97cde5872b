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
_WAITED, _HANDOVER = State.BLOCKED_DEPENDENCIES, Writer.HANDOVER


def hand_over(
    work: Round, ask: Claim, limit: int, among: Container[ExecutionId]
) -> list[Execution]:
    """Claim up to `limit` of those that this round has set free, unless anything else keeps
    them; answers them as they are then."""
    taken: list[Execution] = []
    for id, released in work.transitions.items():
        if len(taken) == limit:
            break
        row = work.head(id) if released.patch.get("state") in CLAIMABLE else None
        if row is None or row.state is not _WAITED or id not in among:
            continue
        if row.namespace == ask.namespace and row.route in ask.routes:
            handed = _handed_over(row, released, ask)
            work.transitions[id] = handed
            taken.append(patched(row, handed.patch))
    return taken


def _handed_over(row: Execution, released: Transition, ask: Claim) -> Transition:
    """Set free and claimed in one write."""
    patch = {**released.patch, **claimed(row, ask)}
    line = LogLine(HANDED_OVER, {"worker": ask.worker, "kind": row.next_kind})
    return Transition(row.id, released.guard, _HANDOVER, patch, line)
