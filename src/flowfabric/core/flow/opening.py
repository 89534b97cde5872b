"""Releasing the roots of a flow that was staged: members that wait for nothing but the opening."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowfabric.core.flow.dispatch import move, set_free
from flowfabric.core.flow.model import Line
from flowfabric.core.flow.round import Round
from flowfabric.core.ids import ExecutionId


def on_open_flow(work: Round, line: Line, members: Sequence[ExecutionId], *, is_last: bool) -> int:
    """Release those of these members that no group holds back; answers how many."""
    released = 0
    for id in members:
        head = work.head(id)
        if head is None or id in work.transitions:
            continue
        if work.groups_of(id):
            move(work, id)
        elif (transition := set_free(work, head)) is not None:
            work.write(transition)
        released += id in work.transitions
    if is_last:
        work.finish(line)
    elif members:
        work.lines.append(msgspec.structs.replace(line, about=members[-1]))
    return released
