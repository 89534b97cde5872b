"""What a decided group does to the member that waited for it."""

from __future__ import annotations

from flowfabric.core.endings import Ending, ended_from_outside
from flowfabric.core.model import NO_ATTEMPT, Execution, Loss, Value, Writer
from flowfabric.core.settle import facts_of, settle
from flowfabric.core.states import RUNNABLE, TERMINAL, AttemptState, Outcome, State
from flowfabric.core.transition import LogLine, Seen, Transition, end_of

IMPOSSIBLE = "dependency_impossible"
_ADDED, _SATISFIED = LogLine("dependencies_added"), LogLine("dependencies_satisfied")
_ENGINE, _NOT_LOST = Writer.ENGINE, Loss.NONE


def release(row: Execution, now_ms: int) -> Transition | None:
    """Nothing it depends on is open any more; whatever else keeps it from running still does."""
    if row.state in TERMINAL or not row.deps_open:
        return None
    return _depend(row, now_ms, is_open=False)


def hold(row: Execution, now_ms: int) -> Transition | None:
    """It depends on something that is open. What runs goes on, but waits before it is tried again;
    what has ended, or was lost while it ran, is left alone."""
    if row.state not in RUNNABLE | {State.ACTIVE} or row.deps_open:
        return None
    return _depend(row, now_ms, is_open=True)


def _depend(row: Execution, now_ms: int, *, is_open: bool) -> Transition:
    patch: dict[str, Value] = {"deps_open": is_open, "updated_ms": now_ms}
    if row.state in RUNNABLE:
        if row.lost is not _NOT_LOST:
            # It lost its lease while its upstream ran again: once free, it waits like others.
            patch["lost"] = _NOT_LOST
        facts = facts_of(row, deps_open=is_open, lost=_NOT_LOST)
        patch |= settle(facts, now_ms).patch()
    line = _ADDED if is_open else _SATISFIED
    return Transition(row.id, Seen(row.rev, row.state), _ENGINE, patch, line, route=row.route)


def skip(row: Execution, now_ms: int) -> Transition | None:
    """What it needs cannot happen any more: it ends as skipped, also if somebody works on it."""
    if row.state in TERMINAL:
        return None
    ending = Ending(Outcome.SKIPPED, IMPOSSIBLE, IMPOSSIBLE)
    patch, attempt = ended_from_outside(row, ending, now_ms)
    if row.attempt == NO_ATTEMPT:
        patch["attempt_state"] = AttemptState.NONE
    return Transition(
        row.id,
        Seen(row.rev, row.state),
        Writer.ENGINE,
        patch,
        LogLine("skipped", {"reason": IMPOSSIBLE}),
        attempt,
        line=end_of(row, patch, now_ms),
    )
