"""The verbs of the waist over one schema of a Postgres database.

Connections belong to the event loop in which the store was opened; a verb that is called in
another loop goes through a thread of the store's own. When the first loop is gone, the caller's
takes its place.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

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
from flowfabric.errors import FlowFabricError, StoreUnavailable
from flowfabric.forking import begin_here_and_in_children
from flowfabric.store import searching
from flowfabric.store.clock import Clock, FollowingClock, arriving_ms
from flowfabric.store.cursor import refuse_difference
from flowfabric.store.hints import (
    Hint,
    Hints,
    hint_of,
    hint_of_changes,
    hint_of_inserts,
    hint_of_puts,
)
from flowfabric.store.postgres import changes as writing
from flowfabric.store.postgres import (
    claims,
    documents,
    entries,
    flow_changes,
    flow_reads,
    flow_turns,
    inserts,
    inspecting,
    purging,
    reads,
    schema,
    shifts,
    snapshots,
    timers,
)
from flowfabric.store.postgres import feed as log
from flowfabric.store.postgres.address import parse_url
from flowfabric.store.postgres.annex import Annex
from flowfabric.store.postgres.calls import Call, Sent
from flowfabric.store.postgres.connections import (
    PATIENCE_SECONDS,
    PAUSE_SECONDS,
    Pool,
    Undone,
    Work,
)
from flowfabric.store.postgres.finding import Finding
from flowfabric.store.postgres.floors import Floors, TimeFloor
from flowfabric.store.postgres.flow_statements import FlowStatements
from flowfabric.store.postgres.notices import Ear, channel_of, notice_of
from flowfabric.store.postgres.problems import STRANGE, is_cut
from flowfabric.store.postgres.timers import TimerFloors
from flowfabric.store.trips import Trips
from flowfabric.store.upkeep import Damage, Hindrance, Size

T = TypeVar("T")


class PostgresStore:
    """One schema. `clock` replaces the server's, for tests."""

    def __init__(
        self, url: str, *, clock: Clock | None = None, counts: PartitionCounts | None = None
    ) -> None:
        self.hints = Hints(on_subscribe=self._listen, on_publish=self._mind)
        self.trips = Trips()
        self.caller_clock: FollowingClock | None = None
        self.address = parse_url(url)
        self.sql = FlowStatements(self.address.schema)
        self._clock = clock
        self._wanted = counts
        self._channel = channel_of(self.address.schema)
        self._counts: PartitionCounts | None = None
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        """All that belongs to one process; connections are made when they are needed."""
        self._sender = secrets.token_hex(6)
        self._starting = threading.Lock()
        self._floors = Floors()
        self._timers = TimerFloors(TimeFloor(), TimeFloor())
        self._lines = TimeFloor()
        self._pool: Pool | None = None
        self._annex: Annex | None = None
        self._ear: Ear | None = None

    # -- opening and closing ------------------------------------------------------------------

    async def migrate(self) -> PartitionCounts:
        if self._counts is None:
            with self._starting:
                if self._pool is None:
                    self._pool = Pool(self.address, self.trips)
            try:
                self._counts = await self._prepared()
            except BaseException:
                await self.close()
                raise
            if self.hints.is_heard:
                self._listen()
        return self._counts

    async def _prepared(self) -> PartitionCounts:
        """A migration is one transaction that can be repeated, also when it was cut off."""
        time = asyncio.get_running_loop().time
        end = time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._write(
                    lambda connection: schema.prepare(
                        connection, self.sql, self.address, self._wanted
                    )
                )
            except StoreUnavailable as error:
                if not is_cut(error.__cause__) or time() >= end:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    async def close(self) -> None:
        pool, ear, self._pool, self._ear = self._pool, self._ear, None, None
        annex, self._annex = self._annex, None
        self._counts = None
        if annex is not None:
            await asyncio.shield(asyncio.to_thread(annex.close))
        if pool is None:
            return
        if pool.loop is asyncio.get_running_loop():
            await _close(pool, ear)
        elif pool.loop.is_running():
            ending = asyncio.run_coroutine_threadsafe(_close(pool, ear), pool.loop)
            await asyncio.wrap_future(ending)
        else:
            pool.abandon()

    def _listen(self) -> None:
        """From the moment that somebody listens here, listen to the others."""
        pool = self._pool
        if pool is not None and not self.address.pooled and not pool.loop.is_closed():
            pool.loop.call_soon_threadsafe(self._start_ear, pool)

    def _mind(self, hint: Hint) -> None:
        if hint.due_ms is not None:
            self._timers.lower(hint.due_ms)

    def _start_ear(self, pool: Pool) -> None:
        if self._ear is None and self._pool is pool and self._counts is not None:
            self._ear = Ear(self.address, self._sender, self.hints, self.trips)

    # -- the roads to the server --------------------------------------------------------------

    async def _write(self, work: Work[T], *, urgent: bool = False) -> T:
        try:
            return await self._road().write(work, urgent=urgent)
        except FlowFabricError as error:
            await self._refuse_newer(error)
            raise

    async def _read(self, work: Work[T]) -> T:
        try:
            return await self._road().read(work)
        except FlowFabricError as error:
            await self._refuse_newer(error)
            raise

    async def _refuse_newer(self, error: FlowFabricError) -> None:
        """A statement that the server does not understand may be older than its tables."""
        if isinstance(error.__cause__, STRANGE):
            with suppress(StoreUnavailable):
                await self.unmigrated()

    def _road(self) -> Pool | Annex:
        """The connections; anew, here, when the loop they belong to is gone."""
        pool = self._pool
        if pool is None:
            pool = self._reopened()
        if pool.loop is asyncio.get_running_loop():
            return pool
        with self._starting:
            if pool.loop.is_running():
                self._annex = self._annex or Annex(self.address, self.trips)
                return self._annex
            if self._pool is pool:
                pool.abandon()
                self._pool, self._ear = Pool(self.address, self.trips), None
                if self.hints.is_heard:
                    self._listen()
            return self._pool or pool

    def _reopened(self) -> Pool:
        """For a forked child: the store was open in its parent."""
        if self._counts is None:
            raise StoreUnavailable("the store is not open")
        with self._starting:
            if self._pool is None:
                self._pool = Pool(self.address, self.trips)
                if self.hints.is_heard:
                    self._listen()
            return self._pool

    def _call(self, now_ms: int, hint: Hint) -> Call:
        clock_ms = self._clock.now_ms() if self._clock else None
        notice = notice_of(self._sender, hint)
        sent = Sent(now_ms, clock_ms, self.caller_clock)
        return Call(self.sql, sent, self._channel, notice)

    # -- the verbs ----------------------------------------------------------------------------

    async def now(self) -> int:
        arguments = {"clock_ms": self._clock.now_ms() if self._clock else None}
        statement = self.sql.named("clock_now")
        records = await self._read(lambda connection: statement.fetch(connection, arguments))
        now_ms: int = records[0]["now_ms"]
        return now_ms

    async def _refuse_skew(self, now_ms: int) -> None:
        sent_ms = arriving_ms(self.caller_clock, now_ms)
        refuse_difference(await self.now(), sent_ms)

    async def insert(self, batch: Sequence[Submission], now_ms: int) -> list[Inserted]:
        hint = hint_of_inserts(batch)
        call = self._call(now_ms, hint)
        answers = await self._write(lambda connection: inserts.insert(connection, call, batch))
        self.hints.publish(hint)
        return answers

    async def claim(self, ask: Claim) -> list[Lease]:
        call = self._call(ask.now_ms, Hint())
        return await self._write(
            lambda connection: claims.claim(
                connection, call, ask, floors=self._floors, trips=self.trips
            )
        )

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        refuse_doubles([transition.id for transition in transitions])
        if not transitions:
            await self._refuse_skew(now_ms)
            return []
        hint = hint_of(transitions)
        call = self._call(now_ms, hint)
        answers = await self._write(
            lambda connection: writing.apply(connection, call, transitions), urgent=urgent
        )
        self.hints.publish(hint)
        return answers

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        return (await self.commit_each([changes], now_ms))[0]

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        refuse_doubles_in(batch)
        is_plain = len(batch) == 1 and writing.is_plain(batch[0])
        alone = [changes for changes in batch if changes.lanes or is_plain]
        together = [changes for changes in batch if not (changes.lanes or is_plain)]
        done = [changes for changes in alone if await self._commit_alone(changes, now_ms)]
        hint = hint_of_changes(together)
        if together or not alone:
            call = self._call(now_ms, hint)
            answers = await self._write(
                lambda connection: flow_changes.commit_each(connection, call, together)
            )
            done += [changes for changes, good in zip(together, answers, strict=True) if good]
        self.hints.publish(hint if done == together else hint_of_changes(done))
        written = {id(changes) for changes in done}
        return [id(changes) in written for changes in batch]

    async def _commit_alone(self, changes: Changeset, now_ms: int) -> bool:
        call = self._call(now_ms, hint_of_changes([changes]))
        try:
            await self._write(lambda connection: writing.commit(connection, call, changes))
        except Undone:
            return False
        return True

    async def append(self, batch: Sequence[Append], now_ms: int) -> list[Appended | Rejected]:
        refuse_doubles([append.id for append in batch])
        if not batch:
            await self._refuse_skew(now_ms)
            return []
        call = self._call(now_ms, Hint())
        return await self._write(lambda connection: entries.append(connection, call, batch))

    async def entries(self, asks: Sequence[Topic]) -> list[list[Kept]]:
        return await self._read(lambda connection: entries.read(connection, self.sql, asks))

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        call = self._call(turn.now_ms, Hint())
        return await self._write(
            lambda connection: flow_turns.pending(connection, call, turn, self._lines)
        )

    async def next_turn(self, now_ms: int) -> int | None:
        return await self._read(
            lambda connection: flow_reads.next_turn(connection, self.sql, now_ms)
        )

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        return await self._read(lambda connection: flow_reads.graph(connection, self.sql, sights))

    async def find_flows(self, query: FlowQuery) -> list[Flow]:
        return await self._read(lambda connection: flow_reads.find(connection, self.sql, query))

    async def load(self, want: Want) -> list[Loaded | None]:
        return await self._read(lambda connection: reads.load(connection, self.sql, want))

    async def endings(self, ids: Sequence[ExecutionId]) -> list[Ended | None]:
        return await self._read(lambda connection: reads.endings(connection, self.sql, ids))

    async def due(self, now_ms: int, limit: int, kinds: Sequence[str] = ()) -> DueBatch:
        floors, ask = self._timers, timers.Ask(now_ms, limit, kinds)
        return await self._read(lambda connection: timers.due(connection, self.sql, floors, ask))

    async def find(self, query: Query) -> list[Execution]:
        return await searching.find(Finding(self._read, self.sql), query)

    async def count(self, query: Query) -> int:
        return await searching.count(Finding(self._read, self.sql), query)

    async def queues(self, namespace: str, after: str, limit: int, depth: int) -> list[Queue]:
        return await Finding(self._read, self.sql).queues(namespace, after, limit, depth)

    async def tail(self, feed: Feed) -> list[Event]:
        return await self._read(lambda connection: log.tail(connection, self.sql, feed))

    async def departing(self, now_ms: int, limit: int) -> Departing:
        return await self._read(
            lambda connection: purging.departing(connection, self.sql, now_ms, limit)
        )

    async def purge(self, purge: Purge) -> Purged:
        call = self._call(purge.now_ms, Hint())
        return await self._write(lambda connection: purging.purge(connection, call, purge))

    async def lanes(self, after: str, limit: int) -> list[Lane]:
        return await self._read(lambda connection: reads.lanes(connection, self.sql, after, limit))

    async def put(
        self, batch: Sequence[Put], now_ms: int, *, passing: bool = False
    ) -> list[PutAnswer]:
        refuse_doubles([str(put.key) for put in batch])
        hint = hint_of_puts(batch, passing=passing)
        call = self._call(now_ms, hint)
        answers = await self._write(lambda connection: documents.put(connection, call, batch))
        self.hints.publish(hint)
        return answers

    async def documents(self, query: DocumentQuery) -> list[AnyDocument]:
        return await self._read(lambda connection: documents.find(connection, self.sql, query))

    async def shifts(self, asks: Sequence[Shift], now_ms: int) -> list[Shift]:
        refuse_doubles([ask.name for ask in asks])
        call = self._call(now_ms, Hint())
        return await self._write(lambda connection: shifts.take(connection, call, asks))

    # -- upkeep -------------------------------------------------------------------------------

    async def unmigrated(self) -> list[str]:
        return await self._alone(
            lambda connection: schema.pending(connection, self.sql, self.address)
        )

    async def sizes(self) -> list[Size]:
        return await self._alone(
            lambda connection: schema.sizes(connection, self.sql, self.address)
        )

    async def hindrances(self, older_than_ms: int) -> list[Hindrance]:
        return await self._alone(
            lambda connection: snapshots.hindrances(connection, self.sql, older_than_ms)
        )

    async def inspect(self) -> list[Damage]:
        return await self._alone(lambda connection: inspecting.inspect(connection, self.sql))

    async def drop(self) -> None:
        await self.close()
        await self._alone(lambda connection: schema.drop(connection, self.sql, self.address))

    async def _alone(self, work: Work[T]) -> T:
        """On a connection of its own: upkeep works on a store that was not opened, too."""
        pool = Pool(self.address, self.trips)
        try:
            return await pool.write(work)
        finally:
            await pool.close()


async def _close(pool: Pool, ear: Ear | None) -> None:
    if ear is not None:
        await ear.close()
    await pool.close()
