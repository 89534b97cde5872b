"""Leases that an engine has handed out: what they say is what the store said.

A worker's decision is made from its lease without a look at the store, so a lease must not come
from anywhere else: a forged count of retries would get past the limit. The engine knows the leases
that it has handed out by the heads in them, the very objects. Any other is only a name: its id,
epoch and token; the row says the rest, and costs a read.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Lease

KEPT_MAX = 20_000


class HandedOut:
    """By execution the head of its lease as it was handed out first, and, if the lease was renewed
    since, as it was handed out last."""

    def __init__(self) -> None:
        self._first: dict[ExecutionId, Execution] = {}
        self._last: dict[ExecutionId, Execution] = {}

    def add(self, leases: Iterable[Lease]) -> None:
        """New leases; the oldest are forgotten when there are too many."""
        first, last = self._first, self._last
        for lease in leases:
            head = lease.head
            first[head.id] = head
            if last:
                last.pop(head.id, None)
        if len(first) > KEPT_MAX:
            self.forget(list(islice(first, len(first) - KEPT_MAX)))

    def replace(self, lease: Lease, known: Lease) -> None:
        """The same lease with another end; whoever has the first one may go on with it."""
        self._first.setdefault(known.head.id, known.head)
        self._last[known.head.id] = lease.head

    def strange(self, leases: Iterable[Lease]) -> list[Lease]:
        """Those among them that were not handed out as they are."""
        first, last = self._first, self._last
        return [
            lease
            for lease in leases
            if first.get((head := lease.head).id) is not head and last.get(head.id) is not head
        ]

    def forget(self, ids: Iterable[ExecutionId]) -> None:
        first, last = self._first, self._last
        for id in ids:
            first.pop(id, None)
            if last:
                last.pop(id, None)
