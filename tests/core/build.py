"""Rows and leases for the tests of the core, and what a store would do with a decision.

Rows are made by the decisions themselves wherever there is one, so that no test rests on a row
that cannot exist. No test lives here.
"""

from __future__ import annotations

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Failure, Order, complete, delay, fail, submit
from flowfabric.core.model import Claim, Execution, Lease
from flowfabric.core.operator import ExpireReason, Source, block, cancel, expire, revoke
from flowfabric.core.policy import (
    Exponential,
    Fixed,
    OnAttemptTimeout,
    Policy,
    RetryPolicy,
    TimeoutPolicy,
    encode_policy,
)
from flowfabric.core.settle import facts_of, settle
from flowfabric.core.states import AttemptState, Reason, State
from flowfabric.core.timers import on_due
from flowfabric.core.transition import Transition, claimed, guard_holds, patched

NOW = 1_700_000_000_000
TTL = 30_000
ID = ExecutionId("{fp:7}:018f0c2e-7b1a-7c3d-8e4f-5a6b7c8d9e0f")
PAUSE = 500
ATTEMPT_LIMIT = 10_000
DEADLINE = NOW + 600_000
WORKER = "worker-a"
TOKEN = "token-a"


def retrying(
    retries: int = 3,
    *,
    backoff: Fixed | Exponential | None = None,
    categories: tuple[str, ...] = (),
    timeout: TimeoutPolicy | None = None,
) -> str:
    """The text of a policy that retries."""
    retry = RetryPolicy(retries, backoff or Fixed(PAUSE), categories)
    return encode_policy(Policy(retry_policy=retry, timeout_policy=timeout or TimeoutPolicy()))


def limited(
    *,
    attempt_ms: int | None = None,
    reclaims: int = 100,
    on_timeout: OnAttemptTimeout = OnAttemptTimeout.EXPIRE,
) -> TimeoutPolicy:
    return TimeoutPolicy(
        attempt_timeout_ms=attempt_ms, on_attempt_timeout=on_timeout, max_reclaim_count=reclaims
    )


def submitted(
    now_ms: int = NOW,
    *,
    policy: str = "",
    delay_until_ms: int | None = None,
    deadline_ms: int | None = None,
    priority: int = 0,
) -> Execution:
    order = Order(
        id=ID,
        namespace="default",
        lane="main",
        kind="greet",
        payload=b"{}",
        policy=policy,
        delay_until_ms=delay_until_ms,
        deadline_ms=deadline_ms,
        priority=priority,
    )
    return submit(order, now_ms).execution


def ask(
    now_ms: int = NOW, *, start: bool = True, worker: str = WORKER, token: str = TOKEN
) -> Claim:
    return Claim(
        namespace="default",
        routes=("main greet",),
        limit=1,
        worker=worker,
        token=token,
        ttl_ms=TTL,
        now_ms=now_ms,
        start=start,
    )


def taken(row: Execution, how: Claim | None = None) -> Execution:
    """The row after a claim."""
    return patched(row, claimed(row, how or ask()))


def lease_of(row: Execution) -> Lease:
    return Lease(row, b"{}")


def changed(row: Execution, **columns: object) -> Execution:
    """A row as a test wants it, whether or not it can exist."""
    return msgspec.structs.replace(row, **columns)


def applied(row: Execution, transition: object, now_ms: int = NOW) -> Execution:
    """The row after a transition whose guard must hold."""
    assert isinstance(transition, Transition)
    assert guard_holds(transition.guard, row, now_ms)
    return patched(row, transition.patch)


def running(now_ms: int = NOW, *, policy: str = "", deadline_ms: int | None = None) -> Execution:
    return taken(submitted(now_ms, policy=policy, deadline_ms=deadline_ms), ask(now_ms))


def granted(row: Execution | None = None, now_ms: int = NOW) -> Execution:
    return taken(row or submitted(now_ms), ask(now_ms, start=False))


def resuming(row: Execution | None = None, until_ms: int | None = None) -> Execution:
    """Given back by its worker, to go on with the same attempt."""
    held = row or running()
    return applied(held, delay(lease_of(held), NOW, until_ms))


def orphaned(row: Execution | None = None) -> Execution:
    held = row or running()
    assert held.lease_until_ms is not None
    return applied(held, on_due(held, held.lease_until_ms).transition)


def suspended() -> Execution:
    return changed(resuming(), state=State.SUSPENDED, reason=Reason.WAITING_FOR_SIGNAL)


def waiting_for_others(row: Execution | None = None) -> Execution:
    waiting = changed(row or submitted(), deps_open=True)
    return changed(waiting, **settle(facts_of(waiting), NOW).patch())


def skipped() -> Execution:
    return changed(
        submitted(),
        state=State.SKIPPED,
        reason=Reason.NONE,
        attempt_state=AttemptState.NONE,
        ended_ms=NOW,
    )


def blocked(reason: Reason, row: Execution | None = None) -> Execution:
    free = row or submitted()
    return applied(free, block(free, NOW, reason))


def sample(state: State) -> Execution:
    """An ordinary row in this state; every one that has run did so under `token-a`."""
    return _SAMPLES[state]


_RUNNING = running()
_LEASE = lease_of(_RUNNING)

_SAMPLES: dict[State, Execution] = {
    State.WAITING: submitted(),
    State.DELAYED: submitted(delay_until_ms=NOW + 5_000),
    State.BLOCKED_DEPENDENCIES: waiting_for_others(),
    State.BLOCKED_BUDGET: blocked(Reason.WAITING_FOR_BUDGET),
    State.BLOCKED_QUOTA: blocked(Reason.WAITING_FOR_QUOTA),
    State.BLOCKED_ROUTE: blocked(Reason.WAITING_FOR_CAPABLE_WORKER),
    State.BLOCKED_LANE: blocked(Reason.PAUSED_BY_POLICY),
    State.BLOCKED_OPERATOR: blocked(Reason.PAUSED_BY_OPERATOR),
    State.ACTIVE: _RUNNING,
    State.ORPHANED: orphaned(),
    State.REVOKED: applied(_RUNNING, revoke(_RUNNING, NOW, "gone")),
    State.SUSPENDED: suspended(),
    State.COMPLETED: applied(_RUNNING, complete(_LEASE, NOW, b"1")),
    State.FAILED: applied(_RUNNING, fail(_LEASE, NOW, Failure("broke"))),
    State.CANCELLED: applied(_RUNNING, cancel(_RUNNING, NOW, "no", source=Source.OPERATOR)),
    State.EXPIRED: applied(_RUNNING, expire(_RUNNING, NOW, ExpireReason.ATTEMPT_TIMEOUT)),
    State.SKIPPED: skipped(),
}
