"""The verbs of the waist over one SQLite file.

Writes go through the one writer thread; reads have a connection and a thread of their own and see
every write that was answered before them. No thread is inside SQLite while the process forks, and
a child closes what it inherited: SQLite counts its locks per process, and would take those of the
parent for the child's own. A caller's clock is compared when it calls: a write that has to wait for
other processes is late, not wrong.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

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
from flowfabric.core.transition import (
    Applied,
    Changeset,
    Rejected,
    Transition,
    refuse_doubles,
    refuse_doubles_in,
)
from flowfabric.errors import StoreUnavailable
from flowfabric.forking import begin_here_and_in_children, uncut
from flowfabric.store import searching
from flowfabric.store.clock import Clock, FollowingClock, Machine
from flowfabric.store.cursor import parse_cursor, refuse_gap, refuse_skew
from flowfabric.store.hints import (
    Hint,
    Hints,
    hint_of,
    hint_of_changes,
    hint_of_inserts,
    hint_of_puts,
)
from flowfabric.store.sqlite import (
    applying,
    documents,
    entries,
    flow_changes,
    flow_reads,
    purging,
    reads,
    shifts,
    upkeep,
)
from flowfabric.store.sqlite import changes as sql
from flowfabric.store.sqlite.beside_rows import decode_events
from flowfabric.store.sqlite.clock import FileClock, this_machine
from flowfabric.store.sqlite.counting import CountingConnection
from flowfabric.store.sqlite.file import Setup, check_place, claim_file, connect, prepare
from flowfabric.store.sqlite.finding import Finding
from flowfabric.store.sqlite.patience import patiently, unavailable
from flowfabric.store.sqlite.statements import run
from flowfabric.store.sqlite.turns import TURNS
from flowfabric.store.sqlite.watch import Watch
from flowfabric.store.sqlite.writer import NOTHING, Writer
from flowfabric.store.trips import Trips
from flowfabric.store.upkeep import Damage, Hindrance, Size

P = ParamSpec("P")
T = TypeVar("T")

_RENEWAL = frozenset({"lease_until_ms", "renewed_ms"})


class SqliteStore:
    """One file. `synchronous`: FULL (default) or NORMAL."""

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "FULL",
        clock: Clock | None = None,
        counts: PartitionCounts | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.hints = Hints(on_subscribe=self._look_closer)
        self.trips = Trips()
        self.caller_clock: FollowingClock | None = None
        # The working folder may change before the last connection is opened.
        self.path = os.path.abspath(path)  # noqa: PTH100 - a link stays a link
        self._synchronous = synchronous
        self._file_clock = FileClock(machine or this_machine())
        self._clock: Clock = clock or self._file_clock
        self._wanted = counts
        self._setup: Setup | None = None
        self._writer: Writer | None = None
        self._writing: CountingConnection | None = None
        self._reading: CountingConnection | None = None
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        if self._writer is not None:
            self._writer.leave()
        for inherited in (self._writing, self._reading):
            if inherited is not None:
                inherited.close()
        self._writer = self._writing = self._reading = None
        self._starting = uncut(threading.Lock())
        self._reading_uncut = uncut(threading.Lock())
        self._aside_uncut = uncut(threading.Lock())
        self._watch: Watch | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._is_open = False

    async def migrate(self) -> PartitionCounts:
        if self._setup is None or not self._is_open:
            # Another process may hold the file for a while; the event loop must not wait for it.
            await asyncio.to_thread(self._start)
            try:
                setup = await self._write(self._prepared, rows=1)
                self._watched().begin(setup.version)
                self._setup, self._is_open = setup, True
            except BaseException:
                await self._shut()
                raise
        return self._setup.counts

    @property
    def clock(self) -> Clock:
        return self._clock

    def _prepared(self, connection: sqlite3.Connection) -> Setup:
        setup = prepare(connection, self._wanted)
        if self._clock is self._file_clock:
            self._file_clock.tend(connection)
        return setup

    def _tend(self, connection: sqlite3.Connection) -> None:
        if self._clock is self._file_clock and self._setup is not None:
            self._file_clock.tend(connection)

    def _hear_others(self) -> None:
        """In the thread that writes: another process has written."""
        if self._clock is self._file_clock and self._setup is not None and self._writing:
            self._file_clock.follow(self._writing)
        self.hints.publish(Hint(foreign=True))

    def _start(self) -> None:
        with self._starting:
            if self._writer is None:
                check_place(self.path)
                self._open()

    def _open(self) -> None:
        try:
            patiently(lambda: claim_file(self.path))
            self._watch = Watch(self.path)
            connection = self._writing = patiently(self._connect)
            self._writer = Writer(
                connection,
                watch=self._watch,
                is_watched=lambda: self.hints.is_heard,
                on_foreign=self._hear_others,
                on_hint=self.hints.publish,
                is_synchronous=self._synchronous == "FULL",
            )
        except sqlite3.DatabaseError as error:
            raise unavailable(error) from error
        TURNS.begin()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="flowfabric-reader")

    def _connect(self) -> CountingConnection:
        connection = connect(self.path, self._synchronous)
        connection.trips = self.trips
        return connection

    def _look_closer(self) -> None:
        if self._writer is not None:
            self._writer.wake()

    async def close(self) -> None:
        self._setup = None
        await self._shut()

    async def _shut(self) -> None:
        writer, reader, self._writer, self._reader = self._writer, self._reader, None, None
        self._watch, self._is_open = None, False
        # A caller who is cancelled meanwhile leaves nothing half closed.
        await asyncio.shield(asyncio.to_thread(self._let_go, writer, reader))

    def _let_go(self, writer: Writer | None, reader: ThreadPoolExecutor | None) -> None:
        if writer is not None:
            writer.close()
            TURNS.end()
        if reader is not None:
            reader.shutdown()
        with self._reading_uncut:
            if self._reading is not None:
                self._reading.close()
                self._reading = None

    async def _write(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        rows: int,
        urgent: bool = False,
        passing: bool = False,
        hint: Hint = NOTHING,
    ) -> T:
        writer = self._writer
        if writer is None:
            writer = (await self._reopened())[0]

        def tended(connection: sqlite3.Connection) -> T:
            self._tend(connection)
            return work(connection)

        return await asyncio.wrap_future(
            writer.submit(tended, rows=rows, urgent=urgent, passing=passing, hint=hint)
        )

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        reader = self._reader
        if reader is None:
            reader = (await self._reopened())[1]
        return await asyncio.wrap_future(reader.submit(self._reading_with, work))

    async def _reopened(self) -> tuple[Writer, ThreadPoolExecutor]:
        """For a forked child: the store was open in its parent."""
        if self._setup is not None:
            await self.migrate()
        if self._writer is None or self._reader is None:
            raise StoreUnavailable("the store is not open")
        return self._writer, self._reader

    def _reading_with(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._reading_uncut:
            return self._checked(work)

    def _checked(self, work: Callable[[sqlite3.Connection], T]) -> T:
        watch = self._watched()
        try:
            connection = patiently(self._reader_connection)
            try:
                return patiently(lambda: work(connection))
            finally:
                # An answer, or an error, of another file or another schema means nothing.
                watch.check_version(connection)
        except sqlite3.DatabaseError as error:
            raise unavailable(error) from error
        finally:
            watch.check_files()

    def _watched(self) -> Watch:
        if self._watch is None:
            raise StoreUnavailable("the store is not open")
        return self._watch

    def _reader_connection(self) -> CountingConnection:
        if self._reading is None:
            self._reading = self._connect()
            self._reading.execute("PRAGMA query_only = ON")
        return self._reading

    async def now(self) -> int:
        return self._clock.now_ms()

    async def insert(self, batch: Sequence[Submission], now_ms: int) -> list[Inserted]:
        refuse_skew(self._clock, self.caller_clock, now_ms)
        hint = hint_of_inserts(batch)
        answers = await self._write(
            lambda connection: sql.insert(connection, batch, now_ms), rows=len(batch), hint=hint
        )
        self.hints.publish(hint)
        return answers

    async def claim(self, ask: Claim) -> list[Lease]:
        refuse_skew(self._clock, self.caller_clock, ask.now_ms)
        return await self._write(
            lambda connection: sql.claim(connection, ask, self.trips), rows=ask.limit, passing=True
        )

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        refuse_doubles([transition.id for transition in transitions])
        refuse_skew(self._clock, self.caller_clock, now_ms)
        ready = applying.apply_parts(transitions, now_ms)
        hint = hint_of(transitions)
        answers = await self._write(
            lambda connection: applying.apply(
                connection, transitions, ready, now_ms=now_ms, store_now_ms=self._clock.now_ms()
            ),
            rows=len(transitions),
            urgent=urgent,
            passing=all(transition.patch.keys() <= _RENEWAL for transition in transitions),
            hint=hint,
        )
        self.hints.publish(hint)
        return answers

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        return (await self.commit_each([changes], now_ms))[0]

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        refuse_doubles_in(batch)
        refuse_skew(self._clock, self.caller_clock, now_ms)
        rows = sum(len(changes.transitions) + len(changes.members) + 1 for changes in batch)
        ready = applying.commit_parts(batch, now_ms)
        hint = hint_of_changes(batch)
        answers = await self._write(
            lambda connection: applying.commit_each(
                connection, batch, ready, now_ms=now_ms, store_now_ms=self._clock.now_ms()
            ),
            rows=rows,
            hint=hint,
        )
        if not all(answers):
            hint = hint_of_changes(
                [one for one, is_done in zip(batch, answers, strict=True) if is_done]
            )
        self.hints.publish(hint)
        return answers

    async def append(self, batch: Sequence[Append], now_ms: int) -> list[Appended | Rejected]:
        refuse_doubles([append.id for append in batch])
        refuse_skew(self._clock, self.caller_clock, now_ms)
        ready = entries.append_part(batch)
        return await self._write(
            lambda connection: entries.append(connection, batch, ready, self._clock.now_ms()),
            rows=ready.changes or 1,
        )

    async def entries(self, asks: Sequence[Topic]) -> list[list[Kept]]:
        return await self._read(lambda connection: entries.read(connection, asks))

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        refuse_skew(self._clock, self.caller_clock, turn.now_ms)
        return await self._write(
            lambda connection: flow_changes.take(connection, turn), rows=turn.limit, passing=True
        )

    async def next_turn(self, now_ms: int) -> int | None:
        return await self._read(lambda connection: flow_reads.next_turn(connection, now_ms))

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        return await self._read(lambda connection: flow_reads.graph(connection, sights))

    async def find_flows(self, query: FlowQuery) -> list[Flow]:
        return await self._read(lambda connection: flow_reads.find(connection, query))

    async def load(self, want: Want) -> list[Loaded | None]:
        return await self._read(lambda connection: reads.load(connection, want))

    async def endings(self, ids: Sequence[ExecutionId]) -> list[Ended | None]:
        return await self._read(lambda connection: reads.endings(connection, ids))

    async def due(self, now_ms: int, limit: int, kinds: Sequence[str] = ()) -> DueBatch:
        return await self._read(lambda connection: reads.due(connection, now_ms, limit, kinds))

    async def find(self, query: Query) -> list[Execution]:
        return await searching.find(Finding(self._read), query)

    async def count(self, query: Query) -> int:
        return await searching.count(Finding(self._read), query)

    async def queues(self, namespace: str, after: str, limit: int, depth: int) -> list[Queue]:
        return await Finding(self._read).queues(namespace, after, limit, depth)

    async def tail(self, feed: Feed) -> list[Event]:
        incarnation = self._setup.incarnation if self._setup else ""

        def work(connection: sqlite3.Connection) -> list[Event]:
            last: int = run(connection, "log_last").fetchone()[0]
            after = parse_cursor(feed.after, incarnation, last=last)
            if feed.after and feed.execution is None:
                refuse_gap(after, run(connection, "log_floor").fetchone()[0])
            return decode_events(reads.log(connection, feed, after), incarnation)

        return await self._read(work)

    async def departing(self, now_ms: int, limit: int) -> Departing:
        return await self._read(lambda connection: purging.departing(connection, now_ms, limit))

    async def purge(self, purge: Purge) -> Purged:
        refuse_skew(self._clock, self.caller_clock, purge.now_ms)
        rows = len(purge.executions) + purge.members * len(purge.flows)
        return await self._write(lambda connection: purging.purge(connection, purge), rows=rows)

    async def lanes(self, after: str, limit: int) -> list[Lane]:
        return await self._read(lambda connection: reads.lanes(connection, after, limit))

    async def put(
        self, batch: Sequence[Put], now_ms: int, *, passing: bool = False
    ) -> list[PutAnswer]:
        refuse_doubles([str(put.key) for put in batch])
        refuse_skew(self._clock, self.caller_clock, now_ms)
        hint = hint_of_puts(batch, passing=passing)
        answers = await self._write(
            lambda connection: documents.put(connection, batch, now_ms),
            rows=len(batch),
            passing=passing,
            hint=hint,
        )
        self.hints.publish(hint)
        return answers

    async def documents(self, query: DocumentQuery) -> list[AnyDocument]:
        return await self._read(lambda connection: documents.find(connection, query))

    async def shifts(self, asks: Sequence[Shift], now_ms: int) -> list[Shift]:
        refuse_doubles([ask.name for ask in asks])
        refuse_skew(self._clock, self.caller_clock, now_ms)
        if not asks:
            return await self._read(shifts.known)
        return await self._write(
            lambda connection: shifts.take(connection, asks, now_ms),
            rows=len(asks),
            passing=True,
        )

    async def _aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread, on connections of its own."""

        def uncut_work() -> T:
            with self._aside_uncut:
                return work(*args, **kwargs)

        return await asyncio.to_thread(uncut_work)

    async def unmigrated(self) -> list[str]:
        return await self._aside(upkeep.pending, self.path)

    async def sizes(self) -> list[Size]:
        return await self._aside(upkeep.sizes, self.path)

    async def checkpoint(self) -> int:
        return await self._aside(upkeep.checkpoint, self.path)

    async def hindrances(self, older_than_ms: int) -> list[Hindrance]:
        """By how much, not for how long: a log that is emptied now and then never gets there."""
        del older_than_ms
        return await self._aside(upkeep.hindrances, self.path)

    async def inspect(self) -> list[Damage]:
        return await self._aside(upkeep.inspect, self.path)

    async def drop(self) -> None:
        await self.close()
        await self._aside(upkeep.drop, self.path)

    async def backup(self, target: Path) -> None:
        await self._aside(upkeep.backup, self.path, target)
