"""Leases that an engine has handed out: what they say is what the store said.

A worker's decision is made from its lease without a look at the store, so a lease must not come
from anywhere else: a forged count of retries would get past the limit. The engine knows the leases
that it has handed out by the heads in them, the very objects. Any other is only a name: its id,
epoch and token; the row says the rest, and costs a read.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Lease

KEPT_MAX = 20_000


class HandedOut:
    """By execution the heads of its lease: as it was handed out first, and as it was last."""

    def __init__(self) -> None:
        self._heads: dict[ExecutionId, tuple[Execution, Execution]] = {}

    def add(self, leases: Iterable[Lease]) -> None:
        """New leases; the oldest are forgotten when there are too many."""
        for lease in leases:
            head = lease.head
            self._heads[head.id] = (head, head)
        while len(self._heads) > KEPT_MAX:
            self._heads.pop(next(iter(self._heads)), None)

    def replace(self, lease: Lease, known: Lease) -> None:
        """The same lease with another end; whoever has the first one may go on with it."""
        first, _ = self._heads.get(known.head.id, (known.head, known.head))
        self._heads[known.head.id] = (first, lease.head)

    def knows(self, lease: Lease) -> bool:
        head = lease.head
        kept = self._heads.get(head.id)
        return kept is not None and (kept[0] is head or kept[1] is head)

    def forget(self, ids: Iterable[ExecutionId]) -> None:
        for id in ids:
            self._heads.pop(id, None)
