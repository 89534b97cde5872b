"""Trying again, within bounds: after a lost race, a clock that was off, or a store in trouble.

Every verb is repeatable, so an unknown outcome is answered by asking again with the same ids.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import msgspec

from flowfabric.core.ids import parse_execution_id
from flowfabric.core.model import Execution, Loaded, Want
from flowfabric.core.refusal import not_found
from flowfabric.core.requests import Request, answer_of, with_answer
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset, Transition, patched
from flowfabric.errors import ClockSkew, Conflict, Corrupt, StoreUnavailable
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

T = TypeVar("T")

PAUSES_SECONDS = (0.005, 0.010)
CONFLICT_PAUSES_SECONDS = (0.005, 0.010, 0.020, 0.040, 0.080)
LATE_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
_SLOW = "check the load of the store and the network to it"


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
                late_ms = clock.arriving_ms() - clock.now_ms()
                raise StoreUnavailable(
                    f"the store answers slowly ({late_ms / 1000:.1f} s)", hint=_SLOW
                ) from skew
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


class Done(NamedTuple):
    """How an execution stood when a request had changed it."""

    state: State
    epoch: int

    @property
    def text(self) -> str:
        return f"{self.state}:{self.epoch}"


def _done(text: str) -> Done:
    state, _, epoch = text.partition(":")
    try:
        return Done(State(state), int(epoch))
    except ValueError:
        raise Corrupt(f"the stored answer {text!r} cannot be read") from None


Decide = Callable[[Execution, int], Transition | T]
DecideLoaded = Callable[[Loaded, int], Transition | T]


async def decide_and_commit(
    store: Store, clock: FollowingClock, want: Want, decide: DecideLoaded[T], *, request: Request
) -> Done | T:
    """Load one execution, decide, commit; on a conflict decide again from the new row.

    A request that has changed the row before is answered what it was answered then. A decision
    that is not a transition writes nothing and is the answer.
    """

    id = parse_execution_id(want.ids[0])

    async def once(_: bool) -> tuple[Done | T] | None:
        loaded = (await store.load(want))[0]
        if loaded is None:
            raise not_found(id)
        known = answer_of(loaded.head.requests, request)
        if known is not None:
            return (_done(known),)
        now_ms = clock.now_ms()
        decision = decide(loaded, now_ms)
        if not isinstance(decision, Transition):
            return (decision,)
        after = patched(loaded.head, decision.patch)
        done = Done(after.state, after.epoch)
        kept = {"requests": with_answer(loaded.head.requests, request, done.text)}
        signed = msgspec.structs.replace(decision, patch={**decision.patch, **kept})
        return (done,) if await store.commit(Changeset([signed]), now_ms) else None

    for pause in (*CONFLICT_PAUSES_SECONDS, None):
        answer = await persistently(clock, once)
        if answer is not None:
            return answer[0]
        if pause is not None:
            await apart(pause)
    raise Conflict(f"execution {id} kept changing", details={"execution": id})
