"""What should be so in a flow and is not, and the repair: lines that were lost, groups that do not
say what their edges say, members that nobody released, counters that are off.

Nothing of this happens as long as every commit is whole; it is the net under stores that were
restored, edited or damaged. A repair goes the usual road: it leaves a line, counts a group anew
from its edges, or judges it, and the dispatcher does the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from flowfabric.core.flow.cancel import cancelled_states, owed_change
from flowfabric.core.flow.dispatch import decide, is_superseded, move, set_free
from flowfabric.core.flow.edges import Bucket, bucket, is_answered
from flowfabric.core.flow.model import (
    Edge,
    EdgeState,
    Flow,
    Group,
    GroupState,
    Line,
    LineKind,
    reopening_of,
)
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.settling import COUNTERS, settled
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Value
from flowfabric.core.states import TERMINAL
from flowfabric.core.transition import end_of


def audit_members(work: Round, page: View, around: View) -> int:
    """Repair what is wrong with these members; answers how many repairs there are.

    `page` shows their heads and the open lines, `around` their edges on both sides and the groups
    they wait for.
    """
    if reopening_of(page.lines) is not None:
        return 0
    work.look(around)
    # Last, so that members are seen as they were when the lines were: the end of one changes
    # nothing that two looks have in common.
    work.look(page)
    entering: dict[ExecutionId, list[Edge]] = {}
    leaving: dict[ExecutionId, list[Edge]] = {}
    for edge in around.edges:
        entering.setdefault(edge.downstream, []).append(edge)
        leaving.setdefault(edge.upstream, []).append(edge)
    lost = {each.name.split(" ")[0] for each in (*page.unreadable, *around.unreadable)}
    repairs = 0
    for id in page.members:
        head = work.head(id)
        if head is None or id in lost:
            continue
        if head.state in TERMINAL:
            repairs += _lost_end(work, head, leaving.get(id, ()), page.lines)
        repairs += sum(
            _wrong_group(work, group, entering.get(id, ()), page.lines)
            for group in work.groups_of(id)
        )
        repairs += _held_for_nothing(work, head, page.lines)
    return repairs


def _lost_end(work: Round, head: Execution, leaving: Iterable[Edge], lines: Iterable[Line]) -> bool:
    """It ended, others wait for it, and nobody will tell them."""
    if not any(edge.state is EdgeState.PENDING and is_answered(edge, head) for edge in leaving):
        return False
    if any(line.execution == head.id and not is_superseded(line, head) for line in _ends(lines)):
        return False
    line = end_of(head, {"state": head.state}, work.now_ms)
    if line is None:
        return False
    # The line counts the end when it is done. It was not counted: a line goes with its last edge.
    work.lines.append(line)
    return True


def _ends(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if line.kind is LineKind.ENDED]


def _wrong_group(
    work: Round, group: Group, entering: Iterable[Edge], lines: Iterable[Line]
) -> bool:
    mine = [edge for edge in entering if edge.group == group.name]
    counts = Counter(
        bucket(edge.state, edge.outcome) for edge in mine if edge.state is not EdgeState.PENDING
    )
    true = msgspec.structs.replace(
        group, n=len(mine), **{name.value: counts[name] for name in Bucket}
    )
    judged = decide(work, true)
    is_wrong = judged != group
    if not is_wrong:
        del work.groups[group.key]
    elif judged.state is not group.state:
        move(work, group.downstream)
    owes = group.cancel_owed and not any(
        line.kind is LineKind.CANCEL_SIBLINGS
        and (line.execution, line.about) == (group.downstream, group.name)
        for line in lines
    )
    if owes:
        work.owe(LineKind.CANCEL_SIBLINGS, group.downstream, group.name)
    return is_wrong or owes


def _held_for_nothing(work: Round, head: Execution, lines: Iterable[Line]) -> bool:
    """Everything it waited for is decided, and it was not moved."""
    if head.state in TERMINAL or not head.deps_open or head.id in work.transitions:
        return False
    # Its next round looks at everybody who is held back.
    if any(line.kind is LineKind.OPEN_FLOW for line in lines):
        return False
    groups = work.groups_of(head.id)
    if groups:
        if any(group.state is GroupState.PENDING for group in groups):
            return False
        move(work, head.id)
    else:
        transition = set_free(work, head)
        if transition is not None:
            work.write(transition)
    return head.id in work.transitions


def owes_cancels(flow: Flow, view: View) -> bool:
    """Whether a cancelled flow has members that nothing will cancel; `view` shows the open lines
    and a page of members in the states that its cancel is about."""
    if not cancelled_states(flow) or any(line.kind is LineKind.CANCEL_FLOW for line in view.lines):
        return False
    heads = (view.heads[id] for id in view.members if id in view.heads)
    return any(owed_change(flow, head, 0) is not None for head in heads)


def recount(
    flow: Flow, tally: Mapping[str, int], lines: Iterable[Line], now_ms: int
) -> dict[str, Value]:
    """The counters of a flow that are not what its members say; nothing while ends are still to
    be counted, because then they must differ."""
    if _ends(lines):
        return {}
    ends = {outcome: tally.get(name, 0) for outcome, name in COUNTERS.items()}
    total = sum(tally.values())
    patch: dict[str, Value] = {
        COUNTERS[outcome]: count
        for outcome, count in ends.items()
        if getattr(flow, COUNTERS[outcome]) != count
    }
    if total != flow.total:
        patch["total"] = total
    is_settled = total > 0 and sum(ends.values()) == total
    if patch or is_settled is not flow.settled:
        patch |= settled(flow, ends, total, now_ms) if total else {}
    return patch
