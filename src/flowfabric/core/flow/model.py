"""The records of a flow, frozen: the flow itself, edges, groups, and the lines of its outbox.

All of them live in the flow's partition and belong to the flow: whoever writes one of them raises
the flow's `rev` in the same commit. The exception are lines that are only added: that of a member
that ends, and that of a wish. Nothing here decides anything.

Texts that a newer build may have written (how a group joins) are kept as text, so that an older
one can read the record and leave it alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import Outcome

START = "start"
NOT_PINNED = -1
NEVER_RAN = -2  # needed like a pinned one, but there was no attempt that could have a result


class FlowState(StrEnum):
    """What is stored; a flow whose members have all ended stays open for more."""

    OPEN = "open"
    CANCELLED = "cancelled"


class CancelPolicy(StrEnum):
    """What the cancel of a flow does to its members."""

    CANCEL_ALL = "cancel_all"
    CANCEL_PENDING = "cancel_pending"  # only those that nobody works on
    FLOW_ONLY = "flow_only"


class EdgeKind(StrEnum):
    """Which ends of the upstream satisfy the edge."""

    SUCCESS_ONLY = "success_only"
    COMPLETION = "completion"  # any end
    FAILURE = "failure"  # failed, cancelled or expired
    ORDER = "order"  # any end, and nothing is passed


class EdgeState(StrEnum):
    PENDING = "pending"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"


class Join(StrEnum):
    ALL_OF = "all_of"
    ANY_OF = "any_of"
    QUORUM = "quorum"


class OnSatisfied(StrEnum):
    """What becomes of upstreams that a decided group no longer needs."""

    CANCEL_REMAINING = "cancel_remaining"
    LET_RUN = "let_run"


class CancelReason(StrEnum):
    """Why an upstream of a decided group was cancelled."""

    SATISFIED = "sibling_quorum_satisfied"
    IMPOSSIBLE = "sibling_quorum_impossible"


class OnImpossible(StrEnum):
    SKIP = "skip"
    RESUME = "resume"


class GroupState(StrEnum):
    PENDING = "pending"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"
    CANCELLED = "cancelled"


class LineKind(StrEnum):
    """What somebody must act on."""

    ENDED = "ended"  # a member ended
    CANCEL_SIBLINGS = "cancel_siblings"  # a decided group owes cancels
    CANCEL_FLOW = "cancel_flow"  # a cancelled flow owes cancels
    REQUEST_CANCEL = "request_cancel"  # a flow that others kept changing is to be cancelled
    OPEN_FLOW = "open_flow"  # the roots of a staged flow wait to be released
    REOPEN = "reopen"  # a replayed member waits until those that depended on it are taken back


class Flow(msgspec.Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """`rev` is the lock of all that the flow owns; `graph_revision` counts what people changed or,
    while the flow is being written in portions and not open yet, the portions that are there.

    `settled`: every member has ended and is counted, so that there is nothing to look after.
    `summary`: the last projection. `retention`: how long it is kept then, but at least until
    `keep_until_ms`; `purge_ms`: when it may go. `requests`: the tokens of the last requests of
    operators that changed it, newest last.
    """

    id: FlowId
    namespace: str
    name: str
    creator: str
    created_ms: int
    digest: str = ""

    rev: int = 1
    graph_revision: int = 0
    state: FlowState = FlowState.OPEN
    is_open: bool = True
    total: int = 0
    edges: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    skipped: int = 0

    cancel_policy: str = ""
    cancel_reason: str = ""
    cancelled_ms: int | None = None
    deadline_ms: int | None = None
    due_ms: int | None = None

    busy_until_ms: int = 0
    failures: int = 0
    next_try_ms: int = 0
    parked: str = ""
    updated_ms: int

    settled: bool = False
    summary: str = ""
    retention: str = ""
    keep_until_ms: int = 0
    purge_ms: int | None = None
    requests: str = ""

    @property
    def ended(self) -> int:
        """How many members have ended and were counted."""
        return self.completed + self.failed + self.cancelled + self.expired + self.skipped


def is_free(flow: Flow, now_ms: int) -> bool:
    """Whether a dispatcher may take it: nobody is at it, and it was not put aside."""
    return flow.busy_until_ms <= now_ms and flow.next_try_ms <= now_ms and not flow.parked


class Edge(msgspec.Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """One upstream of one group of a downstream; that triple is its identity.

    `argument`: where the upstream's result goes in the downstream's arguments. `attempt`: the
    upstream's attempt whose result is passed, pinned by the decision that needed this edge.
    """

    flow: FlowId
    upstream: ExecutionId
    downstream: ExecutionId
    group: str = START
    kind: EdgeKind = EdgeKind.SUCCESS_ONLY
    position: int = 0
    argument: str = ""
    created_ms: int = 0
    creator: str = "engine"
    state: EdgeState = EdgeState.PENDING
    generation: int = 0
    attempt: int = NOT_PINNED
    outcome: Outcome = Outcome.NONE
    resolved_ms: int | None = None

    @property
    def key(self) -> EdgeKey:
        return EdgeKey(self.downstream, self.group, self.upstream)

    @property
    def group_key(self) -> GroupKey:
        return GroupKey(self.downstream, self.group)


class EdgeKey(NamedTuple):
    downstream: ExecutionId
    group: str
    upstream: ExecutionId


class GroupKey(msgspec.Struct, frozen=True, gc=False):
    downstream: ExecutionId
    name: str


class Group(msgspec.Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """What a downstream waits for. Judged only when sealed, decided once.

    `owed`: upstreams that are still to be cancelled, by line breaks; `cancel_owed` says that
    somebody is at it. Reason and time of the decision stay when that is done.
    """

    flow: FlowId
    downstream: ExecutionId
    name: str = START
    join: str = Join.ALL_OF
    k: int = 1
    on_satisfied: str = OnSatisfied.LET_RUN
    on_impossible: str = OnImpossible.SKIP
    sealed: bool = True
    state: GroupState = GroupState.PENDING
    n: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    decided_ms: int | None = None
    cancel_owed: bool = False
    cancel_reason: str = ""
    owed: str = ""

    @property
    def key(self) -> GroupKey:
        return GroupKey(self.downstream, self.name)

    @property
    def running(self) -> int:
        """Edges that nothing is known about yet."""
        return max(self.n - self.succeeded - self.failed - self.skipped, 0)


class Line(msgspec.Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """One thing to act on, with all that is needed to do it; gone when it is done.

    The id follows from what it says, so that saying it twice is the same line. `about`: the
    outcome of a member that ended, the name of a group.
    """

    flow: FlowId
    at_ms: int
    id: str
    kind: LineKind
    execution: str = ""
    generation: int = 0
    about: str = ""
    failures: int = 0
    next_try_ms: int = 0


def reopening_of(lines: Iterable[Line]) -> Line | None:
    """The line that all others wait for, if there is one: nobody is told of an end, and nothing is
    judged, while ends are taken back."""
    return next((line for line in lines if line.kind is LineKind.REOPEN), None)


def line_id(kind: LineKind, execution: str, generation: int = 0, about: str = "") -> str:
    return "/".join((kind, execution, str(generation), about))


MISSING = "the record is missing"


class Unreadable(msgspec.Struct, frozen=True):
    """A record of a flow that cannot be read: which table, and as much of its name as there is."""

    kind: str
    name: str
    problem: str


FLOW_COLUMNS: tuple[str, ...] = tuple(field.name for field in msgspec.structs.fields(Flow))
EDGE_COLUMNS: tuple[str, ...] = tuple(field.name for field in msgspec.structs.fields(Edge))
GROUP_COLUMNS: tuple[str, ...] = tuple(field.name for field in msgspec.structs.fields(Group))
LINE_COLUMNS: tuple[str, ...] = tuple(field.name for field in msgspec.structs.fields(Line))
