"""Trying again, within bounds: after a lost race, a clock that was off, or a store in trouble.

Every verb is repeatable, so an unknown outcome is answered by asking again with the same ids.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.core.model import Execution, Loaded, Want
from flowfabric.core.refusal import not_found
from flowfabric.core.transition import Changeset, Transition, patched
from flowfabric.errors import ClockSkew, Conflict, StoreUnavailable
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

T = TypeVar("T")

PAUSES_SECONDS = (0.005, 0.010)
CONFLICT_PAUSES_SECONDS = (0.005, 0.010, 0.020, 0.040, 0.080)


async def persistently(clock: FollowingClock, call: Callable[[bool], Awaitable[T]]) -> T:
    """Call until the store answers, three times at most.

    The call is told whether it may have happened already, in an earlier try that got no answer.
    """
    is_repeated = False
    for pause in PAUSES_SECONDS:
        try:
            return await call(is_repeated)
        except ClockSkew as skew:
            if skew.store_now_ms is not None:
                clock.follow(skew.store_now_ms)
        except StoreUnavailable:
            is_repeated = True
            await asyncio.sleep(pause)
    return await call(is_repeated)


async def apart(pause_seconds: float) -> None:
    """Wait about so long: rivals that met once must not meet again."""
    await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311 - no secret


Decide = Callable[[Execution, int], Transition | T]
DecideLoaded = Callable[[Loaded, int], Transition | T]


async def decide_and_commit(
    store: Store, clock: FollowingClock, want: Want, decide: DecideLoaded[T]
) -> Transition | T:
    """Load one execution, decide, commit; on a conflict decide again from the new row.

    A decision that is not a transition writes nothing and is the answer.
    """

    id = want.ids[0]
    sent: tuple[Transition, Execution] | None = None

    async def once(_: bool) -> Transition | T | None:
        nonlocal sent
        loaded = (await store.load(want))[0]
        if loaded is None:
            raise not_found(id)
        if sent is not None and loaded.head == sent[1]:
            # The row is exactly what our own write makes of it: only the reply was lost.
            return sent[0]
        now_ms = clock.now_ms()
        decision = decide(loaded, now_ms)
        if not isinstance(decision, Transition):
            return decision
        sent = decision, patched(loaded.head, decision.patch)
        if await store.commit(Changeset([decision]), now_ms):
            return decision
        # Nothing was written: what looks like our write now is a rival's of the same moment.
        sent = None
        return None

    for pause in (*CONFLICT_PAUSES_SECONDS, None):
        answer = await persistently(clock, once)
        if answer is not None:
            return answer
        if pause is not None:
            await apart(pause)
    raise Conflict(f"execution {id} kept changing", details={"execution": id})
