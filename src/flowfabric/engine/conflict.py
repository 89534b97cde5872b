"""Trying again, within bounds: after a lost race, a clock that was off, or a store in trouble.

Every verb is repeatable, so an unknown outcome is answered by asking again with the same ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Want
from flowfabric.core.refusal import not_found
from flowfabric.core.transition import Changeset, Transition, patched
from flowfabric.errors import ClockSkew, Conflict, StoreUnavailable
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

T = TypeVar("T")

PAUSES_SECONDS = (0.005, 0.010)


async def persistently(clock: FollowingClock, call: Callable[[int], Awaitable[T]]) -> T:
    """Call with the number of the try, until the store answers; three tries in all."""
    for attempt, pause in enumerate(PAUSES_SECONDS):
        try:
            return await call(attempt)
        except ClockSkew as skew:
            if skew.store_now_ms is not None:
                clock.follow(skew.store_now_ms)
        except StoreUnavailable:
            await asyncio.sleep(pause)
    return await call(len(PAUSES_SECONDS))


Decide = Callable[[Execution, int], Transition | T]


async def decide_and_commit(
    store: Store, clock: FollowingClock, id: ExecutionId, decide: Decide[T]
) -> Transition | T:
    """Load, decide, commit; on a conflict decide again from the new row.

    A decision that is not a transition writes nothing and is the answer.
    """

    sent: tuple[Transition, Execution] | None = None

    async def once(_: int) -> Transition | T | None:
        nonlocal sent
        loaded = (await store.load(Want(ids=[id])))[0]
        if loaded is None:
            raise not_found(id)
        if sent is not None and loaded.head == sent[1]:
            # The row is exactly what our own write makes of it: only the reply was lost.
            return sent[0]
        now_ms = clock.now_ms()
        decision = decide(loaded.head, now_ms)
        if not isinstance(decision, Transition):
            return decision
        sent = decision, patched(loaded.head, decision.patch)
        done = await store.commit(Changeset([decision]), now_ms)
        return decision if done else None

    for pause in (*PAUSES_SECONDS, None):
        answer = await persistently(clock, once)
        if answer is not None:
            return answer
        if pause is not None:
            await asyncio.sleep(pause)
    raise Conflict(f"execution {id} kept changing", details={"execution": id})
