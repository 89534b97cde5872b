"""Hints: which partitions have ready work, a timer soon, or flows with something to do.

Writers tell what changed at the head of a queue; claimers and timekeepers look there first. On one
server the functions tell it themselves. A sweep looks at every partition and tells what it finds:
once for each route that a process asks about, and then now and then, by one process of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import FlowFabricError
from flowfabric.store.valkey.answers import Change
from flowfabric.store.valkey.calls import Caller, command, function, reading
from flowfabric.store.valkey.codec import firsts_of, peek_of
from flowfabric.store.valkey.writing import Keys, Moment, hint_name

SWEEP_SECONDS = 15.0
DUE = "{due}"
FLOWS = "{flows}"


class Quiet(NamedTuple):
    """Until when no sweep is due for these routes: most claims of a process are for the same."""

    namespace: str
    routes: Sequence[str]
    until: float

    def holds(self, namespace: str, routes: Sequence[str], now: float) -> bool:
        return now < self.until and (namespace, routes) == (self.namespace, self.routes)


class Hinting:
    """`steady` is a clock that only this process knows; tests move it."""

    def __init__(
        self, caller: Caller, keys: Keys, *, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._caller = caller
        self._keys = keys
        self.steady = steady
        self._counts = PartitionCounts()
        self._seen: set[str] = set()
        self._next: dict[str, float] = {}
        self._quiet = Quiet("", (), 0.0)

    def open(self, counts: PartitionCounts) -> None:
        self._counts = counts
        self.forget()

    def forget(self) -> None:
        """A server began anew: what was told may be wrong, so everything is looked at again."""
        self._seen = set()

    async def tell(self, changes: Sequence[Change]) -> None:
        """Pass on what functions could not tell themselves. It may fail: a sweep is the net."""
        if not changes:
            return
        told: dict[str, list[str | int]] = {}
        for change in changes:
            cells = told.setdefault(f"{self._keys.prefix}:{change.name}", [])
            cells += (change.partition, change.version, change.score)
        calls = [function("hint", key, *cells) for key, cells in told.items()]
        try:
            await self._caller.all(calls)
        except FlowFabricError:
            self.forget()

    async def sweep_if_new(self, namespace: str, routes: Sequence[str], moment: Moment) -> bool:
        """Look at everything, if this process has not yet done so for these routes."""
        fresh = [route for route in routes if hint_name(namespace, route) not in self._seen]
        if fresh:
            await self._sweep(namespace, fresh, moment)
        return bool(fresh)

    async def sweep_if_due(self, namespace: str, routes: Sequence[str], moment: Moment) -> None:
        """Look at everything now and then; one process of all does it."""
        if self._quiet.holds(namespace, routes, self.steady()):
            return
        late = [route for route in routes if self._is_late(hint_name(namespace, route))]
        until = min((self._next[hint_name(namespace, route)] for route in routes), default=0.0)
        self._quiet = Quiet(namespace, routes, until)
        names = [hint_name(namespace, route) for route in late]
        answers = await self._are_mine(names)
        mine = [route for route, is_mine in zip(late, answers, strict=True) if is_mine]
        if mine:
            await self._sweep(namespace, mine, moment)

    async def sweep_timers(self, moment: Moment, kinds: Sequence[str] = ()) -> None:
        """For timers and for flows with something to do: one sweep sees both. Timers of documents
        are looked for by their kinds."""
        is_late = self._is_late(DUE)
        late = [kind for kind in kinds if f"{DUE} {kind}" not in self._seen]
        if DUE not in self._seen or (is_late and await self._is_mine(DUE)):
            await self._sweep("", (), moment)
            late = list(kinds)
        if late:
            await self._sweep_documents(late, moment)

    def _is_late(self, name: str) -> bool:
        """Whether it is time to look again; the first time is a while after it was first asked."""
        now = self.steady()
        if self._next.setdefault(name, now + SWEEP_SECONDS) > now:
            return False
        self._next[name] = now + SWEEP_SECONDS
        return True

    async def _is_mine(self, name: str) -> bool:
        return (await self._are_mine([name]))[0]

    async def _are_mine(self, names: Sequence[str]) -> list[bool]:
        """Asked for together: a worker may serve many routes."""
        keys = [f"{self._keys.prefix}:{name}:sweep" for name in names]
        pause_ms = int(SWEEP_SECONDS * 1000)
        calls = [command(key, "SET", key, "1", "NX", "PX", pause_ms) for key in keys]
        return [reply is not None for reply in await self._caller.all(calls)]

    async def _sweep_documents(self, kinds: Sequence[str], moment: Moment) -> None:
        calls = [
            reading("document_peek", self._keys.partition(number), *moment.cells, *kinds)
            for number in range(self._counts.flow)
        ]
        self._seen |= {f"{DUE} {kind}" for kind in kinds}
        changes: list[Change] = []
        for number, reply in enumerate(await self._caller.all(calls)):
            version, firsts = firsts_of(reply)
            changes += [
                Change(DUE, f"{number} {kind}", version, first)
                for kind, first in zip(kinds, firsts, strict=True)
                if first
            ]
        await self.tell(changes)

    async def _sweep(self, namespace: str, routes: Sequence[str], moment: Moment) -> None:
        calls = [
            reading("peek", self._keys.partition(number), *moment.cells, namespace, 1, *routes)
            for number in range(self._counts.flow)
        ]
        names = [hint_name(namespace, route) for route in routes]
        self._seen |= {DUE, *names}
        changes: list[Change] = []
        for number, reply in enumerate(await self._caller.all(calls)):
            version, due, flows, queues = peek_of(reply)
            changes += [
                Change(name, str(number), version, score)
                for name, score in ((DUE, due), (FLOWS, flows))
                if score
            ]
            for name, heads in zip(names, queues, strict=True):
                if heads:
                    changes.append(Change(name, str(number), version, f"{heads[0][1]:.0f}"))
        await self.tell(changes)
