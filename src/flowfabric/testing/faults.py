"""A store that fails on purpose, at the call that a test names.

`FaultyStore` wraps any store. What it is told to break is data: which verb, which call of it, and
how. Everything else goes through unchanged, and time is never spent: a delay is a hook that the
test awaits in. What is written through it must have the exact types of its columns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar, assert_never

from flowfabric.core.documents import AnyDocument, DocumentQuery, Put, PutAnswer
from flowfabric.core.entries import Append, Appended, Kept, Topic
from flowfabric.core.flow.model import Flow, Unreadable
from flowfabric.core.flow.views import FlowQuery, Pending, Sight, Turn, View
from flowfabric.core.ids import ExecutionId, PartitionCounts
from flowfabric.core.model import (
    Claim,
    DueBatch,
    Ended,
    Event,
    Execution,
    Feed,
    Inserted,
    Lane,
    Lease,
    Loaded,
    Query,
    Queue,
    Shift,
    Submission,
    Want,
)
from flowfabric.core.retention import Departing, Purge, Purged
from flowfabric.core.transition import Applied, Changeset, Rejected, Transition
from flowfabric.errors import StoreUnavailable
from flowfabric.store.hints import Hints
from flowfabric.store.protocol import Store
from flowfabric.store.trips import Trips
from flowfabric.testing.exact_columns import (
    inexact,
    inexact_submissions,
    inexact_transitions,
    require_exact,
)

T = TypeVar("T")
Hook = Callable[[], Awaitable[None]]


class Verb(StrEnum):
    """What a store can be asked; `ANY` counts the calls of all of them together."""

    ANY = "any"
    MIGRATE = "migrate"
    CLOSE = "close"
    NOW = "now"
    INSERT = "insert"
    CLAIM = "claim"
    APPLY = "apply"
    APPEND = "append"
    ENTRIES = "entries"
    COMMIT = "commit"
    COMMIT_EACH = "commit_each"
    PENDING = "pending"
    NEXT_TURN = "next_turn"
    GRAPH = "graph"
    FIND_FLOWS = "find_flows"
    LOAD = "load"
    ENDINGS = "endings"
    DUE = "due"
    FIND = "find"
    COUNT = "count"
    TAIL = "tail"
    LANES = "lanes"
    QUEUES = "queues"
    SHIFTS = "shifts"
    PUT = "put"
    DOCUMENTS = "documents"
    DEPARTING = "departing"
    PURGE = "purge"


class Kind(StrEnum):
    BEFORE = "before"  # an error, and nothing was done
    AFTER = "after"  # an error, and it was done: the outcome is unknown to the caller
    TIMEOUT = "timeout"  # done, and the reply was lost on its way: the caller sees a TimeoutError
    CANCELLED = "cancelled"  # done, and the caller was cancelled before the reply came
    DELAY = "delay"  # done once the hook of the fault lets it


class Fault(NamedTuple):
    """Break this call of this verb, counted from one; `times` in a row."""

    verb: Verb
    call: int
    kind: Kind
    times: int = 1
    hook: Hook | None = None

    def hits(self, call: int) -> bool:
        return self.call <= call < self.call + self.times


class FaultyStore:
    """A store with faults. `calls` counts what was asked, `hit` lists the faults that happened."""

    def __init__(self, inner: Store, plan: Iterable[Fault] = ()) -> None:
        self.inner = inner
        self.plan = list(plan)
        self.calls: Counter[Verb] = Counter()
        self.hit: list[Fault] = []
        # Several of these over one store are as many processes: each shows it a clock of its own.
        self.caller_clock = inner.caller_clock

    @property
    def hints(self) -> Hints:
        return self.inner.hints

    @hints.setter
    def hints(self, hints: Hints) -> None:
        self.inner.hints = hints

    @property
    def trips(self) -> Trips:
        return self.inner.trips

    @trips.setter
    def trips(self, trips: Trips) -> None:
        self.inner.trips = trips

    async def _call(self, verb: Verb, run: Callable[[], Awaitable[T]]) -> T:
        fault = self._fault_of(verb)
        if fault is None:
            return await self._run(run)
        self.hit.append(fault)
        match fault.kind:
            case Kind.BEFORE:
                raise StoreUnavailable(f"{verb} failed before it did anything")
            case Kind.DELAY:
                if fault.hook is not None:
                    await fault.hook()
                return await self._run(run)
            case Kind.AFTER | Kind.TIMEOUT | Kind.CANCELLED:
                await self._run(run)
                raise _lost(verb, fault.kind)
            case _:
                assert_never(fault.kind)

    def _run(self, run: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        self.inner.caller_clock = self.caller_clock
        return run()

    def _fault_of(self, verb: Verb) -> Fault | None:
        self.calls[verb] += 1
        self.calls[Verb.ANY] += 1
        for fault in self.plan:
            if fault.verb in (verb, Verb.ANY) and fault.hits(self.calls[fault.verb]):
                return fault
        return None

    async def migrate(self) -> PartitionCounts:
        return await self._call(Verb.MIGRATE, self.inner.migrate)

    async def close(self) -> None:
        await self._call(Verb.CLOSE, self.inner.close)

    async def now(self) -> int:
        return await self._call(Verb.NOW, self.inner.now)

    async def insert(self, batch: Sequence[Submission], now_ms: int) -> list[Inserted]:
        require_exact(inexact_submissions(batch))
        return await self._call(Verb.INSERT, lambda: self.inner.insert(batch, now_ms))

    async def claim(self, ask: Claim) -> list[Lease]:
        return await self._call(Verb.CLAIM, lambda: self.inner.claim(ask))

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        require_exact(inexact_transitions(transitions))
        return await self._call(
            Verb.APPLY, lambda: self.inner.apply(transitions, now_ms, urgent=urgent)
        )

    async def append(self, batch: Sequence[Append], now_ms: int) -> list[Appended | Rejected]:
        return await self._call(Verb.APPEND, lambda: self.inner.append(batch, now_ms))

    async def entries(self, asks: Sequence[Topic]) -> list[list[Kept]]:
        return await self._call(Verb.ENTRIES, lambda: self.inner.entries(asks))

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        require_exact(inexact(changes))
        return await self._call(Verb.COMMIT, lambda: self.inner.commit(changes, now_ms))

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        require_exact(said for changes in batch for said in inexact(changes))
        return await self._call(Verb.COMMIT_EACH, lambda: self.inner.commit_each(batch, now_ms))

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        return await self._call(Verb.PENDING, lambda: self.inner.pending(turn))

    async def next_turn(self, now_ms: int) -> int | None:
        return await self._call(Verb.NEXT_TURN, lambda: self.inner.next_turn(now_ms))

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        return await self._call(Verb.GRAPH, lambda: self.inner.graph(sights))

    async def find_flows(self, query: FlowQuery) -> list[Flow]:
        return await self._call(Verb.FIND_FLOWS, lambda: self.inner.find_flows(query))

    async def load(self, want: Want) -> list[Loaded | None]:
        return await self._call(Verb.LOAD, lambda: self.inner.load(want))

    async def endings(self, ids: Sequence[ExecutionId]) -> list[Ended | None]:
        return await self._call(Verb.ENDINGS, lambda: self.inner.endings(ids))

    async def due(self, now_ms: int, limit: int, kinds: Sequence[str] = ()) -> DueBatch:
        return await self._call(Verb.DUE, lambda: self.inner.due(now_ms, limit, kinds))

    async def find(self, query: Query) -> list[Execution]:
        return await self._call(Verb.FIND, lambda: self.inner.find(query))

    async def tail(self, feed: Feed) -> list[Event]:
        return await self._call(Verb.TAIL, lambda: self.inner.tail(feed))

    async def count(self, query: Query) -> int:
        return await self._call(Verb.COUNT, lambda: self.inner.count(query))

    async def queues(self, namespace: str, after: str, limit: int, depth: int) -> list[Queue]:
        return await self._call(
            Verb.QUEUES, lambda: self.inner.queues(namespace, after, limit, depth)
        )

    async def lanes(self, after: str, limit: int) -> list[Lane]:
        return await self._call(Verb.LANES, lambda: self.inner.lanes(after, limit))

    async def put(
        self, batch: Sequence[Put], now_ms: int, *, passing: bool = False
    ) -> list[PutAnswer]:
        return await self._call(Verb.PUT, lambda: self.inner.put(batch, now_ms, passing=passing))

    async def documents(self, query: DocumentQuery) -> list[AnyDocument]:
        return await self._call(Verb.DOCUMENTS, lambda: self.inner.documents(query))

    async def shifts(self, asks: Sequence[Shift], now_ms: int) -> list[Shift]:
        return await self._call(Verb.SHIFTS, lambda: self.inner.shifts(asks, now_ms))

    async def departing(self, now_ms: int, limit: int) -> Departing:
        return await self._call(Verb.DEPARTING, lambda: self.inner.departing(now_ms, limit))

    async def purge(self, purge: Purge) -> Purged:
        return await self._call(Verb.PURGE, lambda: self.inner.purge(purge))


def _lost(verb: Verb, kind: Kind) -> BaseException:
    """How the caller learns that there will be no answer to what was done."""
    if kind is Kind.CANCELLED:
        return asyncio.CancelledError()
    if kind is Kind.TIMEOUT:
        return TimeoutError(f"{verb} did not answer in time")
    return StoreUnavailable(f"{verb} failed after it was done")
