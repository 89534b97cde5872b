"""All that a decision can say: a guard, a patch of named columns, a log line.

A transition that breaks the tables of `states.py` or writes a column that its writer may not
write cannot be constructed. A changeset is several of them that happen all or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from flowfabric.core.duration import earliest
from flowfabric.core.entries import Entry, refuse_double_keys
from flowfabric.core.exact import text
from flowfabric.core.flow.changes import FlowPatch, Note, Resolution, require_columns
from flowfabric.core.flow.model import Edge, Flow, Group, Line, LineKind, line_id
from flowfabric.core.ids import ExecutionId, FlowId, partitions_among
from flowfabric.core.model import (
    WRITABLE,
    Attempt,
    Claim,
    Execution,
    Lane,
    Loss,
    Secretive,
    Shift,
    Submission,
    Value,
    Writer,
)
from flowfabric.core.states import (
    ALLOWED,
    ATTEMPT_STATES,
    CLAIMABLE,
    REASONS,
    SHAPE,
    TERMINAL,
    AttemptState,
    LaneState,
    Reason,
    State,
)
from flowfabric.errors import IllegalTransition

BATCH_LIMIT = 500
# Escaped, and with a category and the names around them, this stays below a kilobyte.
DETAIL_LIMIT = 400
_CONTROLS = dict.fromkeys(set(range(32)) - {9, 10, 13}, "\N{REPLACEMENT CHARACTER}")

Patch = Mapping[str, Value]

# What is asked for each member of each flow: before Python 3.12, a look into an enum costs as much
# as a call.
_ACTIVE, _ENDED = State.ACTIVE, LineKind.ENDED


_GRANT = str(Reason.GRANTED)
_WANTED = str(Reason.NONE)
_BEGUN_REASONS = f"{Reason.NONE} {Reason.CANCEL_ON_RETURN}"


class Held(Secretive, frozen=True, gc=False):
    """A worker's guard: active, this epoch, this token, not yet over by the store's clock.

    `returns`: the work is given back unfinished, which is refused once its cancel is asked for:
    whoever holds the lease cannot know of it.
    """

    epoch: int
    token: str
    started: bool = True
    returns: bool = False

    @property
    def reasons(self) -> str:
        """The reasons that the row may have, as one text; none of them is part of another."""
        if not self.started:
            return _GRANT
        return _WANTED if self.returns else _BEGUN_REASONS

    @property
    def compared(self) -> tuple[int, str, str]:
        """What a store compares with the row."""
        is_usual = self.started and not self.returns
        return self.epoch, self.token, _BEGUN_REASONS if is_usual else self.reasons


class Seen(msgspec.Struct, frozen=True, gc=False):
    """An engine's guard: nothing about the owner has changed since it was read."""

    rev: int
    state: State

    @property
    def compared(self) -> tuple[int]:
        """What a store compares with the row."""
        return (self.rev,)


class LogLine(msgspec.Struct, frozen=True, gc=False):
    kind: str
    detail: Mapping[str, Value] = {}


class Transition(msgspec.Struct, frozen=True, gc=False):
    """If the guard holds: write the patch, raise `rev`, end the attempt, append to the log.

    `line`: what the end of a member of a flow leaves for the dispatcher, written with it.
    `entries` are written with it, for the generation and the epoch that the row has then; under a
    key that is there, what is there stays.
    `route`: where it waits, if it becomes ready; for those who are told, nothing of it is written.
    """

    id: ExecutionId
    guard: Held | Seen
    writer: Writer
    patch: Patch
    log: LogLine | None = None
    attempt: Attempt | None = None
    tags: Mapping[str, str] | None = None
    line: Line | None = None
    entries: tuple[Entry, ...] = ()
    route: str = ""

    def __post_init__(self) -> None:
        guard, patch, writer = self.guard, self.patch, self.writer
        if not WRITABLE[writer].issuperset(patch):
            extra = sorted(set(patch) - WRITABLE[writer])
            raise IllegalTransition(f"{writer} may not write {', '.join(extra)}")
        _require_legal(
            writer,
            _ACTIVE if isinstance(guard, Held) else guard.state,
            patch.get("state"),
            patch.get("reason"),
            patch.get("attempt_state"),
        )
        if self.entries:
            refuse_double_keys(self.entries)


# Few different transitions exist, and millions of each are made: a legal one is judged once.
@lru_cache(maxsize=4096)
def _require_legal(writer: Writer, before: State, *after: Value) -> None:
    """`after`: the state, the reason and the attempt state that are written, None for none."""
    written, reason, attempt_state = after
    if written is None:
        if after != (None, None, None):
            raise IllegalTransition("a reason or an attempt state comes with a state")
        return
    state = State(str(written))
    if writer is Writer.HANDOVER and State.WAITING in ALLOWED[before]:
        # Two steps in one: it waits for no longer than the write takes.
        before = State.WAITING
    if state is not before and state not in ALLOWED[before]:
        raise IllegalTransition(f"{before} cannot become {state}")
    if attempt_state is not None and attempt_state not in ATTEMPT_STATES[state]:
        raise IllegalTransition(f"{state} cannot have the attempt state {attempt_state}")
    if reason not in REASONS[state]:
        raise IllegalTransition(f"{state} cannot have the reason {reason}")


class LaneChange(NamedTuple):
    """Set a lane's state if nobody changed it since it was read (rev 0: it was not there)."""

    name: str
    rev: int
    state: LaneState


class Changeset(msgspec.Struct, frozen=True, gc=False):
    """Several guarded changes, all or nothing; at most one per record, all in one scope.

    A scope is a partition, or the lanes: nothing can be written to two of them as a whole.

    Of flows: `new_flows` must not be there, `flows` must be as they were seen, `members` (new
    executions) must not be there. Under these guards `edges` are added (one that is there stays as
    it is), `resolved` are written into edges that are there, `groups` and `lines` are written
    whole, new or not, `done` are removed, `notes` are appended to the log. All of it is of one
    flow. A flow that was named without a revision only has to be there; then nothing but lines can
    be added to it.
    """

    transitions: Sequence[Transition] = ()
    lanes: Sequence[LaneChange] = ()
    new_flows: Sequence[Flow] = ()
    flows: Sequence[FlowPatch] = ()
    members: Sequence[Submission] = ()
    edges: Sequence[Edge] = ()
    resolved: Sequence[Resolution] = ()
    groups: Sequence[Group] = ()
    lines: Sequence[Line] = ()
    done: Sequence[Line] = ()
    notes: Sequence[Note] = ()

    def __post_init__(self) -> None:
        changed = [t.id for t in self.transitions]
        if partitions_among(changed) + bool(self.lanes) > 1:
            raise IllegalTransition("a changeset of several scopes could be written in part")
        if self.members:
            changed += [member.execution.id for member in self.members]
        refuse_doubles(changed)
        if self.lanes:
            refuse_doubles([change.name for change in self.lanes])
        if self.new_flows or self.flows or self.members:
            _require_one_flow(self)

    @property
    def owners(self) -> list[FlowId]:
        """The flows that it is about: one, or none."""
        about: Sequence[Flow | FlowPatch] = self.flows or self.new_flows
        return [about[0].id] if about else []


def _require_one_flow(changes: Changeset) -> None:
    if len(changes.new_flows) + len(changes.flows) != 1:
        raise IllegalTransition("a changeset is about one flow")
    for change in changes.flows:
        require_columns(*change.patch)
        if change.rev is None:
            _require_lines_alone(changes)


def _require_lines_alone(changes: Changeset) -> None:
    """What a flow owns is written under its revision, but for lines that are only added."""
    others = [name for name in Changeset.__struct_fields__ if name not in ("flows", "lines")]
    if changes.flows[0].patch or any(getattr(changes, name) for name in others):
        raise IllegalTransition("without a revision of the flow only outbox entries can be added")


class Applied(NamedTuple):
    """The change happened."""

    id: ExecutionId


class Rejected(NamedTuple):
    """The guard did not hold; `current` is the row as it was then, None if there is none."""

    id: ExecutionId
    current: Execution | None


def refuse_doubles_in(batch: Sequence[Changeset]) -> None:
    """Changesets of one call are independent: no record is in two of them, and none is both
    written and removed."""
    if len(batch) > 1:
        refuse_doubles([t.id for changes in batch for t in changes.transitions])
        refuse_doubles([lane.name for changes in batch for lane in changes.lanes])
        refuse_doubles([id for changes in batch for id in changes.owners])
        refuse_doubles([member.execution.id for changes in batch for member in changes.members])
    for changes in batch:
        if changes.done:
            _refuse_lines_for_nothing(changes)


def _refuse_lines_for_nothing(changes: Changeset) -> None:
    done = {(line.at_ms, line.id) for line in changes.done}
    ended = (t.line for t in changes.transitions if t.line is not None)
    if any((line.at_ms, line.id) in done for line in (*changes.lines, *ended)):
        raise IllegalTransition("an outbox entry is both added and removed in one call")


def state_after(patch: Patch) -> State | None:
    """The state that a patch writes, if it writes one."""
    state = patch.get("state")
    return state if state is None or isinstance(state, State) else State(str(state))


def end_of(row: Execution, patch: Patch, now_ms: int) -> Line | None:
    """The line that the end of a member leaves behind; none if it has not ended, or is alone."""
    state = state_after(patch)
    if not row.flow or state is None or state not in TERMINAL:
        return None
    outcome = SHAPE[state].outcome
    return Line(
        flow=FlowId(row.flow),
        at_ms=now_ms,
        id=line_id(_ENDED, row.id, row.replay_count, outcome),
        kind=_ENDED,
        execution=row.id,
        generation=row.replay_count,
        about=outcome,
    )


def refuse_doubles(names: Sequence[str]) -> None:
    """Two changes of one record in one call: one would be lost while both are reported done."""
    if len(set(names)) != len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise IllegalTransition(f"two changes of {double} in one call")


def clip(said: str, limit_bytes: int = DETAIL_LIMIT, *, field: str = "reason") -> str:
    """What people say, within the limit of a log line, as text that every store can keep."""
    data = text(said, field).translate(_CONTROLS).encode(errors="replace")
    if len(data) <= limit_bytes:
        return data.decode()
    return data[: limit_bytes - 3].decode(errors="ignore") + "…"


def claimed(row: Execution, ask: Claim) -> dict[str, Value]:
    """What a claim copies into the head. It decides nothing: the answers are already there."""
    now_ms, left = ask.now_ms, row.attempt_left_ms if ask.start else None
    lease_until = now_ms + ask.ttl_ms
    due = earliest(lease_until, row.deadline_ms)
    patch: dict[str, Value] = {
        "state": _ACTIVE,
        "epoch": row.epoch + 1,
        "lease_token": ask.token,
        "lease_until_ms": lease_until,
        "renewed_ms": None,
        "worker": ask.worker,
        "updated_ms": now_ms,
        "due_ms": due if left is None else earliest(due, now_ms + left),
    }
    patch |= begin(row, now_ms) if ask.start else _GRANTED
    return patch


_GRANTED: dict[str, Value] = {"reason": Reason.GRANTED}


_BEGUN: dict[str, Value] = {
    "reason": Reason.NONE,
    "attempt_state": AttemptState.RUNNING,
    "lost": Loss.NONE,
}


def begin(row: Execution, now_ms: int) -> dict[str, Value]:
    """The columns that say which attempt runs: copied from what the last decision wrote."""
    left = row.attempt_left_ms
    return {
        **_BEGUN,
        "attempt": row.next_attempt,
        "attempt_kind": row.next_kind,
        "attempt_started_ms": now_ms,
        "attempt_until_ms": None if left is None else now_ms + left,
        "started_ms": now_ms if row.started_ms is None else row.started_ms,
    }


_replace: Callable[..., Execution] = msgspec.structs.replace


def patched(row: Execution, patch: Patch) -> Execution:
    """The row after a patch; its `rev` has risen by one."""
    return _replace(row, **patch, rev=row.rev + 1)


def guard_holds(guard: Held | Seen, row: Execution, store_now_ms: int) -> bool:
    """The guard as every store must read it."""
    if isinstance(guard, Seen):
        return row.rev == guard.rev
    return (
        row.state is _ACTIVE
        and row.epoch == guard.epoch
        and row.lease_token == guard.token
        and row.reason in guard.reasons
        and row.lease_until_ms is not None
        and row.lease_until_ms > store_now_ms
    )


def is_ready(row: Execution) -> bool:
    """Whether the ready index holds this row."""
    return row.state in CLAIMABLE


def is_terminal(row: Execution) -> bool:
    return row.state in TERMINAL


def lane_changed(lane: Lane | None, change: LaneChange) -> Lane | None:
    """The lane after the change, or None when its guard does not hold."""
    if (lane.rev if lane else 0) != change.rev:
        return None
    return Lane(change.name, change.state, change.rev + 1)


def shift_taken(known: Shift | None, ask: Shift, now_ms: int) -> Shift | None:
    """The shift after the ask, or None while it is somebody else's; no report keeps the last."""
    if known is not None and known.owner != ask.owner and known.until_ms > now_ms:
        return None
    report = ask.report or (known.report if known else "")
    return Shift(ask.name, ask.owner, ask.until_ms, report)
