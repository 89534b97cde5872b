"""What the log must say: that it explains how each execution came to be as it is.

The lines of one execution are walked from its submission; what they add up to must be the row.
Beside that, two pictures are compared: nothing may have changed that no write accounts for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import COLUMNS, NO_ATTEMPT, Event, Execution, Loaded
from flowfabric.core.states import (
    ALLOWED,
    CLAIMABLE,
    RUNNABLE,
    TERMINAL,
    AttemptKind,
    AttemptLifecycle,
    State,
)
from flowfabric.core.timers import Duty
from flowfabric.testing.picture import Picture

_RETURNED = RUNNABLE | CLAIMABLE

# Every kind of line, and the states that an execution can be in after it.
KINDS: dict[str, frozenset[State]] = {
    "submitted": frozenset({State.WAITING, State.DELAYED}),
    "claimed": frozenset({State.ACTIVE}),
    "granted": frozenset({State.ACTIVE}),
    "started": frozenset({State.ACTIVE}),
    "completed": frozenset({State.COMPLETED}),
    "failed": frozenset({State.FAILED}),
    "cancelled": frozenset({State.CANCELLED}),
    "expired": frozenset({State.EXPIRED}),
    "retry_scheduled": frozenset({State.DELAYED, State.WAITING}),
    "delayed": frozenset({State.DELAYED, State.WAITING}),
    "released": frozenset({State.WAITING}),
    "lease_expired": frozenset({State.ORPHANED}),
    "lease_revoked": frozenset({State.REVOKED}),
    "grant_released": _RETURNED,
    "grant_expired": _RETURNED,
    "grant_revoked": _RETURNED,
    "promoted": RUNNABLE - {State.DELAYED},
    "blocked": RUNNABLE - {State.WAITING},
    "unblocked": RUNNABLE,
    "replayed": frozenset({State.WAITING}),
    "priority_changed": frozenset({State.WAITING}),
    "tagged": frozenset(State),
}

CLAIMS = frozenset({"claimed", "granted"})
BEGINNINGS = frozenset({"claimed", "started"})
LOSSES = frozenset({"lease_expired", "lease_revoked"})
_BY_OTHERS = LOSSES | {"grant_expired", "grant_revoked", "cancelled", "expired"}


def broken_history(
    loaded: Loaded, lines: Sequence[Event], now_ms: int, *, skew_ms: int = 0
) -> list[str]:
    """How the lines fail to explain the row; none if they do.

    A line has its writer's time; the clocks of several processes may differ by `skew_ms`.
    """
    if not lines or lines[0].kind != "submitted":
        return [f"its history begins with {lines[:1]}"]
    found = [*_first(lines[0]), *_last(loaded.head, lines), *_counts(loaded, lines)]
    for before, line in pairwise(lines):
        found += [
            f"{before.kind} then {line.kind}: {said}" for said in _step(before, line, skew_ms)
        ]
    if lines[-1].at_ms > now_ms:
        found.append(f"has a line of {lines[-1].at_ms}, now is {now_ms}")
    return found


def _first(line: Event) -> Iterator[str]:
    if (line.attempt, line.epoch) != (NO_ATTEMPT, 0) or line.state not in KINDS["submitted"]:
        yield f"was submitted as {line}"


def _last(row: Execution, lines: Sequence[Event]) -> Iterator[str]:
    """The last line says what the row says; writes without a line change nothing of it."""
    told = (lines[-1].state, lines[-1].attempt, lines[-1].epoch)
    if told != (row.state, row.attempt, row.epoch):
        yield f"is {(row.state, row.attempt, row.epoch)}, its last line says {told}"
    if lines[-1].at_ms > row.updated_ms:
        yield f"was updated at {row.updated_ms}, its last line is of {lines[-1].at_ms}"
    if row.rev < len(lines):
        yield f"has {len(lines)} lines and was written {row.rev} times"


def _step(before: Event, line: Event, skew_ms: int) -> Iterator[str]:
    """What may differ between two lines that follow each other."""
    if line.state not in KINDS.get(line.kind, frozenset()):
        yield f"leaves it {line.state}"
    if line.state is not before.state and line.state not in ALLOWED[before.state]:
        yield f"{before.state} became {line.state}"
    if line.kind in CLAIMS and before.state not in CLAIMABLE:
        yield f"taken while {before.state}"
    if before.state in TERMINAL and line.kind not in ("replayed", "tagged"):
        yield f"changed after it was {before.state}"
    if line.epoch - before.epoch != _raise(before, line):
        yield f"the epoch went from {before.epoch} to {line.epoch}"
    if line.attempt - before.attempt != _begun(line):
        yield f"the attempt went from {before.attempt} to {line.attempt}"
    if line.at_ms < before.at_ms - skew_ms:
        yield f"{line.at_ms} comes after {before.at_ms}"


def _raise(before: Event, line: Event) -> int:
    """A claim raises the epoch, and so does whoever ends the lease of another."""
    if line.kind in CLAIMS:
        return 1
    is_end = before.state is State.ACTIVE and line.state is not State.ACTIVE
    is_timed_out = line.detail.get("reason") == Duty.ATTEMPT_TIMEOUT
    by_others = line.kind in _BY_OTHERS or is_timed_out or "lost" in line.detail
    return 1 if is_end and by_others else 0


def _begun(line: Event) -> int:
    is_new = line.kind in BEGINNINGS and line.detail.get("kind") != AttemptKind.RESUME
    return 1 if is_new else 0


def _counts(loaded: Loaded, lines: Sequence[Event]) -> Iterator[str]:
    """What the row has counted can be counted again from the lines."""
    row, kinds = loaded.head, [line.kind for line in lines]
    replayed = [position for position, kind in enumerate(kinds) if kind == "replayed"]
    since = kinds[replayed[-1] if replayed else 0 :]
    wins = [a for a in loaded.attempts if a.lifecycle is AttemptLifecycle.ENDED_SUCCESS]
    priorities = [line.detail["to"] for line in lines if line.kind == "priority_changed"]
    told = (
        ("replays", row.replay_count, len(replayed)),
        ("retries", row.retry_count, since.count("retry_scheduled")),
        ("reclaims", row.reclaim_count, sum(kind in LOSSES for kind in since)),
        ("successful attempts", len(wins), kinds.count("completed")),
        ("priority", row.priority, (priorities or [row.priority])[-1]),
    )
    for name, count, counted in told:
        if count != counted:
            yield f"{name}: the row says {count}, its lines say {counted}"


def broken_change(before: Picture, after: Picture, *, writes: int) -> list[str]:
    """How one call changed what it may not change; `writes`: how often it may write one row."""
    found: list[str] = []
    if after.log[: len(before.log)] != before.log:
        found.append("lines of the log changed or went away")
    lines = after.log[len(before.log) :]
    for id, loaded in before.loaded.items():
        now = after.loaded.get(id)
        mine = [line for line in lines if line.execution == id]
        said = ["is gone"] if now is None else _changed(loaded, now, mine, writes)
        found += [f"{id}: {sentence}" for sentence in said]
    fresh = after.loaded.keys() - before.loaded.keys()
    found += [f"{id}: {said}" for id in sorted(fresh) for said in _new(id, after, writes)]
    return [*found, *_lost_entries(before, after)]


def _new(id: ExecutionId, after: Picture, writes: int) -> Iterator[str]:
    if not writes or after.loaded[id].head.rev != 1:
        yield f"came to be with rev {after.loaded[id].head.rev}"


def _lost_entries(before: Picture, after: Picture) -> Iterator[str]:
    """An entry is written once; new ones are of the generation that counts, and of no epoch that
    there was not."""
    for id, known in before.entries.items():
        kept = after.entries.get(id, [])
        yield from (f"the entry {each} became another" for each in known if each not in kept)
        row = after.loaded[id].head if id in after.loaded else None
        for each in kept:
            is_right = row and each.generation == row.generation and each.epoch <= row.epoch
            if each not in known and not is_right:
                yield f"the entry {each} was written while the row was {row}"


def _changed(before: Loaded, after: Loaded, lines: Sequence[Event], writes: int) -> Iterator[str]:
    was, row = before.head, after.head
    raised = row.rev - was.rev
    if not 0 <= raised <= writes:
        yield f"the rev went from {was.rev} to {row.rev}"
    if raised == 0 and before != after:
        yield f"changed without a write: {was} became {row}"
    if len(lines) > raised:
        yield f"{len(lines)} lines for {raised} writes"
    if row.epoch < was.epoch:
        yield f"the epoch fell from {was.epoch} to {row.epoch}"
    if (row.state, row.epoch, row.attempt) != (was.state, was.epoch, was.attempt) and not lines:
        yield f"{was.state} became {row.state} without a line"
    if was.state in TERMINAL and row.state is not was.state and lines[0].kind != "replayed":
        yield f"{was.state} became {row.state} by {lines[0].kind}"
    for name in FIXED:
        if getattr(row, name) != getattr(was, name):
            yield f"{name} changed"
    over = [attempt for attempt in before.attempts if attempt.lifecycle.is_terminal]
    if any(attempt not in after.attempts for attempt in over):
        yield "the record of an attempt that was over changed"


FIXED = tuple(name for name, column in COLUMNS.items() if not column.writers and name != "rev")
