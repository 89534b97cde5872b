"""Trying again, within bounds: after a lost race, a clock that was off, or a store in trouble.

Every verb is repeatable, so an unknown outcome is answered by asking again with the same ids.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.core.ids import parse_execution_id
from flowfabric.core.model import Execution, Loaded, Want
from flowfabric.core.refusal import not_found
from flowfabric.core.transition import Changeset, Transition, patched
from flowfabric.errors import ClockSkew, Conflict, StoreUnavailable
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

T = TypeVar("T")

PAUSES_SECONDS = (0.005, 0.010)
CONFLICT_PAUSES_SECONDS = (0.005, 0.010, 0.020, 0.040, 0.080)
LATE_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
_SLOW = "look at the load of the store and at the network to it"


async def persistently(clock: FollowingClock, call: Callable[[bool], Awaitable[T]]) -> T:
    """Call until the store answers, three times at most; while it is only slow, some more.

    The call is told whether it may have happened already, in an earlier try that got no answer.
    """
    is_repeated = False
    troubles, delays = iter(PAUSES_SECONDS), iter(LATE_PAUSES_SECONDS)
    while True:
        try:
            return await call(is_repeated)
        except ClockSkew as skew:
            is_late = clock.learn(skew)
            pause = next(delays if is_late else troubles, None)
            if pause is None and is_late:
                raise StoreUnavailable("the store answers slowly", hint=_SLOW) from skew
            if pause is None:
                raise
            # Of several calls some may have arrived in time.
            is_repeated = is_repeated or is_late
            await asyncio.sleep(pause if is_late else 0)
        except StoreUnavailable:
            pause = next(troubles, None)
            if pause is None:
                raise
            is_repeated = True
            await asyncio.sleep(pause)


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

    id = parse_execution_id(want.ids[0])
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
