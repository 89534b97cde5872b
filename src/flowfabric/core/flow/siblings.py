"""Upstreams that a decided group no longer needs: who is owed a cancel, and how it is paid.

The list is made in the commit of the decision and shrinks as its members are cancelled, through
the one routine that ends an execution. An upstream whose success another open group still wants is
not on it; one that others only wait to end, or to fail, is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from flowfabric.core.flow.changes import Resolution
from flowfabric.core.flow.edges import wants_success
from flowfabric.core.flow.model import (
    CancelReason,
    Edge,
    EdgeState,
    Group,
    GroupKey,
    GroupState,
    Join,
    Line,
    LineKind,
    OnSatisfied,
)
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution
from flowfabric.core.operator import Source, cancel
from flowfabric.core.states import TERMINAL
from flowfabric.core.transition import Transition

CHUNK = 500
_CHOICES = frozenset({Join.ANY_OF, Join.QUORUM})
_DECIDED = frozenset({GroupState.SATISFIED, GroupState.IMPOSSIBLE})


class Action(StrEnum):
    """What the reconciler did; these three and no others."""

    SREMMED_STALE = "sremmed_stale"
    COMPLETED_DRAIN = "completed_drain"
    NO_OP = "no_op"


def cancels_rest(group: Group) -> bool:
    """Whether the decision of this group makes the rest of its upstreams superfluous."""
    is_choice = group.join in _CHOICES and group.state in _DECIDED
    return is_choice and group.on_satisfied == OnSatisfied.CANCEL_REMAINING


def still_pending(edges: Iterable[Edge], resolved: Iterable[Resolution]) -> list[Edge]:
    """Edges of decided groups whose upstreams have not ended, as far as this round knows."""
    done = {resolution.key for resolution in resolved}
    return [e for e in edges if e.state is EdgeState.PENDING and e.key not in done]


def owe(work: Round, decided: Sequence[Group], around: View, beyond: View) -> None:
    """List what is owed for these groups: `around` shows their edges and upstreams, `beyond`
    every pending edge that leaves those upstreams, with its group."""
    work.look(around)
    work.look(beyond)
    pending = still_pending(around.edges, work.resolved)
    feeds = _feeds(beyond.edges)
    for group in decided:
        mine = [edge.upstream for edge in pending if edge.group_key == group.key]
        owed = [id for id in mine if _is_superfluous(work, id, feeds.get(id, []))]
        work.put(_flagged(group, owed))
        if owed:
            work.owe(LineKind.CANCEL_SIBLINGS, group.downstream, group.name)


def _feeds(edges: Iterable[Edge]) -> dict[ExecutionId, list[GroupKey]]:
    """The groups that want the success of each upstream."""
    found: dict[ExecutionId, list[GroupKey]] = {}
    for edge in edges:
        if edge.state is EdgeState.PENDING and wants_success(edge):
            found.setdefault(edge.upstream, []).append(edge.group_key)
    return found


def _is_superfluous(work: Round, id: ExecutionId, feeds: Iterable[GroupKey]) -> bool:
    head = work.head(id)
    if head is None or head.state in TERMINAL or work.ends(id):
        return False
    groups = [work.group(key) for key in feeds]
    return all(group is None or group.state is not GroupState.PENDING for group in groups)


def _flagged(group: Group, owed: Sequence[ExecutionId]) -> Group:
    satisfied = group.state is GroupState.SATISFIED
    reason = CancelReason.SATISFIED if satisfied else CancelReason.IMPOSSIBLE
    return msgspec.structs.replace(
        group, cancel_owed=bool(owed), cancel_reason=reason, owed="\n".join(owed)
    )


def group_name(line: Line) -> str:
    """How the group of a line is named when it cannot be read."""
    return f"{line.execution} {line.about}"


def owed_by(group: Group) -> list[str]:
    return group.owed.split("\n") if group.owed else []


class Around(NamedTuple):
    """Every pending edge that leaves those who are owed a cancel, and what cannot be read."""

    edges: Sequence[Edge]
    unreadable: Collection[str]


def on_cancel_siblings(work: Round, line: Line, group: Group | None, around: Around) -> int:
    """Cancel the next members of the list; the last one clears flag and line. Answers how many.

    One whose success a group wants by now, which was drawn or opened after the decision, is let go.
    """
    if group is None and group_name(line) in around.unreadable:
        work.put_back(line)
        return 0
    if group is None or not group.cancel_owed:
        work.finish(line)
        return 0
    owed = owed_by(group)
    chunk, rest = owed[:CHUNK], owed[CHUNK:]
    # One that cannot be read is tried again later and keeps no other back.
    unreadable, feeds = around.unreadable, _feeds(around.edges)
    rest += [id for id in chunk if id in unreadable]
    cancelled = 0
    for id in map(ExecutionId, chunk):
        head = work.head(id)
        others = [key for key in feeds.get(id, []) if key != group.key]
        if head is not None and _is_superfluous(work, id, others):
            work.write(_cancel(head, work.now_ms, group.cancel_reason))
            cancelled += 1
    still = msgspec.structs.replace(group, owed="\n".join(rest), cancel_owed=bool(rest))
    work.put(still)
    if not rest:
        work.finish(line)
    elif all(id in unreadable for id in rest):
        work.put_back(line)
    return cancelled


def _cancel(head: Execution, now_ms: int, reason: str) -> Transition:
    return cancel(head, now_ms, reason or CancelReason.SATISFIED, source=Source.FLOW_CASCADE)


def reconcile(work: Round, line: Line | None, group: Group | None) -> Action:
    """Finish what a crash may have left half done. It never cancels, and never fights who does."""
    if line is None:
        return Action.NO_OP
    if group is None or not group.cancel_owed:
        work.finish(line)
        return Action.SREMMED_STALE
    heads = (work.head(ExecutionId(id)) for id in owed_by(group))
    if any(head is not None and head.state not in TERMINAL for head in heads):
        return Action.NO_OP
    work.put(msgspec.structs.replace(group, cancel_owed=False, owed=""))
    work.finish(line)
    return Action.COMPLETED_DRAIN
