"""Steps of the races: works begun at one moment, and decisions made again until they are written.

No test lives here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Writer
from flowfabric.core.operator import block, observed, unblock
from flowfabric.core.settle import facts_of, settle
from flowfabric.core.states import Reason
from flowfabric.core.transition import Changeset, Transition
from flowfabric.errors import Refused
from flowfabric.store import Store
from flowfabric.testing import VirtualClock
from flowfabric.testing.conformance.steps import head, in_threads

CONTENDERS = 8
TRIES = 5_000

Work = Callable[[], Awaitable[object]]


async def together(*works: Work) -> None:
    """Each work in a thread of its own, begun at the same moment."""
    await asyncio.to_thread(in_threads, len(works), lambda number: works[number]())


def until(over: threading.Event, work: Work) -> Work:
    """The work, with a sign for others that it has ended, however it did."""

    async def run() -> None:
        try:
            await work()
        finally:
            over.set()

    return run


Decision = Callable[[Execution, int], Transition]


async def decide(store: Store, clock: VirtualClock, id: ExecutionId, decision: Decision) -> None:
    """Look, decide, commit; again when somebody was faster or it cannot be decided yet."""
    for _ in range(TRIES):
        row = await head(store, id)
        try:
            transition = decision(row, clock.now_ms())
        except Refused:
            await asyncio.sleep(0)
            continue
        if await store.commit(Changeset([transition]), clock.now_ms()):
            return
    raise AssertionError(f"{id} could not be decided about in {TRIES} tries")


def paused(row: Execution, now_ms: int) -> Transition:
    return block(row, now_ms, Reason.PAUSED_BY_OPERATOR)


def without_budget(row: Execution, now_ms: int) -> Transition:
    return block(row, now_ms, Reason.WAITING_FOR_BUDGET)


def released(row: Execution, now_ms: int) -> Transition:
    return unblock(row, now_ms)


def waits_for_others(row: Execution, now_ms: int, *, is_open: bool = True) -> Transition:
    """What a dispatcher writes while upstreams are open, and when the last one has ended."""
    facts = msgspec.structs.replace(facts_of(row), deps_open=is_open)
    patch = settle(facts, now_ms).patch(deps_open=is_open, updated_ms=now_ms)
    return Transition(row.id, observed(row), Writer.ENGINE, patch)
