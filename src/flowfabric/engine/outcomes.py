"""What a worker can say about its leases, and what it hears back. Pure: data and one table.

`decide` turns what is said into a transition; `answer` reads the store's reply, including the
replies that mean "this had happened already".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

import msgspec

from flowfabric.core import lifecycle, refusal
from flowfabric.core.endings import is_unwanted
from flowfabric.core.entries import Entry
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Ended, Execution, Lease, Secretive
from flowfabric.core.states import TERMINAL, State
from flowfabric.core.transition import Applied, Rejected, Transition, state_after
from flowfabric.errors import FlowFabricError, StaleLease


class Completed(msgspec.Struct, frozen=True, gc=False):
    lease: Lease
    result: bytes
    entries: tuple[Entry, ...] = ()


class Failed(msgspec.Struct, frozen=True, gc=False):
    """`error`: the exception itself, for the log of this process; it is not stored."""

    lease: Lease
    failure: Failure
    error: BaseException | None = None
    entries: tuple[Entry, ...] = ()


class Delayed(msgspec.Struct, frozen=True, gc=False):
    """Go on with the same attempt at an instant. `unread`: why the arguments could not be read."""

    lease: Lease
    until_ms: int
    entries: tuple[Entry, ...] = ()
    unread: str = ""


def hand_back_unread(lease: Lease, now_ms: int, why: str) -> Delayed:
    """Hand work back that a worker cannot read: another version of the program may."""
    return Delayed(lease, now_ms + lifecycle.unread_pause_ms(lease.head, now_ms), unread=why)


class Released(msgspec.Struct, frozen=True, gc=False):
    """Hand the work back; somebody goes on with it as soon as possible."""

    lease: Lease
    entries: tuple[Entry, ...] = ()


_COMPLETED = State.COMPLETED

Outcome = Completed | Failed | Delayed | Released

_replace: Callable[..., Outcome] = msgspec.structs.replace


class Follow(Secretive, frozen=True, kw_only=True):
    """What a worker has room for, and how it would hold it."""

    lanes: Sequence[str]
    tasks: Sequence[str]
    limit: int
    worker: str
    token: str
    ttl_ms: int


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an outcome: the state that followed, or why it was refused.

    `repeated`: the same was said before, and this is the answer of that time.
    """

    id: ExecutionId
    state: State | None
    until_ms: int | None = None
    next_attempt: int | None = None
    repeated: bool = False
    error: FlowFabricError | None = None


def decide_or_refuse(
    outcome: Outcome, now_ms: int, *, leaves_line: bool = True
) -> Transition | FlowFabricError:
    """What follows from the outcome, or why nothing can: one of many must not spoil the others.

    An end `leaves_line` for a dispatcher, unless what follows from it is written with it.
    """
    try:
        return decide(outcome, now_ms, leaves_line=leaves_line)
    except FlowFabricError as error:
        return error


def decide(outcome: Outcome, now_ms: int, *, leaves_line: bool) -> Transition:
    """What follows from the outcome, written together with what the attempt leaves."""
    transition = _decided(outcome, now_ms, leaves_line=leaves_line)
    if not outcome.entries:
        return transition
    return msgspec.structs.replace(transition, entries=transition.entries + outcome.entries)


def _decided(outcome: Outcome, now_ms: int, *, leaves_line: bool) -> Transition:
    match outcome:
        case Completed(lease, result):
            return lifecycle.complete(lease, now_ms, result, leaves_line=leaves_line)
        case Failed(lease, failure):
            return lifecycle.fail(lease, now_ms, failure, leaves_line=leaves_line)
        case Delayed(lease, until_ms):
            return lifecycle.delay(lease, now_ms, until_ms, unread=outcome.unread)
        case Released(lease):
            return lifecycle.release(lease, now_ms)
        case _:
            assert_never(outcome)


def answer(
    outcome: Outcome, transition: Transition, reply: Applied | Rejected, now_ms: int
) -> Finished:
    if isinstance(reply, Applied):
        return finished_as(transition)
    row = reply.current
    if row is not None and _happened_before(outcome, transition, row, now_ms):
        return _as_stored(row, outcome.lease)
    return refused(outcome, row, now_ms)


def refused(outcome: Outcome, row: Execution | None, now_ms: int) -> Finished:
    """Why what was said does not count."""
    lease = outcome.lease
    error = refusal.refusal_of_lease(row, lease, now_ms)
    if error is None:
        error = StaleLease(f"the lease of {lease.id} changed at the same moment")
    return Finished(id=lease.id, state=row.state if row else None, error=error)


def about(outcome: Outcome, lease: Lease) -> Outcome:
    """The same outcome of another copy of its lease."""
    return _replace(outcome, lease=lease)


def with_entries(outcome: Outcome, entries: tuple[Entry, ...]) -> Outcome:
    """The same outcome, with what is to be kept of its attempt."""
    return _replace(outcome, entries=entries)


def unwanted_work(
    outcomes: Sequence[Outcome],
    decided: Sequence[Transition | FlowFabricError],
    replies: Iterable[Applied | Rejected],
) -> dict[int, Outcome]:
    """By their places, outcomes that were refused only because the work is not wanted any more, as
    they are to be said now."""
    written = iter(replies)
    found: dict[int, Outcome] = {}
    for place, (outcome, decision) in enumerate(zip(outcomes, decided, strict=True)):
        reply = next(written) if isinstance(decision, Transition) else None
        if isinstance(reply, Rejected) and (known := _with_stored_lease(outcome, reply)):
            found[place] = known
    return found


def _with_stored_lease(outcome: Outcome, reply: Rejected) -> Outcome | None:
    """The outcome as its holder would say it who knew that the work is not wanted any more: only
    the copy of the lease was too old to tell."""
    row, lease = reply.current, outcome.lease
    if row is None or not refusal.is_owner(row, lease):
        return None
    if not is_unwanted(row) or is_unwanted(lease.head):
        return None
    return about(outcome, Lease(row, lease.payload))


def ends_of(outcomes: Sequence[Outcome], answers: Sequence[Finished]) -> tuple[Ended, ...]:
    """The completions among the answers: whoever waits for one here need not read it again."""
    return tuple(
        Ended(answer.id, _COMPLETED, "", "", outcome.result)
        for outcome, answer in zip(outcomes, answers, strict=True)
        if isinstance(outcome, Completed) and answer.error is None and not answer.repeated
    )


def finished_as(transition: Transition) -> Finished:
    """The answer to an outcome that was written as it was decided."""
    patch = transition.patch
    until, next_attempt = patch.get("not_before_ms"), patch.get("next_attempt")
    return Finished(
        id=transition.id,
        state=state_after(patch),
        until_ms=until if isinstance(until, int) else None,
        next_attempt=next_attempt if isinstance(next_attempt, int) else None,
    )


def _as_stored(row: Execution, lease: Lease) -> Finished:
    if row.state in TERMINAL or not lease.started:
        return Finished(id=row.id, state=row.state, repeated=True)
    return Finished(
        id=row.id,
        state=row.state,
        until_ms=row.not_before_ms,
        next_attempt=row.next_attempt,
        repeated=True,
    )


def _happened_before(outcome: Outcome, transition: Transition, row: Execution, now_ms: int) -> bool:
    """Whether the row is what the same words of the same owner made of it. The result of a
    completion is not in the row: whoever asks compares it."""
    match outcome:
        case Completed(lease):
            return refusal.completed_by(row, lease)
        case Failed(lease):
            is_told = refusal.failed_by(row, lease) or refusal.retried_by(row, lease)
            is_same = is_told and refusal.is_same_failure(row, transition.patch)
            return is_same or refusal.cancelled_by(row, lease)
        case Delayed(lease, until_ms):
            is_told = refusal.delayed_by(row, lease)
            is_same = is_told and refusal.is_same_delay(row, until_ms, now_ms)
            return is_same or refusal.cancelled_by(row, lease)
        case Released(lease):
            is_told = refusal.delayed_by(row, lease) or refusal.returned_by(row, lease)
            is_same = is_told and refusal.is_same_delay(row, None, now_ms)
            return is_same or refusal.cancelled_by(row, lease)
        case _:
            assert_never(outcome)


def completions(outcomes: Sequence[Outcome], answers: Sequence[Finished]) -> dict[int, Completed]:
    """By place the completions that are said to have happened before."""
    return {
        place: outcome
        for place, (outcome, answer) in enumerate(zip(outcomes, answers, strict=True))
        if answer.repeated and isinstance(outcome, Completed)
    }
