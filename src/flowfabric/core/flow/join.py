"""When a group is decided. The whole table, and nothing else.

    policy      satisfied when    impossible when          otherwise
    all_of      succeeded = n > 0 any edge did not         pending
    any_of      succeeded >= 1    none can any more        pending
    quorum(k)   succeeded >= k    n - nonsuccess < k       pending

Satisfied is asked before impossible. A policy that this build does not know, or a quorum of less
than one, is decided by nobody here: the group stays pending, and somebody should look at it.
"""

from __future__ import annotations

from flowfabric.core.flow.model import Group, GroupState, Join

_PENDING, _SATISFIED = GroupState.PENDING, GroupState.SATISFIED


def judge(group: Group) -> GroupState:
    """What a sealed group has become; one that is decided or not sealed stays what it is."""
    if group.state is not _PENDING or not group.sealed:
        return group.state
    need = needed(group)
    if need is None or group.n < 1:
        return _PENDING
    if group.succeeded >= need:
        return _SATISFIED
    if group.n - group.failed - group.skipped < need:
        return GroupState.IMPOSSIBLE
    return _PENDING


def needed(group: Group) -> int | None:
    """How many edges must be satisfied; None for a policy that nobody here understands."""
    match group.join:
        case Join.ALL_OF:
            return group.n
        case Join.ANY_OF:
            return 1
        case Join.QUORUM:
            return group.k if group.k >= 1 else None
        case _:
            return None


def is_understood(group: Group) -> bool:
    return needed(group) is not None
