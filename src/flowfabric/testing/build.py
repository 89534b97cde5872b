"""Builders of what a store is given: ids, orders, submissions, asks, policies.

Everything is made by the decisions of the core from a few numbers, the same on every run, so that
no test rests on a record that cannot exist. Nothing here talks to a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowfabric.core import ids
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lifecycle import Order, submit
from flowfabric.core.model import Claim, Submission
from flowfabric.core.policy import (
    Fixed,
    OnAttemptTimeout,
    Policy,
    RetryPolicy,
    TimeoutPolicy,
    encode_policy,
)
from flowfabric.core.routes import routes_of
from flowfabric.testing.clock import START_MS

NAMESPACE = "default"
LANE = "main"
KIND = "greet"
TASKS = (KIND, "other")
ROUTE = "main greet"
WORKER = "worker-1"
TOKEN, OTHER_TOKEN, THIRD_TOKEN = "token-1", "token-2", "token-3"
TTL_MS = 30_000
PARTITION = 7


def execution_id(number: int = 0, *, partition: int = PARTITION) -> ExecutionId:
    """The same id for the same number; within a partition they sort by it."""
    return ids.execution_id(partition, ids.uuid7(START_MS, number))


def policy(
    *,
    retries: int | None = None,
    pause_ms: int = 1_000,
    attempt_timeout_ms: int | None = None,
    on_attempt_timeout: OnAttemptTimeout = OnAttemptTimeout.EXPIRE,
    reclaims: int = 100,
    replays: int = 10,
    dedup_window_ms: int | None = None,
) -> str:
    """The text of a policy; without `retries` nothing is retried."""
    plain = Policy()
    return encode_policy(
        Policy(
            retry_policy=None if retries is None else RetryPolicy(retries, Fixed(pause_ms)),
            timeout_policy=TimeoutPolicy(
                attempt_timeout_ms=attempt_timeout_ms,
                on_attempt_timeout=on_attempt_timeout,
                max_reclaim_count=reclaims,
            ),
            max_replay_count=replays,
            dedup_window_ms=plain.dedup_window_ms if dedup_window_ms is None else dedup_window_ms,
        )
    )


def order(
    number: int = 0,
    *,
    id: ExecutionId | None = None,
    namespace: str = NAMESPACE,
    lane: str = LANE,
    kind: str = KIND,
    payload: bytes = b"{}",
    priority: int = 0,
    policy: str = "",
    tags: Mapping[str, str] | None = None,
    delay_until_ms: int | None = None,
    deadline_ms: int | None = None,
    key: str | None = None,
    digest: str = "",
) -> Order:
    """A request to run something; `number` picks the id unless one is given."""
    return Order(
        id=execution_id(number) if id is None else id,
        namespace=namespace,
        lane=lane,
        kind=kind,
        payload=payload,
        creator="tests",
        priority=priority,
        policy=policy,
        tags=dict(tags or {}),
        delay_until_ms=delay_until_ms,
        deadline_ms=deadline_ms,
        key=key,
        digest=digest,
    )


def submissions(orders: Sequence[Order], now_ms: int) -> list[Submission]:
    """What an engine would insert for these orders."""
    return [submit(each, now_ms) for each in orders]


def ask(
    now_ms: int,
    *,
    limit: int = 1,
    lanes: tuple[str, ...] = (LANE,),
    tasks: tuple[str, ...] = (KIND,),
    namespace: str = NAMESPACE,
    worker: str = WORKER,
    token: str = TOKEN,
    ttl_ms: int = TTL_MS,
    start: bool = True,
    only: ExecutionId | None = None,
    repeated: bool = False,
) -> Claim:
    """A worker's claim."""
    return Claim(
        namespace=namespace,
        routes=routes_of(lanes, tasks),
        limit=limit,
        worker=worker,
        token=token,
        ttl_ms=ttl_ms,
        now_ms=now_ms,
        start=start,
        only=only,
        repeated=repeated,
    )
