"""The model: the same contract with a dict for a database.

Other stores are compared with it, and `memory://` runs on it. All is gone with the process.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from copy import copy
from operator import itemgetter

from flowfabric.core.documents import AnyDocument, Document, DocumentQuery, Put, PutAnswer
from flowfabric.core.entries import Append, Appended, Kept, Topic
from flowfabric.core.flow.changes import Note
from flowfabric.core.flow.model import Flow, Unreadable
from flowfabric.core.flow.views import FlowQuery, Pending, Sight, Turn, View
from flowfabric.core.ids import ExecutionId, PartitionCounts
from flowfabric.core.model import (
    Attempt,
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
    Malformed,
    Query,
    Queue,
    Shift,
    Submission,
    Want,
)
from flowfabric.core.retention import Departing, Purge, Purged
from flowfabric.core.states import CLAIMABLE, State
from flowfabric.core.transition import (
    Applied,
    Changeset,
    Held,
    LogLine,
    Rejected,
    Transition,
    claimed,
    guard_holds,
    lane_changed,
    patched,
    refuse_doubles,
    refuse_doubles_in,
)
from flowfabric.forking import begin_here_and_in_children, uncut
from flowfabric.store.clock import Clock, FollowingClock, SystemClock
from flowfabric.store.cursor import refuse_skew
from flowfabric.store.damage import MISSING_PAYLOAD, ended, lease_or_unusable, unreadable
from flowfabric.store.hints import Hints, hint_of, hint_of_changes, hint_of_inserts, hint_of_puts
from flowfabric.store.memory_documents import DocumentBook
from flowfabric.store.memory_entries import EntryBook
from flowfabric.store.memory_flows import FlowBook, Record
from flowfabric.store.memory_log import LogBook
from flowfabric.store.memory_rows import departing, fitting, keys_alive, queues, take_shifts, total
from flowfabric.store.memory_timers import TimerBook
from flowfabric.store.trips import Trips
from flowfabric.store.upkeep import Size

ReadyKey = tuple[int, int, ExecutionId]


class MemoryStore:
    """One lock, a few dicts, and two heaps that forget lazily. Heads are answered as copies, as by
    every other store: which copy of a lease a caller shows is told by the object."""

    def __init__(self, clock: Clock | None = None, counts: PartitionCounts | None = None) -> None:
        self.hints = Hints()
        self.trips = Trips()
        self.caller_clock: FollowingClock | None = None
        self.clock = self._clock = clock or SystemClock()
        self._counts = counts or PartitionCounts()
        self._lock = uncut(threading.RLock())
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        """A life of its own, with nothing in it: with a copy, a forked child would work twice."""
        self._rows: dict[ExecutionId, Execution] = {}
        self._unreadable: dict[ExecutionId, str] = {}
        self._payloads: dict[ExecutionId, bytes] = {}
        self._tags: dict[ExecutionId, dict[str, str]] = {}
        self._attempts: dict[ExecutionId, dict[int, Attempt]] = {}
        self._keys: dict[tuple[str, str], tuple[ExecutionId, str, int]] = {}
        self._lanes: dict[str, Lane] = {}
        self._shifts: dict[str, Shift] = {}
        self._log = LogBook()
        self._entries = EntryBook()
        self._documents = DocumentBook()
        self._flows = FlowBook()
        self._ready: dict[tuple[str, str], list[ReadyKey]] = {}
        self._timers = TimerBook()

    async def migrate(self) -> PartitionCounts:
        return self._counts

    async def close(self) -> None:
        """Nothing is held that would have to be let go."""

    async def now(self) -> int:
        return self._clock.now_ms()

    async def insert(self, batch: Sequence[Submission], now_ms: int) -> list[Inserted]:
        with self._lock:
            self.trips.add()
            refuse_skew(self._clock, self.caller_clock, now_ms)
            answers = [self._insert(submission, now_ms) for submission in batch]
        self.hints.publish(hint_of_inserts(batch))
        return answers

    def _insert(self, submission: Submission, now_ms: int) -> Inserted:
        row = submission.execution
        if submission.key is not None:
            known = self._keys.get((row.namespace, submission.key))
            if known is not None and known[2] > now_ms:
                return Inserted(known[0], created=False, digest=known[1])
        if row.id in self._rows:
            return Inserted(row.id, created=False)
        if not submission.create:
            return Inserted(row.id, created=False, exists=False)
        if submission.key is not None:
            entry = (row.id, submission.digest, submission.key_until_ms)
            self._keys[row.namespace, submission.key] = entry
        self._put_new(submission, now_ms)
        return Inserted(row.id, created=True)

    def _put_new(self, submission: Submission, now_ms: int) -> None:
        row = submission.execution
        self._put(row)
        self._payloads[row.id] = submission.payload
        if submission.tags:
            self._tags[row.id] = dict(submission.tags)
        self._lanes.setdefault(row.lane, Lane(row.lane))
        self._log.append(row, now_ms, LogLine("submitted"))

    async def claim(self, ask: Claim) -> list[Lease]:
        with self._lock:
            self.trips.add()
            refuse_skew(self._clock, self.caller_clock, ask.now_ms)
            rows = self._held_by(ask.token) if ask.repeated else []
            if not rows:
                rows = self._take_best(ask)
            return [lease_or_unusable(copy(row), self._payloads.get(row.id)) for row in rows]

    def _held_by(self, token: str) -> list[Execution]:
        held = [
            r
            for r in self._rows.values()
            if r.state is State.ACTIVE
            and r.lease_token == token
            and (r.lease_until_ms or 0) > self._clock.now_ms()
            and r.id not in self._unreadable
        ]
        return sorted(held, key=_ready_key)

    def _take_best(self, ask: Claim) -> list[Execution]:
        if ask.only is not None:
            row = self._rows.get(ask.only)
            fits = row is not None and self._is_ready(row) and row.namespace == ask.namespace
            return [self._take(row, ask)] if row and fits and row.route in ask.routes else []
        queues = [self._queue(ask.namespace, route) for route in ask.routes]
        taken: list[Execution] = []
        while len(taken) < ask.limit:
            best = min((queue for queue in queues if queue), key=itemgetter(0), default=None)
            if best is None:
                break
            # Taken before the next look: a queue may name the same row twice.
            taken.append(self._take(self._rows[heapq.heappop(best)[2]], ask))
            self._forget_stale(best)
        return taken

    def _queue(self, namespace: str, route: str) -> list[ReadyKey]:
        queue = self._ready.setdefault((namespace, route), [])
        self._forget_stale(queue)
        return queue

    def _forget_stale(self, queue: list[ReadyKey]) -> None:
        while queue and not self._is_current(queue[0]):
            heapq.heappop(queue)

    def _is_current(self, key: ReadyKey) -> bool:
        row = self._rows.get(key[2])
        return row is not None and self._is_ready(row) and _ready_key(row) == key

    def _is_ready(self, row: Execution) -> bool:
        return row.state in CLAIMABLE and row.id not in self._unreadable

    def _take(self, row: Execution, ask: Claim) -> Execution:
        taken = patched(row, claimed(row, ask))
        self._put(taken)
        kind = "claimed" if ask.start else "granted"
        self._log.append(
            taken, ask.now_ms, LogLine(kind, {"worker": ask.worker, "kind": row.next_kind})
        )
        return taken

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        del urgent
        refuse_doubles([transition.id for transition in transitions])
        with self._lock:
            self.trips.add()
            refuse_skew(self._clock, self.caller_clock, now_ms)
            answers = [self._apply(transition, now_ms) for transition in transitions]
        self.hints.publish(hint_of(transitions))
        return answers

    def _apply(self, transition: Transition, now_ms: int) -> Applied | Rejected:
        if not self._holds(transition):
            return self._rejected(transition.id)
        self._write(transition, now_ms)
        return Applied(transition.id)

    def _holds(self, change: Transition | Append) -> bool:
        if change.id in self._unreadable and isinstance(change.guard, Held):
            return False
        row = self._rows.get(change.id)
        return row is not None and guard_holds(change.guard, row, self._clock.now_ms())

    def _rejected(self, id: ExecutionId) -> Rejected:
        row = None if id in self._unreadable else self._rows.get(id)
        return Rejected(id, None if row is None else copy(row))

    def _write(self, transition: Transition, now_ms: int) -> None:
        row = patched(self._rows[transition.id], transition.patch)
        self._put(row)
        if transition.attempt is not None:
            self._keep_attempt(transition.attempt)
        if transition.tags:
            self._tags.setdefault(row.id, {}).update(transition.tags)
        if transition.log is not None:
            self._log.append(row, now_ms, transition.log)
        if transition.line is not None:
            self._flows.add_lines([transition.line])
        if transition.entries:
            self._entries.write(row, transition.entries)

    def _keep_attempt(self, attempt: Attempt) -> None:
        mine = self._attempts.setdefault(attempt.execution, {})
        first = mine.get(attempt.attempt, attempt)
        mine[attempt.attempt] = attempt.written_over(first)

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        return (await self.commit_each([changes], now_ms))[0]

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        refuse_doubles_in(batch)
        with self._lock:
            self.trips.add()
            refuse_skew(self._clock, self.caller_clock, now_ms)
            answers = [self._commit(changes, now_ms) for changes in batch]
        done = [changes for changes, is_done in zip(batch, answers, strict=True) if is_done]
        self.hints.publish(hint_of_changes(done))
        return answers

    def _commit(self, changes: Changeset, now_ms: int) -> bool:
        lanes = [lane_changed(self._lanes.get(c.name), c) for c in changes.lanes]
        if None in lanes or not all(self._holds(t) for t in changes.transitions):
            return False
        if not self._flows.holds(changes):
            return False
        if any(member.execution.id in self._rows for member in changes.members):
            return False
        for member in changes.members:
            self._put_new(member, now_ms)
        for transition in changes.transitions:
            self._write(transition, now_ms)
        self._lanes |= {lane.name: lane for lane in lanes if lane is not None}
        self._flows.write(changes)
        for note in changes.notes:
            self._note(note, now_ms)
        return True

    def _note(self, note: Note, now_ms: int) -> None:
        row = self._rows.get(note.execution)
        if row is not None:
            self._log.append(row, now_ms, LogLine(note.kind, note.detail))

    async def append(self, batch: Sequence[Append], now_ms: int) -> list[Appended | Rejected]:
        refuse_doubles([append.id for append in batch])
        with self._lock:
            self.trips.add()
            refuse_skew(self._clock, self.caller_clock, now_ms)
            return [self._appended(append) for append in batch]

    def _appended(self, append: Append) -> Appended | Rejected:
        if not self._holds(append):
            return self._rejected(append.id)
        there = self._entries.write(self._rows[append.id], append.entries)
        return Appended(append.id, tuple(there))

    async def entries(self, asks: Sequence[Topic]) -> list[list[Kept]]:
        with self._lock:
            self.trips.add()
            return [self._entries.read(self._rows.get(ask.id), ask) for ask in asks]

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        with self._lock:
            refuse_skew(self._clock, self.caller_clock, turn.now_ms)
            return self._flows.take(turn)

    async def next_turn(self, now_ms: int) -> int | None:
        with self._lock:
            return self._flows.next_turn(now_ms)

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        with self._lock:
            return [self._flows.look(sight, self._rows.get) for sight in sights]

    async def load(self, want: Want) -> list[Loaded | None]:
        with self._lock:
            self.trips.add()
            return [self._load(id, want) for id in want.ids]

    def _load(self, id: ExecutionId, want: Want) -> Loaded | None:
        row = self._readable(id)
        if row is None:
            return None
        attempts = self._attempts.get(id, {})
        if want.payload and id not in self._payloads:
            raise unreadable(id, MISSING_PAYLOAD)
        return Loaded(
            copy(row),
            payload=self._payloads[id] if want.payload else b"",
            tags=dict(sorted(self._tags.get(id, {}).items())) if want.tags else {},
            attempts=tuple(attempts[n] for n in sorted(attempts)) if want.attempts else (),
        )

    def _readable(self, id: ExecutionId) -> Execution | None:
        if id in self._unreadable:
            raise unreadable(id, self._unreadable[id])
        return self._rows.get(id)

    async def endings(self, ids: Sequence[ExecutionId]) -> list[Ended | None]:
        with self._lock:
            self.trips.add()
            return [self._ended(id) for id in ids]

    def _ended(self, id: ExecutionId) -> Ended | None:
        row = self._readable(id)
        if row is None:
            return None
        last = self._attempts.get(id, {}).get(row.attempt)
        result = last.result if last else None
        return ended(id, row.state, (row.outcome_detail, row.outcome_category), result)

    async def due(self, now_ms: int, limit: int, kinds: Sequence[str] = ()) -> DueBatch:
        with self._lock:
            self.trips.add()
            passed, later = self._timers.look(now_ms, self._rows)
            rows = [self._seen(id) for id in passed[:limit]]
            documents, next_ms = self._documents.due(now_ms, limit, kinds)
            soonest = min((at for at in (later, next_ms) if at is not None), default=None)
            return DueBatch(rows, soonest, documents)

    def _seen(self, id: ExecutionId) -> Execution | Malformed:
        row = self._rows[id]
        problem = self._unreadable.get(id)
        return copy(row) if problem is None else Malformed(id, row.rev, row.failures, problem)

    async def find_flows(self, query: FlowQuery) -> list[Flow]:
        with self._lock:
            self.trips.add()
            return self._flows.find(query)

    async def find(self, query: Query) -> list[Execution]:
        with self._lock:
            self.trips.add()
            found = fitting(self._rows, query, self._tags, self._flows.is_open)
            return [copy(row) for row in found[: query.limit] if self._readable(row.id)]

    async def count(self, query: Query) -> int:
        with self._lock:
            self.trips.add()
            return len(fitting(self._rows, query, self._tags, self._flows.is_open))

    async def tail(self, feed: Feed) -> list[Event]:
        with self._lock:
            self.trips.add()
            return self._log.tail(feed)

    async def departing(self, now_ms: int, limit: int) -> Departing:
        with self._lock:
            self.trips.add()
            executions = departing(self._rows.values(), now_ms, limit)
            return Departing(executions, self._flows.departing(now_ms, limit))

    async def purge(self, purge: Purge) -> Purged:
        with self._lock:
            self.trips.add()
            refuse_skew(self._clock, self.caller_clock, purge.now_ms)
            seen = [(self._rows.get(each.id), each.rev) for each in purge.executions]
            rows = [row for row, rev in seen if row is not None and row.rev == rev]
            kept = keys_alive(self._keys.values(), {row.id for row in rows}, purge.now_ms)
            alone = [row.id for row in rows if row.id not in kept]
            members = self._flows.departing_members(purge)
            left = self._entries.remove([*alone, *members], purge.entries)
            alone, members = ([id for id in some if id not in left] for some in (alone, members))
            flows = self._flows.remove(purge, members)
            self._remove({*alone, *members})
            self._rows |= {id: patched(self._rows[id], {}) for id in left}
            return Purged([*alone, *flows], kept, len(members), len(left))

    def _remove(self, ids: set[ExecutionId]) -> None:
        for id in ids:
            for table in (self._rows, self._unreadable, self._payloads, self._tags, self._attempts):
                table.pop(id, None)
        self._keys = {key: entry for key, entry in self._keys.items() if entry[0] not in ids}
        self._log.remove(ids)

    async def lanes(self, after: str, limit: int) -> list[Lane]:
        with self._lock:
            self.trips.add()
            names = sorted(name for name in self._lanes if name > after)
            return [self._lanes[name] for name in names[:limit]]

    async def queues(self, namespace: str, after: str, limit: int, depth: int) -> list[Queue]:
        with self._lock:
            self.trips.add()
            return queues(self._rows.values(), namespace, after, limit, depth=depth)

    async def put(
        self, batch: Sequence[Put], now_ms: int, *, passing: bool = False
    ) -> list[PutAnswer]:
        refuse_doubles([str(put.key) for put in batch])
        with self._lock:
            self.trips.add()
            refuse_skew(self._clock, self.caller_clock, now_ms)
            answers = [self._documents.put(put, now_ms) for put in batch]
        self.hints.publish(hint_of_puts(batch, passing=passing))
        return answers

    async def documents(self, query: DocumentQuery) -> list[AnyDocument]:
        with self._lock:
            self.trips.add()
            return self._documents.find(query)

    async def shifts(self, asks: Sequence[Shift], now_ms: int) -> list[Shift]:
        refuse_doubles([ask.name for ask in asks])
        with self._lock:
            self.trips.add()
            refuse_skew(self._clock, self.caller_clock, now_ms)
            return take_shifts(self._shifts, asks, now_ms)

    async def unmigrated(self) -> list[str]:
        """Nothing is ever behind what was never written down."""
        return []

    async def sizes(self) -> list[Size]:
        with self._lock:
            return [
                Size("execution", len(self._rows), total(self._payloads)),
                Size("attempt", total(self._attempts), 0),
                Size("tag", total(self._tags), 0),
                Size("idempotency", len(self._keys), 0),
                Size("lane", len(self._lanes), 0),
                *self._flows.sizes(),
                *self._entries.sizes(),
                self._documents.sizes(),
                *self._log.sizes(),
            ]

    async def drop(self) -> None:
        with self._lock:
            self._begin()

    def corrupt(self, record: Record | ExecutionId | Document, problem: str) -> None:
        """Make a record unreadable, as a raw client could, or readable again without a problem:
        for tests of what must survive it."""
        with self._lock:
            if isinstance(record, Document):
                self._documents.spoil(record, problem)
                return
            if isinstance(record, str):
                self._unreadable.pop(record, None)
                if problem:
                    self._unreadable[record] = problem
            self._flows.spoil(record, problem)

    def _put(self, row: Execution) -> None:
        self._rows[row.id] = row
        if row.state in CLAIMABLE:
            queue = self._ready.setdefault((row.namespace, row.route), [])
            heapq.heappush(queue, _ready_key(row))
        self._timers.arm(row)
        if row.flow:
            self._flows.join(row)


def _ready_key(row: Execution) -> ReadyKey:
    return (-row.priority, row.created_ms, row.id)
