"""The records, frozen, and the one table that says who may write which column.

Records are `msgspec.Struct`s: immutable, typed, and about five times cheaper to build than frozen
dataclasses, which is what the road of every task is made of. Those made per task are not tracked
by the garbage collector (`gc=False`): they hold no cycles, and there are many.

Instants and durations are integer milliseconds. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from flowfabric.core.documents import AnyDocument
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import (
    AttemptKind,
    AttemptLifecycle,
    AttemptState,
    LaneState,
    Reason,
    State,
)

Value = str | int | bool | None

NO_ATTEMPT = -1
# In a hint, any route: whoever serves one has to look.
ANY_ROUTE = ""
_GRANTED = Reason.GRANTED


class Admission(StrEnum):
    """The admission fact: which gate keeps the execution out, if any."""

    NONE = "none"
    BUDGET = "budget"
    QUOTA = "quota"
    ROUTE = "route"
    LANE = "lane"


class Loss(StrEnum):
    """How the last lease was lost, until the execution is claimed again."""

    NONE = "none"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Writer(StrEnum):
    """Who writes. Each may write only the columns that name it."""

    SUBMIT = "submit"
    CLAIM = "claim"
    HANDOVER = "handover"  # sets a member free and claims it, in one
    WORKER = "worker"
    ENGINE = "engine"
    TIMEKEEPER = "timekeeper"


# The fields whose value lets whoever knows it act for the holder of a lease.
SECRETS = frozenset({"token", "lease_token"})


class Secretive(msgspec.Struct, frozen=True, gc=False):
    """A record that holds a token: its value is in no text that is made of the record."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, "<secret>" if name in SECRETS and v else v) for name, v in values]


class Execution(Secretive, frozen=True, gc=False, kw_only=True, array_like=True):
    """The head: identity, what was asked for, and every column that transitions change.

    `route`: the queue that it waits in when it is ready, as the core named it at submit.
    `requests`: the tokens of the last requests of operators that changed it, newest last.
    `generation`: which of its entries count.
    `recheck_ms`: when its gate is asked again; of work that no gate keeps and that its last worker
    could not read, since when none could.
    """

    id: ExecutionId
    namespace: str
    lane: str
    kind: str
    route: str
    creator: str
    created_ms: int
    policy: str

    rev: int = 1
    state: State
    reason: Reason
    attempt_state: AttemptState = AttemptState.PENDING_FIRST
    priority: int = 0
    updated_ms: int

    epoch: int = 0
    lease_token: str = ""
    lease_until_ms: int | None = None
    renewed_ms: int | None = None
    worker: str = ""

    attempt: int = NO_ATTEMPT
    attempt_kind: AttemptKind = AttemptKind.INITIAL
    attempt_started_ms: int | None = None
    attempt_until_ms: int | None = None
    next_attempt: int = 0
    next_kind: AttemptKind = AttemptKind.INITIAL
    attempt_left_ms: int | None = None

    not_before_ms: int | None = None
    paused: bool = False
    deps_open: bool = False
    admission: Admission = Admission.NONE
    recheck_ms: int | None = None
    lost: Loss = Loss.NONE

    retry_count: int = 0
    reclaim_count: int = 0
    replay_count: int = 0

    deadline_ms: int | None = None
    due_ms: int | None = None
    failures: int = 0
    parked: str = ""

    started_ms: int | None = None
    ended_ms: int | None = None
    outcome_detail: str = ""
    outcome_category: str = ""
    progress_pct: int | None = None
    progress_message: str | None = None
    flow: str = ""
    purge_ms: int | None = None
    requests: str = ""
    generation: int = 0


def without_token(row: Execution) -> Execution:
    """The row as everybody may see it."""
    return msgspec.structs.replace(row, lease_token="") if row.lease_token else row


class Column(NamedTuple):
    """One column of the head: its owner and who may write it after the insert."""

    owner: str
    writers: frozenset[Writer]


def _by(*writers: Writer) -> Column:
    return Column("execution", frozenset(writers))


_C, _H, _W, _E, _T = (
    Writer.CLAIM,
    Writer.HANDOVER,
    Writer.WORKER,
    Writer.ENGINE,
    Writer.TIMEKEEPER,
)

# Columns without a writer are written once, by the insert; `rev` is the store's own.
COLUMNS: dict[str, Column] = {
    **dict.fromkeys(
        ("id", "namespace", "lane", "kind", "route", "creator", "created_ms", "policy", "rev"),
        _by(),
    ),
    **dict.fromkeys(("state", "reason", "attempt_state", "updated_ms"), _by(_C, _H, _W, _E, _T)),
    "priority": _by(_E),
    "epoch": _by(_C, _H, _E, _T),
    "lease_token": _by(_C, _H),
    "lease_until_ms": _by(_C, _H, _W, _E, _T),
    "renewed_ms": _by(_C, _H, _W),
    "worker": _by(_C, _H, _W, _E, _T),
    "attempt": _by(_C, _H, _W),
    "attempt_kind": _by(_C, _H, _W),
    "attempt_started_ms": _by(_C, _H, _W),
    "attempt_until_ms": _by(_C, _H, _W, _E, _T),
    "next_attempt": _by(_W, _E, _T),
    "next_kind": _by(_W, _E, _T),
    "attempt_left_ms": _by(_W, _E, _T),
    "not_before_ms": _by(_H, _W, _E, _T),
    "paused": _by(_E),
    "deps_open": _by(_H, _E),
    "admission": _by(_E, _T),
    "recheck_ms": _by(_W, _E, _T),
    "lost": _by(_C, _H, _W, _E, _T),
    "retry_count": _by(_W, _E, _T),
    "reclaim_count": _by(_E, _T),
    "replay_count": _by(_E),
    "deadline_ms": _by(_E),
    "due_ms": _by(_C, _H, _W, _E, _T),
    "failures": _by(_E, _T),
    "parked": _by(_E, _T),
    "started_ms": _by(_C, _H, _W),
    "ended_ms": _by(_W, _E, _T),
    "outcome_detail": _by(_W, _E, _T),
    "outcome_category": _by(_W, _E, _T),
    "progress_pct": _by(_W),
    "progress_message": _by(_W),
    "flow": _by(_E),
    "purge_ms": _by(_W, _E, _T),
    "requests": _by(_E),
    "generation": _by(_E),
}

WRITABLE: dict[Writer, frozenset[str]] = {
    writer: frozenset(name for name, column in COLUMNS.items() if writer in column.writers)
    for writer in Writer
}


class Attempt(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One attempt. Stored when its lease ends; while it runs the head says the same.

    Written again, it keeps its kind and start, and, when `worker` is empty, who worked on it.
    """

    execution: ExecutionId
    attempt: int
    kind: AttemptKind
    lifecycle: AttemptLifecycle
    worker: str
    epoch: int
    started_ms: int | None
    ended_ms: int | None = None
    detail: str = ""
    category: str = ""
    result: bytes | None = None

    def written_over(self, first: Attempt) -> Attempt:
        """What is stored when one was there."""
        last = self if self.worker else first
        return msgspec.structs.replace(
            self,
            kind=first.kind,
            started_ms=first.started_ms,
            worker=last.worker,
            epoch=last.epoch,
        )


class Lease(msgspec.Struct, frozen=True, gc=False):
    """What a worker holds: the head as it was claimed (the fence is in it) and the input.

    `problem`: why there is no input; the worker then ends the attempt.
    """

    head: Execution
    payload: bytes = b""
    problem: str = ""

    @property
    def id(self) -> ExecutionId:
        return self.head.id

    @property
    def token(self) -> str:
        return self.head.lease_token

    @property
    def epoch(self) -> int:
        return self.head.epoch

    @property
    def until_ms(self) -> int:
        return self.head.lease_until_ms or 0

    @property
    def started(self) -> bool:
        """False for a grant that has not begun its attempt."""
        return self.head.reason is not _GRANTED


class Submission(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An execution to be inserted, with what is written once beside its head.

    `create=False`: it can be made no longer, but may have been made before; only look for it.
    """

    execution: Execution
    payload: bytes
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    key: str | None = None
    digest: str = ""
    key_until_ms: int = 0
    create: bool = True


class Inserted(msgspec.Struct, frozen=True, gc=False):
    """The answer to one submission: the id that exists now, and whether it did before.

    `exists` is False only for what was to be looked for and is not there. `problem`: the record of
    its key cannot be read, so that nobody knows.
    """

    id: ExecutionId
    created: bool
    digest: str = ""
    exists: bool = True
    problem: str = ""


class Claim(Secretive, frozen=True, kw_only=True):
    """A worker's ask. `repeated` after an unknown outcome: the same token, answered the same."""

    namespace: str
    routes: tuple[str, ...]
    limit: int
    worker: str
    token: str
    ttl_ms: int
    now_ms: int
    start: bool = True
    only: ExecutionId | None = None
    repeated: bool = False


UNREADABLE = "unreadable"


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One line of the log. `unreadable` in its detail says what of it cannot be read, so that a
    follower can go on to the next line; the kind is `unreadable` if it cannot be read itself."""

    cursor: str
    execution: ExecutionId
    at_ms: int
    kind: str
    state: State
    attempt: int
    epoch: int
    detail: Mapping[str, Value]


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """Which executions to load, and what of the things beside their heads."""

    ids: Sequence[ExecutionId]
    payload: bool = False
    tags: bool = False
    attempts: bool = False


class Loaded(msgspec.Struct, frozen=True, gc=False):
    """One loaded execution; what was not asked for is empty."""

    head: Execution
    payload: bytes = b""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()


class Ended(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How an execution stands for somebody who waits for it; `result` once it completed."""

    id: ExecutionId
    state: State
    detail: str
    category: str
    result: bytes = b""


class DueBatch(msgspec.Struct, frozen=True):
    """Rows and documents whose timer has passed, soonest first, and when the next one will."""

    rows: list[Execution | Malformed]
    next_ms: int | None
    documents: list[AnyDocument] = msgspec.field(default_factory=list)


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines of the log: after this cursor, of one execution or of all.

    `states`, for all executions, asks only for lines after which the execution was in one of
    them. `newest` asks for the last line alone: where a follower begins.
    """

    after: str = ""
    execution: ExecutionId | None = None
    states: tuple[State, ...] = ()
    limit: int = 1000
    newest: bool = False


class Lane(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """`problem`: why the record cannot be read; such a lane takes and hands out nothing."""

    name: str
    state: LaneState = LaneState.ACTIVE
    rev: int = 1
    problem: str = ""


class Shift(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Whose turn a background duty is: nobody else's before `until_ms`.

    `report` is what the holder leaves for the next one; a store keeps it and does not read it.
    """

    name: str
    owner: str
    until_ms: int
    report: str = ""


class Malformed(msgspec.Struct, frozen=True):
    """A row that is due but cannot be read: enough of it to move it out of the way."""

    id: ExecutionId
    rev: int
    failures: int
    problem: str


class Queue(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is ready on one route: how many, and when the oldest of them was made. With `is_more`
    there are more than were counted; the oldest is the oldest of all."""

    route: str
    ready: int
    oldest_ms: int
    is_more: bool = False


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What to list: every condition that is set must hold; ordered by id; `after` excluded.

    `since_ms`: made at this moment or later.
    """

    namespace: str | None = None
    partition: int | None = None
    lane: str | None = None
    kind: str | None = None
    states: tuple[State, ...] = ()
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    flow: FlowId | None = None
    since_ms: int | None = None
    after: ExecutionId | None = None
    limit: int = 100
