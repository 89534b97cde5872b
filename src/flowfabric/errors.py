"""The whole error tree. A class answers one question: what should the caller do?

FlowFabricError                 .code (stable text), .hint (what to do next), .field, .details
├── Invalid                     the caller's mistake; never retry
│   ├── InvalidInput            a value is out of range; names the field
│   ├── PayloadTooLarge         a body is over the limit
│   ├── InvalidGraph            members and edges that make no flow; the code says why
│   ├── IllegalTransition       a decision that the tables of states do not allow: a bug
│   ├── MissingExtra            an optional dependency is not installed
│   └── StoreMismatch           the store is not ours, too new, or was set up differently
├── NotFound                    there is no such record
│   ├── ExecutionNotFound
│   └── FlowNotFound
├── Refused                     a legal request at the wrong moment; says what happened instead
│   ├── ExecutionNotActive      nobody works on it (it waits, or it has ended)
│   ├── ExecutionNotEligible    it is not in the state this verb needs
│   ├── ExecutionNotTerminal    only finished executions can be replayed
│   ├── ExecutionNotLeaseable   a grant or claim was asked for something that cannot be claimed
│   ├── ReplaysExhausted        the replay limit of its policy is reached
│   ├── IdempotencyConflict     the key was used before, for another payload
│   ├── LaneClosed              the lane takes no new work
│   ├── FlowAlreadyTerminal     the flow was cancelled and takes no more members
│   ├── AlreadyInFlow           the execution belongs to another flow
│   └── CursorExpired           the log no longer has what follows this cursor
├── LeaseLost                   stop working; the lease is no longer yours
│   ├── LeaseExpired
│   ├── LeaseRevoked
│   └── StaleLease
├── Conflict                    raced; the engine already tried again
│   └── StaleGraphRevision      the graph has changed since the revision that was named
├── StoreUnavailable            the store did not answer; try again later (cause chained)
│   └── ClockSkew               the caller's clock is too far from the store's
├── ExecutionEnded              raised by `Handle.result()` instead of a value
│   ├── ExecutionFailed
│   ├── ExecutionCancelled
│   ├── ExecutionExpired
│   └── ExecutionSkipped
├── ResultTimeout               it was not there in time; what was waited for goes on
├── TaskError                   raise it in a task to say how the attempt failed
└── Corrupt                     a stored record cannot be read; alert somebody
"""

from __future__ import annotations

from enum import StrEnum

from flowfabric.printing import one_line, value_with_public_ids, with_public_ids


class Reaction(StrEnum):
    """What a program should do about an error code."""

    TERMINAL = "terminal"
    RETRYABLE = "retryable"
    COOPERATIVE = "cooperative"
    INFORMATIONAL = "informational"
    BUG = "bug"
    EXPECTED = "expected"
    SOFT_ERROR = "soft_error"


class FlowFabricError(Exception):
    """Something went wrong in FlowFabric."""

    code: str = "error"
    hint: str = ""

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str | None = None,
        hint: str | None = None,
        code: str | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        told = message or " ".join((type(self).__doc__ or self.code).split())
        self.message = with_public_ids(told)
        self.field = field
        self.details = {
            name: value_with_public_ids(value) for name, value in (details or {}).items()
        }
        if hint is not None:
            self.hint = with_public_ids(hint)
        if code is not None:
            self.code = code
        super().__init__(self.message)

    def __str__(self) -> str:
        """The parts that are there, and no separators for those that are not."""
        where = f"{self.field}: " if self.field else ""
        remedy = f" ({self.hint})" if self.hint else ""
        return one_line(f"{where}{self.message}{remedy}")

    @property
    def reaction(self) -> Reaction:
        return REACTIONS.get(self.code, Reaction.TERMINAL)

    @property
    def retryable(self) -> bool:
        return self.reaction is Reaction.RETRYABLE


class Invalid(FlowFabricError):
    """The call is invalid."""

    code = "invalid"


class InvalidInput(Invalid):
    """A value is out of range."""

    code = "invalid_input"


class PayloadTooLarge(Invalid):
    """A body is over the limit."""

    code = "payload_too_large"
    hint = "store large data elsewhere and pass a reference to it"


class InvalidGraph(Invalid):
    """The members and edges do not form a valid flow."""

    code = "invalid_graph"


class IllegalTransition(Invalid):
    """The decision is not allowed by the state tables."""

    code = "illegal_transition"


class MissingExtra(Invalid):
    """An optional dependency is not installed."""

    code = "missing_extra"


class StoreMismatch(Invalid):
    """The store cannot be used by this version or with these settings."""

    code = "store_mismatch"


class NotFound(FlowFabricError):
    """There is no such record."""

    code = "not_found"


class ExecutionNotFound(NotFound):
    """Execution not found."""

    code = "execution_not_found"
    hint = "check the id; finished executions are removed after their retention"


class FlowNotFound(NotFound):
    """Flow not found."""

    code = "flow_not_found"


class Refused(FlowFabricError):
    """Not possible now."""

    code = "refused"


class ExecutionNotActive(Refused):
    """The execution is not running."""

    code = "execution_not_active"


class ExecutionNotEligible(Refused):
    """The execution is in the wrong state for this call."""

    code = "execution_not_eligible"


class ExecutionNotTerminal(Refused):
    """The execution has not ended."""

    code = "execution_not_terminal"
    hint = "only a finished execution can be replayed; cancel it first"


class ExecutionNotLeaseable(Refused):
    """The execution cannot be claimed now."""

    code = "execution_not_leaseable"


class ReplaysExhausted(Refused):
    """The execution was replayed as often as its policy allows."""

    code = "max_replays_exhausted"
    hint = "raise max_replay_count in its policy, or submit it again"


class IdempotencyConflict(Refused):
    """The idempotency key was used before with another payload."""

    code = "idempotency_conflict"
    hint = "use a new key for new work"


class LaneClosed(Refused):
    """The lane takes no new work."""

    code = "lane_closed"
    hint = "resume the lane, or submit to another one"


class FlowAlreadyTerminal(Refused):
    """The flow was cancelled; it takes no more members and edges."""

    code = "flow_already_terminal"


class AlreadyInFlow(Refused):
    """The execution is a member of another flow."""

    code = "execution_already_in_flow"


class CursorExpired(Refused):
    """The log no longer has what follows this cursor."""

    code = "cursor_expired"
    hint = "start again from the beginning of the feed"


class LeaseLost(FlowFabricError):
    """The lease is no longer yours; stop working."""

    code = "lease_lost"


class LeaseExpired(LeaseLost):
    """The lease ended before it was renewed."""

    code = "lease_expired"


class LeaseRevoked(LeaseLost):
    """The lease was revoked."""

    code = "lease_revoked"


class StaleLease(LeaseLost):
    """Another worker holds the lease."""

    code = "stale_lease"


class Conflict(FlowFabricError):
    """The record kept changing under the decision."""

    code = "conflict"
    hint = "try again"


class StaleGraphRevision(Conflict):
    """The graph has changed since the revision that was named."""

    code = "stale_graph_revision"
    hint = "read the flow again and repeat the decision"


class StoreUnavailable(FlowFabricError):
    """The store did not answer; no write was left half done."""

    code = "transport"


class ClockSkew(StoreUnavailable):
    """The caller's clock differs too much from the store's."""

    code = "clock_skew"
    hint = "synchronise the clocks of the machines"

    @classmethod
    def between(cls, store_now_ms: int, caller_now_ms: int) -> ClockSkew:
        return cls(
            f"the caller's clock is {caller_now_ms - store_now_ms} ms off the store's",
            details={"store_now_ms": store_now_ms, "caller_now_ms": caller_now_ms},
        )

    @property
    def store_now_ms(self) -> int | None:
        """The store's time when it refused, if the error still knows it."""
        told = self.details.get("store_now_ms")
        return told if isinstance(told, int) else None


class ExecutionEnded(FlowFabricError):
    """The execution ended without a result."""

    code = "execution_ended"


class ExecutionFailed(ExecutionEnded):
    """The execution failed. `traceback`: that of the worker, empty if no exception was kept."""

    code = "failed"
    traceback: str = ""


class ExecutionCancelled(ExecutionEnded):
    """The execution was cancelled."""

    code = "cancelled"


class ExecutionExpired(ExecutionEnded):
    """The execution ran out of time."""

    code = "expired"


class ExecutionSkipped(ExecutionEnded):
    """The execution was skipped because something it needs did not succeed."""

    code = "skipped"


class ResultTimeout(FlowFabricError):
    """The result was not there in time; the work goes on."""

    code = "timeout"


class TaskError(FlowFabricError):
    """The attempt failed. `category` is matched by retry policies; a fatal one is not retried."""

    code = "task_error"

    def __init__(
        self, message: str, *, category: str = "handler_error", fatal: bool = False
    ) -> None:
        super().__init__(message)
        self.category = category
        self.fatal = fatal


class Corrupt(FlowFabricError):
    """A stored record cannot be read."""

    code = "corruption"


_T, _R, _I = Reaction.TERMINAL, Reaction.RETRYABLE, Reaction.INFORMATIONAL

# One reaction per code; every code here is raised, and a code that is not here is unknown. Where
# the raw and the typed tables of the original disagree, the reaction is the one that neither drops
# work nor repeats it blindly.
REACTIONS: dict[str, Reaction] = {
    "invalid": _T,
    "lease_lost": _T,
    "stale_lease": _T,
    "lease_expired": _T,
    "lease_revoked": _T,
    "execution_not_active": _T,
    "execution_not_found": _T,
    "execution_not_terminal": _T,
    "max_replays_exhausted": _T,
    "fence_required": _T,
    "invalid_input": _T,
    "invalid_policy_json": _T,
    "invalid_blocking_reason": _T,
    "invalid_tag_key": _T,
    "payload_too_large": _T,
    "missing_extra": _T,
    "store_mismatch": _T,
    "not_found": _T,
    "flow_not_found": _T,
    "flow_already_terminal": _T,
    "execution_already_in_flow": _T,
    "invalid_graph": _T,
    "lane_closed": _R,
    "refused": _T,
    "idempotency_conflict": _T,
    "cursor_expired": _T,
    "execution_ended": _T,
    "task_error": _T,
    "failed": _T,
    "cancelled": _T,
    "expired": _T,
    "skipped": _T,
    "no_active_lease": _I,
    "execution_not_eligible": _I,
    "execution_not_leaseable": _R,
    "invalid_claim_grant": _R,
    "claim_grant_expired": _R,
    "stale_graph_revision": _R,
    "conflict": _R,
    "clock_skew": _R,
    "timeout": _R,
    "transport": _R,
    "cluster": _R,
    "busy_loading": _R,
    "protocol": _T,
    "auth": _T,
    "script_not_loaded": _T,
    "other": _T,
    "corruption": Reaction.BUG,
    "illegal_transition": Reaction.BUG,
}


# Codes of bad names and ids, and of trouble with a store, that have no class of their own.
_BAD_INPUT = frozenset(
    {
        "edge_group_policy_already_fixed",
        "fence_required",
        "missing_braces",
        "malformed_body",
        "unknown_family_prefix",
        "invalid_index",
        "missing_tag",
        "invalid_partition_index",
        "invalid_uuid",
        "lane_empty",
        "lane_too_long",
        "lane_not_printable",
    }
)
_BAD_GRAPH = frozenset(
    {
        "cycle_detected",
        "self_referencing_edge",
        "dependency_already_exists",
        "execution_not_in_flow",
        "invalid_dependency",
    }
)
_STORE_TROUBLE = frozenset(
    {"cluster", "busy_loading", "protocol", "auth", "script_not_loaded", "other"}
)
REACTIONS |= dict.fromkeys(_BAD_INPUT | _BAD_GRAPH, _T)


def _classes(root: type[FlowFabricError]) -> dict[str, type[FlowFabricError]]:
    """Every code that a class carries as its own."""
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _classes(child)
    return found


def error_class(code: str) -> type[FlowFabricError] | None:
    """The class that a code belongs to; None for a code that nobody documented."""
    if code not in REACTIONS:
        return None
    own = _classes(FlowFabricError).get(code)
    if own is not None:
        return own
    if code in _STORE_TROUBLE:
        return StoreUnavailable
    if code in _BAD_GRAPH:
        return InvalidGraph
    return InvalidInput if code in _BAD_INPUT or code.startswith("invalid_") else Refused
