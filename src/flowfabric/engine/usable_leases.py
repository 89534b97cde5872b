"""Leases that a claim took and nobody can work on, because the input is missing in the store.

Whoever claimed them is never told of them, so they are ended here: a lease that nobody knows of
would keep its execution until it runs out, and then again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flowfabric.core.lifecycle import unusable
from flowfabric.core.model import Lease
from flowfabric.core.transition import Transition
from flowfabric.loggers import logger_of
from flowfabric.store.damage import unreadable

logger = logger_of("flowfabric.engine")

Apply = Callable[[Callable[[int], list[Transition]]], Awaitable[object]]


async def usable(leases: list[Lease], apply: Apply) -> list[Lease]:
    """Those with an input. The others have failed by then; `Corrupt` if there is nothing else."""
    lost = [lease for lease in leases if lease.problem]
    if not lost:
        return leases
    await apply(lambda now_ms: [unusable(lease, now_ms) for lease in lost])
    for lease in lost:
        told = {"execution": lease.id, "problem": lease.problem}
        logger.error("execution %s failed: %s", lease.id, lease.problem, extra=told)
    found = [lease for lease in leases if not lease.problem]
    if not found:
        raise unreadable(lost[0].id, lost[0].problem)
    return found
