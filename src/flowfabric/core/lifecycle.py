"""What a caller submits and what a worker says about its own lease.

Each function is a decision: it returns the transition that follows, and reads nothing but its
arguments. A worker's decision is made from the lease alone, so it needs no look at the store
before the write; the guard is data. What operators and clocks decide is in `operator.py` and
`timers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from flowfabric.core import exact, names
from flowfabric.core.attempt_record import failure_entry
from flowfabric.core.duration import instant_ms
from flowfabric.core.endings import Ending, attempt_of, cancelled_on_return, ended, is_unwanted
from flowfabric.core.failures import FailureReport
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Lease, Submission, Value, Writer
from flowfabric.core.policy import TimeoutPolicy, chance, parse_policy, retry_pause_ms
from flowfabric.core.routes import route_of
from flowfabric.core.settle import Facts, facts_of, settle
from flowfabric.core.states import (
    AttemptKind,
    AttemptLifecycle,
    AttemptState,
    Outcome,
    State,
)
from flowfabric.core.transition import Held, LogLine, Transition, begin, clip, end_of
from flowfabric.errors import InvalidInput, StoreUnavailable

CATEGORY_LIMIT = 64
UNUSABLE = "corruption"
# A worker could not read the arguments, and handed the work back.
UNREAD = "unread_arguments"
UNREAD_PAUSE_MS = 1_000
UNREAD_PAUSE_MAX_MS = 60_000
# Two clocks may each be half a second off when they are compared with the store's.
OLD_COPY_MS = 1_000
_SUCCESS = Ending(Outcome.SUCCESS)
_COMPLETED = LogLine("completed")
_WORKER, _TERMINAL = Writer.WORKER, AttemptState.TERMINAL
_ENDED_SUCCESS = AttemptLifecycle.ENDED_SUCCESS

_replace: Callable[..., Execution] = msgspec.structs.replace


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt failed. A fatal one is never retried. `report`: the exception, if any."""

    reason: str
    category: str = "handler_error"
    fatal: bool = False
    report: FailureReport | None = None


class Order(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A request to run something. `submit` checks every field of it. `asked_ms`: when the caller
    asked, if that is known: it may be long before the store can be reached."""

    id: ExecutionId
    namespace: str
    lane: str
    kind: str
    payload: bytes
    creator: str = ""
    priority: int = 0
    policy: str = ""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    delay_until_ms: int | None = None
    deadline_ms: int | None = None
    key: str | None = None
    digest: str = ""
    asked_ms: int | None = None


def lateness(
    order: Order, now_ms: int, asked_ms: int | None = None
) -> InvalidInput | StoreUnavailable | None:
    """Why it can be made no longer, if its deadline leaves no time. It may have been made before.

    A deadline that was to come when the caller asked is no mistake of the caller's.
    """
    if order.delay_until_ms is not None and _never_starts(order, now_ms):
        return InvalidInput(
            "the deadline is before the start, so the execution would never run",
            field="deadline",
            hint="pass a deadline after the delay, or a shorter delay",
        )
    if order.deadline_ms is None or instant_ms(order.deadline_ms, "deadline") > now_ms:
        return None
    asked_ms = asked_ms if order.asked_ms is None else order.asked_ms
    if asked_ms is not None and order.deadline_ms > asked_ms:
        return StoreUnavailable(
            "the store could not be reached before the deadline",
            hint="start it again; a later deadline gives the store more time",
        )
    return InvalidInput("the deadline is in the past", field="deadline", hint="pass a later one")


def _never_starts(order: Order, now_ms: int) -> bool:
    given_ms = _instant(order.deadline_ms, "deadline")
    until_ms = _deadline(given_ms, parse_policy(order.policy).timeout_policy, now_ms)
    delay_until_ms = _instant(order.delay_until_ms, "delay_until_ms")
    return until_ms is not None and delay_until_ms is not None and until_ms <= delay_until_ms


def submit(
    order: Order, now_ms: int, *, create: bool = True, flow: str = "", deps_open: bool = False
) -> Submission:
    """The head of a new execution, and what is written beside it; refuses what is out of range.

    A member of a flow that waits for others is held back from the beginning (`deps_open`).
    """
    is_exact = type(order.namespace) is type(order.lane) is type(order.kind) is str
    if not is_exact or type(order.policy) is not str:
        order = _with_exact_texts(order)
    terms = _Terms(
        order.namespace,
        order.lane,
        order.kind,
        names.note(order.creator, "creator") if order.creator else "",
        order.policy,
        names.priority(order.priority),
        _instant(order.delay_until_ms, "delay_until_ms"),
        _instant(order.deadline_ms, "deadline"),
    )
    head = _new_head(terms, now_ms, deps_open)
    if create and (late := lateness(order, now_ms)) is not None:
        raise late
    return Submission(
        execution=_replace(head, id=order.id, flow=flow),
        payload=names.body(order.payload, "payload"),
        tags=names.tags(order.tags) if order.tags else order.tags,
        key=None if order.key is None else names.idempotency_key(order.key),
        digest=names.note(order.digest, "digest") if order.digest else "",
        key_until_ms=now_ms + parse_policy(order.policy).dedup_window_ms if order.key else 0,
        create=create,
    )


def _with_exact_texts(order: Order) -> Order:
    return msgspec.structs.replace(
        order,
        namespace=exact.text(order.namespace, "namespace"),
        lane=exact.text(order.lane, "lane"),
        kind=exact.text(order.kind, "task"),
        policy=exact.text(order.policy, "policy"),
    )


class _Terms(msgspec.Struct, frozen=True, gc=False):
    """What orders that come together mostly have in common."""

    namespace: str
    lane: str
    kind: str
    creator: str
    policy: str
    priority: int
    delay_until_ms: int | None
    deadline_ms: int | None


# All that is submitted in one moment on the same terms begins alike.
@lru_cache(maxsize=1024)
def _new_head(terms: _Terms, now_ms: int, deps_open: bool) -> Execution:
    """A head that lacks its id and its flow."""
    _require_names(terms.namespace, terms.lane, terms.kind)
    limits = parse_policy(terms.policy).timeout_policy
    facts = Facts(
        deadline_ms=_deadline(terms.deadline_ms, limits, now_ms),
        next_kind=AttemptKind.INITIAL,
        not_before_ms=terms.delay_until_ms,
        deps_open=deps_open,
    )
    settled = settle(facts, now_ms)
    return Execution(
        id=ExecutionId(""),
        namespace=terms.namespace,
        lane=terms.lane,
        kind=terms.kind,
        route=route_of(terms.lane, terms.kind),
        creator=terms.creator,
        created_ms=now_ms,
        updated_ms=now_ms,
        policy=terms.policy,
        priority=terms.priority,
        attempt_left_ms=limits.attempt_timeout_ms,
        not_before_ms=settled.not_before_ms,
        deadline_ms=facts.deadline_ms,
        state=settled.state,
        reason=settled.reason,
        due_ms=settled.due_ms,
        deps_open=deps_open,
    )


# The same few lanes and tasks come again and again.
@lru_cache(maxsize=1024)
def _require_names(namespace: str, lane: str, kind: str) -> None:
    names.namespace_name(namespace)
    names.lane_name(lane)
    names.task_name(kind)


def _deadline(given_ms: int | None, limits: TimeoutPolicy, now_ms: int) -> int | None:
    """When it must have ended, said by the order or by its policy."""
    span = limits.execution_deadline_ms
    if given_ms is not None or span is None:
        return given_ms
    return now_ms + span


def _instant(value: int | None, field: str) -> int | None:
    return None if value is None else instant_ms(value, field)


def held(lease: Lease) -> Held:
    head = lease.head
    return Held(head.epoch, head.lease_token, lease.started)


def working(lease: Lease) -> Held:
    """The guard of what only a begun attempt can say."""
    if not lease.started:
        raise InvalidInput(
            "the lease has not started",
            field="lease",
            hint="call start() and use the lease that it returns",
        )
    return held(lease)


def returning(lease: Lease) -> Held:
    """The guard of work that is given back unfinished, to be gone on with or tried again."""
    guard = working(lease)
    return Held(guard.epoch, guard.token, returns=True)


def start(lease: Lease, now_ms: int) -> Transition:
    """A granted lease begins its attempt."""
    head = lease.head
    patch = begin(head, now_ms)
    until = patch["attempt_until_ms"]
    known = (lease.until_ms, until, head.deadline_ms)
    patch |= {
        "state": State.ACTIVE,
        "due_ms": min(instant for instant in known if isinstance(instant, int)),
        "updated_ms": now_ms,
    }
    line = LogLine("started", {"worker": head.worker, "kind": head.next_kind})
    return Transition(
        lease.id, Held(lease.epoch, lease.token, started=False), Writer.WORKER, patch, line
    )


def renew(lease: Lease, now_ms: int, ttl_ms: int) -> Transition:
    """Move the end of the lease, never back: the timer stays where it is and must not be late.

    A copy of the lease that is about to end was renewed since, or will be too late; in the first
    case the timer may have moved behind what this renewal says, so it is set as well.
    """
    until_ms = max(now_ms + ttl_ms, lease.until_ms)
    patch: dict[str, Value] = {"lease_until_ms": until_ms, "renewed_ms": now_ms}
    if lease.until_ms <= now_ms + OLD_COPY_MS:
        known = (until_ms, lease.head.attempt_until_ms, lease.head.deadline_ms)
        patch["due_ms"] = min(instant for instant in known if instant is not None)
    return Transition(lease.id, held(lease), Writer.WORKER, patch)


def progress(lease: Lease, now_ms: int, pct: int | None, message: str | None) -> Transition:
    """Say how far it is. What is not said stays as it was."""
    patch: dict[str, Value] = {"updated_ms": now_ms}
    if pct is not None:
        hint = "use a whole number from 0 to 100"
        patch["progress_pct"] = exact.whole(pct, "pct", hint, low=0, high=100)
    if message is not None:
        patch["progress_message"] = clip(message, field="message")
    return Transition(lease.id, working(lease), Writer.WORKER, patch)


def complete(lease: Lease, now_ms: int, result: bytes, *, leaves_line: bool = True) -> Transition:
    names.body(result, "result")
    head = lease.head
    attempt = attempt_of(head, _ENDED_SUCCESS, now_ms, result=result)
    patch = ended(head, _SUCCESS, now_ms, _TERMINAL)
    line = end_of(head, patch, now_ms) if leaves_line else None
    return Transition(head.id, working(lease), _WORKER, patch, _COMPLETED, attempt, line=line)


def fail(lease: Lease, now_ms: int, failure: Failure, *, leaves_line: bool = True) -> Transition:
    """Try again after a pause while the policy allows it, else end as failed; what is not wanted
    any more is not tried again."""
    pause = None if failure.fatal else _pause_ms(lease.head, failure.category)
    detail, category = (
        clip(failure.reason),
        clip(failure.category, CATEGORY_LIMIT, field="category"),
    )
    attempt = attempt_of(
        lease.head,
        AttemptLifecycle.ENDED_FAILURE,
        now_ms,
        detail=detail,
        category=category,
    )
    guard = working(lease)
    if pause is None:
        ending = Ending(Outcome.FAILED, detail, category)
        patch = ended(lease.head, ending, now_ms, AttemptState.TERMINAL)
        line = LogLine("failed", {"reason": detail, "category": category})
    elif is_unwanted(lease.head):
        patch, line = cancelled_on_return(lease.head, now_ms)
    else:
        guard = returning(lease)
        patch = retried(lease.head, now_ms, pause) | {
            "outcome_detail": detail,
            "outcome_category": category,
        }
        line = LogLine(
            "retry_scheduled",
            {"reason": detail, "category": category, "pause_ms": pause},
        )
    end = end_of(lease.head, patch, now_ms) if leaves_line else None
    kept = (failure_entry(lease.head, failure.report),) if failure.report else ()
    return Transition(
        lease.id,
        guard,
        Writer.WORKER,
        patch,
        line,
        attempt,
        line=end,
        entries=kept,
        route=lease.head.route,
    )


def unusable(lease: Lease, now_ms: int) -> Transition:
    """A lease without an input: no attempt can ever have one, so the execution is over."""
    ending = Ending(Outcome.FAILED, clip(lease.problem), UNUSABLE)
    patch = ended(lease.head, ending, now_ms, AttemptState.TERMINAL) | {"epoch": lease.epoch + 1}
    attempt = None
    if lease.started:
        attempt = attempt_of(
            lease.head,
            AttemptLifecycle.ENDED_FAILURE,
            now_ms,
            detail=ending.detail,
            category=UNUSABLE,
        )
    guard = Held(lease.epoch, lease.token, lease.started)
    line = LogLine("failed", {"reason": ending.detail, "category": UNUSABLE})
    end = end_of(lease.head, patch, now_ms)
    return Transition(lease.id, guard, Writer.ENGINE, patch, line, attempt, line=end)


def _pause_ms(head: Execution, category: str) -> int | None:
    return retry_pause_ms(
        parse_policy(head.policy),
        category=category,
        retries_done=head.retry_count,
        chance=chance(head.id, head.attempt),
    )


def retried(head: Execution, now_ms: int, pause_ms: int) -> dict[str, Value]:
    """The columns of an execution that will be tried again after a pause."""
    facts = Facts(
        deadline_ms=head.deadline_ms,
        next_kind=AttemptKind.RETRY,
        not_before_ms=_handed_back(head, now_ms + pause_ms, now_ms),
    )
    return settle(facts, now_ms).patch(
        attempt_state=AttemptState.PENDING_RETRY,
        next_attempt=head.attempt + 1,
        next_kind=AttemptKind.RETRY,
        attempt_left_ms=parse_policy(head.policy).timeout_policy.attempt_timeout_ms,
        retry_count=head.retry_count + 1,
        **unowned(now_ms),
    )


def unread_pause_ms(head: Execution, now_ms: int) -> int:
    """How long work rests that a worker cannot read: as long as it has been tried in vain already,
    so that each pause doubles the time since the first one."""
    since_ms = _unread_since_ms(head)
    tried_ms = 0 if since_ms is None else now_ms - since_ms
    return min(max(tried_ms, UNREAD_PAUSE_MS), UNREAD_PAUSE_MAX_MS)


def _unread_since_ms(head: Execution) -> int | None:
    """When the first of the workers took it that could not read it, one after the other. The count
    begins anew when something else was the last to happen to it: a replay, or an attempt that read
    it and failed, was delayed or lost its lease."""
    known_ms = head.recheck_ms if head.outcome_category == UNREAD else None
    return head.attempt_started_ms if known_ms is None else known_ms


def delay(lease: Lease, now_ms: int, until_ms: int | None, *, unread: str = "") -> Transition:
    """Give the lease back and go on with the same attempt later; None: as soon as possible.

    `unread`: why its worker could not read the arguments. Another version may, so the attempt has
    not begun for its time, and nothing of what it may do is used up.
    """
    head = lease.head
    if is_unwanted(head):
        return _given_up(lease, now_ms)
    left = None if head.attempt_until_ms is None else max(head.attempt_until_ms - now_ms, 1)
    facts = Facts(
        deadline_ms=head.deadline_ms,
        next_kind=AttemptKind.RESUME,
        not_before_ms=_handed_back(head, _instant(until_ms, "until_ms"), now_ms),
    )
    patch = settle(facts, now_ms).patch(
        attempt_state=AttemptState.INTERRUPTED,
        next_attempt=head.attempt,
        next_kind=AttemptKind.RESUME,
        attempt_left_ms=left,
        **unowned(now_ms),
    )
    line = LogLine("released") if until_ms is None else LogLine("delayed", {"until_ms": until_ms})
    if unread:
        why = clip(unread)
        patch |= {"outcome_detail": why, "outcome_category": UNREAD}
        patch["recheck_ms"] = _unread_since_ms(head)
        patch["attempt_left_ms"] = _whole_span(head)
        line = LogLine("delayed", {"until_ms": until_ms, "reason": why, "category": UNREAD})
    elif head.outcome_category == UNREAD:
        patch |= {"outcome_detail": "", "outcome_category": "", "recheck_ms": None}
    attempt = attempt_of(head, AttemptLifecycle.SUSPENDED, None)
    return Transition(
        lease.id, returning(lease), Writer.WORKER, patch, line, attempt, route=head.route
    )


def _whole_span(head: Execution) -> int | None:
    """What the attempt had left when its lease began."""
    if head.attempt_until_ms is None or head.attempt_started_ms is None:
        return None
    return head.attempt_until_ms - head.attempt_started_ms


def _given_up(lease: Lease, now_ms: int) -> Transition:
    head = lease.head
    patch, line = cancelled_on_return(head, now_ms)
    attempt = attempt_of(head, AttemptLifecycle.ENDED_CANCELLED, now_ms, detail=head.outcome_detail)
    end = end_of(head, patch, now_ms)
    return Transition(lease.id, working(lease), Writer.WORKER, patch, line, attempt, line=end)


def release(lease: Lease, now_ms: int) -> Transition:
    """Hand the work back unfinished; an unstarted grant leaves no trace of an attempt."""
    if lease.started:
        return delay(lease, now_ms, None)
    facts = facts_of(lease.head)
    not_before = _handed_back(lease.head, facts.not_before_ms, now_ms)
    facts = msgspec.structs.replace(facts, not_before_ms=not_before)
    patch = settle(facts, now_ms).patch(**unowned(now_ms))
    line, route = LogLine("grant_released"), lease.head.route
    return Transition(lease.id, held(lease), Writer.WORKER, patch, line, route=route)


def _handed_back(head: Execution, until_ms: int | None, now_ms: int) -> int | None:
    """When it may go on. A member waits at least for its timer, which looks at the row: whoever
    holds the lease does not know what the member depends on since."""
    return max(until_ms or 0, now_ms + 1) if head.flow else until_ms


def unowned(now_ms: int) -> dict[str, Value]:
    """Nobody holds it. The token stays: it recognises a repeated call by the same owner."""
    return {
        "lease_until_ms": None,
        "attempt_until_ms": None,
        "worker": "",
        "updated_ms": now_ms,
    }
