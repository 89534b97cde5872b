"""Every row that the decisions can lead to, found by trying all of them on each row found.

Two rows count as one when they differ in nothing that a decision looks at: instants only as past,
future or absent, counters only as none or some. No test lives here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from flowfabric.core.flow.cancel import owed_change
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState
from flowfabric.core.ids import FlowId
from flowfabric.core.lifecycle import (
    Failure,
    complete,
    delay,
    fail,
    progress,
    release,
    renew,
    start,
)
from flowfabric.core.model import NO_ATTEMPT, Execution, Value, Writer
from flowfabric.core.operator import (
    ExpireReason,
    Source,
    block,
    cancel,
    change_priority,
    expire,
    replay,
    revoke,
    set_tags,
    unblock,
)
from flowfabric.core.policy import OnAttemptTimeout
from flowfabric.core.states import CLAIMABLE, TERMINAL, Reason, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Patch, Transition, claimed, patched
from flowfabric.errors import Refused
from tests.core.build import (
    ATTEMPT_LIMIT,
    DEADLINE,
    NOW,
    PAUSE,
    TTL,
    ask,
    blocked,
    changed,
    lease_of,
    limited,
    retrying,
    skipped,
    submitted,
    suspended,
    waiting_for_others,
)


class Spot(NamedTuple):
    """A row at a moment."""

    row: Execution
    now_ms: int


class Move(NamedTuple):
    """One decision about one row, and the row after it. A claim has no transition."""

    verb: str
    before: Spot
    after: Spot
    writer: Writer
    patch: Patch
    transition: Transition | None


class Reach(NamedTuple):
    spots: list[Spot]
    moves: list[Move]


OnLease = Callable[[Execution, int], Transition]

ON_LEASE: dict[str, OnLease] = {
    "renew": lambda row, now: renew(lease_of(row), now, TTL),
    "progress": lambda row, now: progress(lease_of(row), now, 50, "half"),
    "complete": lambda row, now: complete(lease_of(row), now, b"1"),
    "fail": lambda row, now: fail(lease_of(row), now, Failure("broke")),
    "fail for good": lambda row, now: fail(lease_of(row), now, Failure("broke", fatal=True)),
    "delay": lambda row, now: delay(lease_of(row), now, now + PAUSE),
    "release": lambda row, now: release(lease_of(row), now),
}

ON_GRANT: dict[str, OnLease] = {
    "start": lambda row, now: start(lease_of(row), now),
    "renew": lambda row, now: renew(lease_of(row), now, TTL),
    "release": lambda row, now: release(lease_of(row), now),
}

CANCELLED = Flow(
    id=FlowId("flow"),
    namespace="default",
    name="graph",
    creator="",
    created_ms=NOW,
    updated_ms=NOW,
    state=FlowState.CANCELLED,
    cancel_policy=CancelPolicy.CANCEL_PENDING,
)

FROM_OUTSIDE: dict[str, Callable[[Execution, int], object]] = {
    "cancel": lambda row, now: cancel(row, now, "no", source=Source.OPERATOR),
    "expire": lambda row, now: expire(row, now, ExpireReason.ATTEMPT_TIMEOUT),
    "revoke": lambda row, now: revoke(row, now, "gone"),
    "replay": replay,
    "change priority": lambda row, now: change_priority(row, now, 9),
    "set tags": lambda row, now: set_tags(row, now, {"demo.tenant": "acme"}),
    "pause": lambda row, now: block(row, now, Reason.PAUSED_BY_OPERATOR),
    "close budget": lambda row, now: block(row, now, Reason.WAITING_FOR_BUDGET),
    "close lane": lambda row, now: block(row, now, Reason.PAUSED_BY_POLICY),
    "unblock": unblock,
    "cancel its flow": lambda row, now: owed_change(CANCELLED, row, now),
}


def moves(spot: Spot) -> Iterator[Move]:
    """All that can happen to this row at this moment or when its timer fires."""
    row, now = spot
    if row.state in CLAIMABLE:
        yield _claim(spot, begin=True)
        yield _claim(spot, begin=False)
    if row.lease_until_ms is not None and row.lease_until_ms > now:
        verbs = ON_GRANT if row.reason is Reason.GRANTED else ON_LEASE
        for verb, decide in verbs.items():
            yield _move(verb, spot, decide(row, now), now)
    for verb, attempt in FROM_OUTSIDE.items():
        try:
            decision = attempt(row, now)
        except Refused:
            continue
        if isinstance(decision, Transition):
            yield _move(verb, spot, decision, now)
    if row.due_ms is not None:
        for later in (row.due_ms - 1, row.due_ms, row.due_ms + 1):
            if later >= now:
                yield _move("timer", spot, on_due(row, later).transition, later)


def _claim(spot: Spot, *, begin: bool) -> Move:
    patch = claimed(spot.row, ask(spot.now_ms, start=begin))
    after = Spot(patched(spot.row, patch), spot.now_ms)
    return Move("claim" if begin else "grant", spot, after, Writer.CLAIM, patch, None)


def _move(verb: str, spot: Spot, transition: Transition, now_ms: int) -> Move:
    after = Spot(patched(spot.row, transition.patch), now_ms)
    return Move(verb, spot, after, transition.writer, transition.patch, transition)


@cache
def reach() -> Reach:
    """Breadth first, so that every row is reached by a short road."""
    spots: dict[tuple[object, ...], Spot] = {}
    tried: list[Move] = []
    open_ends = deque(_beginnings())
    while open_ends:
        spot = open_ends.popleft()
        if _likeness(spot) in spots:
            continue
        spots[_likeness(spot)] = spot
        for move in moves(spot):
            tried.append(move)
            open_ends.append(move.after)
        if spot.row.due_ms is not None and spot.row.due_ms > spot.now_ms:
            open_ends.append(Spot(spot.row, spot.row.due_ms))
    return Reach(list(spots.values()), tried)


def _beginnings() -> Iterator[Spot]:
    timed = limited(attempt_ms=ATTEMPT_LIMIT, reclaims=1, on_timeout=OnAttemptTimeout.RETRY)
    yield Spot(submitted(), NOW)
    yield Spot(submitted(policy=retrying(1), delay_until_ms=NOW + PAUSE), NOW)
    yield Spot(submitted(policy=retrying(1, timeout=timed), deadline_ms=DEADLINE), NOW)
    # Roads into these come with flows and waits; roads out of them are decided already.
    yield Spot(waiting_for_others(), NOW)
    yield Spot(waiting_for_others(submitted(delay_until_ms=NOW + PAUSE)), NOW)
    yield Spot(suspended(), NOW)
    yield Spot(skipped(), NOW)
    yield Spot(changed(skipped(), deps_open=True), NOW)
    yield Spot(blocked(Reason.WAITING_FOR_QUOTA), NOW)
    yield Spot(blocked(Reason.WAITING_FOR_CAPABLE_WORKER), NOW)


def _likeness(spot: Spot) -> tuple[object, ...]:
    row, now = spot
    has_run = row.attempt != NO_ATTEMPT
    if row.state in TERMINAL:
        deadline = _side(row.deadline_ms, now)
        return (row.policy, row.state, row.attempt_state, row.deps_open, has_run, deadline)
    return (
        *(row.policy, row.state, row.reason, row.attempt_state, row.next_kind, has_run),
        *(row.lost, row.paused, row.deps_open, row.admission),
        *(count > 0 for count in (row.retry_count, row.reclaim_count, row.replay_count)),
        *(_side(instant, now) for instant in _instants(row)),
    )


def _instants(row: Execution) -> tuple[Value, ...]:
    return (
        row.lease_until_ms,
        row.attempt_until_ms,
        row.not_before_ms,
        row.recheck_ms,
        row.deadline_ms,
    )


def _side(instant: Value, now_ms: int) -> str:
    if not isinstance(instant, int):
        return "absent"
    return "past" if instant <= now_ms else "future"


def by_state(state: State) -> list[Spot]:
    return [spot for spot in reach().spots if spot.row.state is state]
