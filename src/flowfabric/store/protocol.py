"""The waist: what every store can do. A store applies, it never decides.

Theory. The core decides and hands over data: guards, patches, log lines. A store compares and
writes them, for any number of records in one call, and keeps its indexes true by itself because
they are functions of the head:

    ready     rows whose state is waiting, orphaned or revoked, per namespace and route,
              highest priority first, then oldest, then smallest id
    timer     rows and documents with a `due_ms`, soonest first
    members   rows with a `flow`, per flow
    lines     open lines, per flow, by (at_ms, id)
    departing rows and flows with a `purge_ms`, soonest first
    words     documents by their words, per kind and namespace

A flow owns its edges, groups and lines. They are written only by a changeset that also names the
flow with the `rev` it was seen with, and every such changeset raises it: whoever read anything of
the flow before is refused. Lines that are only added are the exception, and leave the flow alone:
`apply` adds that of a member that ends, so that a thousand members can end at once, and a changeset
that names the flow without a `rev` adds others, whatever else happens to it.

What holds for every verb:

* Verbs may be called from any thread that runs an event loop, many at a time.
* What a writing verb does in one scope, a partition or the lanes, happens as a whole or not at
  all, also when the process is killed in it. When it raises, nothing of it is written, unless the
  outcome is unknown (a lost connection) or part of it belongs to another scope; then it can be
  repeated with the same ids and tokens and gives the same answer.
* `now_ms` is the time of the caller's decision, and may be as old as the work since then took.
  What a store compares with its own clock is `caller_clock`, looked at when the call is sent: it
  refuses the whole call with `ClockSkew` when they differ by more than half a second, or when the
  decision is in the future. Leases are compared with the store's own clock.
* At most one change per record per call.
* Every write of a record raises its `rev` by one. A column not named in a patch is not written.
  Entries that are appended under a lease are the exception: while it is held, nobody else may
  decide by them.
* A row that cannot be read is `Corrupt` for who reads it by `load`, `endings`, `find` or
  `find_flows`, and keeps no other row from being claimed, written or found due. An entry that
  cannot be read says so itself.
* Trouble with the store itself is `StoreUnavailable`, with its cause chained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
from flowfabric.store.clock import FollowingClock
from flowfabric.store.hints import Hints
from flowfabric.store.trips import Trips


class Store(Protocol):
    """The verbs. `hints` tells this process what its writes made possible; `trips` counts
    every wait for the database and every statement or command that went with it, wherever the
    store makes one, also those that it makes by itself. `caller_clock` is what this process thinks
    the store's time to be; without it `now_ms` is taken for that."""

    hints: Hints
    trips: Trips
    caller_clock: FollowingClock | None

    async def migrate(self) -> PartitionCounts:
        """Make the store ready, or check that it is ours.

        The first start fixes the schema and the partition counts; every later one must fit them,
        else `StoreMismatch` says what does not. Repeating it changes nothing.
        """
        ...

    async def close(self) -> None:
        """Finish what was accepted and let go of everything. Repeating it is harmless."""
        ...

    async def now(self) -> int:
        """The store's clock."""
        ...

    async def insert(self, batch: Sequence[Submission], now_ms: int) -> list[Inserted]:
        """Write new executions with their bodies, tags and keys; answers in the order given.

        An id that exists is left alone and answered `created=False`. A key that is alive answers
        the execution it belongs to and the digest it was used with; key and execution are written
        together or not at all. Lanes that are not known yet come to be. What is not to be created
        is only looked for, by key and by id, and answered `exists=False` when it is not there.
        """
        ...

    async def claim(self, ask: Claim) -> list[Lease]:
        """Take up to `limit` ready executions of these routes, best first across them, for one
        worker. What waits elsewhere is not touched.

        Best of all where the store can see it; a store of many servers compares the heads of at
        least sixteen partitions that have work.

        Each taken row is changed as `core.transition.claimed` says, and nothing else is judged.
        No execution is given to two callers. With `only`, that one execution or nothing. With
        `repeated`, what an earlier call with the same token took and still holds is answered again,
        and new work is taken only if there is none such.
        """
        ...

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        """Write each transition whose guard holds; answers in the order given.

        They are independent: a refused one comes back with the row that refused it, as it was at
        that moment, and spoils no other. `urgent` goes before what is queued. The line and the
        entries that a transition carries are written with it.
        """
        ...

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        """Write all changes, or none and answer False when any guard does not hold.

        They are of one scope: executions of one partition, or lanes.
        """
        ...

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        """Each as `commit` would, in one call: a refused one spoils no other.

        No record is in two of them, and no line is both written and done. Guards: every
        transition's, every lane's, new flows and members are not there, flows have the `rev` they
        were seen with (which rises by one). A member's key is part of its id: none is written.
        """
        ...

    async def append(self, batch: Sequence[Append], now_ms: int) -> list[Appended | Rejected]:
        """Write entries of executions whose leases are as shown; answers in the order given.

        The lease is compared with the row, and the row kept from changing, before a key is looked
        for: whoever lost it leaves no entry behind a decision about that. A key that is there, in
        the generation that the row says, stays as it is and is answered. Refused ones come back as
        from `apply`. The row is not written.
        """
        ...

    async def entries(self, asks: Sequence[Topic]) -> list[list[Kept]]:
        """Read entries by key, as bytes compare, each ask after its key and up to its limit;
        answers in the order given, nothing for executions that are not there."""
        ...

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        """Take up to `limit` flows that have something to do, for one dispatcher.

        A flow has something to do when it has a line whose `next_try_ms` has come, or when its own
        `due_ms` has. It is given to nobody else before `until_ms`, unless a changeset says so
        (`busy_until_ms`); taking it does not raise its `rev`. One that is busy, parked, or whose
        own `next_try_ms` has not come is not taken. Taking none writes nothing. One that cannot be
        read is taken all the same and named, so that it keeps no other back.
        """
        ...

    async def next_turn(self, now_ms: int) -> int | None:
        """When the next flow has something to do, or is free again, that has not or is not now:
        the soonest `due_ms`, `next_try_ms` or end of a lease after `now_ms`. Asked after `pending`
        found nothing it may be too early, never too late; parked flows have none."""
        ...

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        """Read parts of flows, each in one moment, in the order asked for.

        A record that cannot be read is named as `Unreadable` and keeps no other back.
        """
        ...

    async def find_flows(self, query: FlowQuery) -> list[Flow]:
        """Read the flows that fit, ordered by id, after the given one."""
        ...

    async def load(self, want: Want) -> list[Loaded | None]:
        """Read executions in the order asked for; None for those that are not there."""
        ...

    async def endings(self, ids: Sequence[ExecutionId]) -> list[Ended | None]:
        """Read how executions stand, in the order asked for, with the result of the last attempt;
        None for those that are not there."""
        ...

    async def due(self, now_ms: int, limit: int, kinds: Sequence[str] = ()) -> DueBatch:
        """Read rows, and documents of these kinds, whose timer has passed, soonest first, `limit`
        of each at most; one that cannot be read is `Malformed` or `DamagedDocument` and does not
        keep the others back. Documents with equal times are in the order of kind, namespace and
        name. Kinds that are not asked for do not count, neither for what is next."""
        ...

    async def find(self, query: Query) -> list[Execution]:
        """Read the heads that fit, ordered by id, after the given one.

        Members of a flow that is not open yet are not there; those of a flow that is gone are.
        """
        ...

    async def count(self, query: Query) -> int:
        """How many heads fit, after the given one, whatever the limit. Of many, a part at a time:
        what changes meanwhile is counted or not."""
        ...

    async def tail(self, feed: Feed) -> list[Event]:
        """Read log lines after a cursor in the order they were committed; none is ever missed.

        A store of many servers has that order within each partition, and orders partitions by
        time; a cursor of one execution's lines, used for others, may then tell of lines again.
        A cursor of another life of the store, or one whose lines are gone, is `CursorExpired`.
        """
        ...

    async def departing(self, now_ms: int, limit: int) -> Departing:
        """Read what may go: executions and flows whose `purge_ms` has passed, soonest first,
        `limit` of each at most."""
        ...

    async def purge(self, purge: Purge) -> Purged:
        """Remove executions and flows that are as they were seen, with everything of theirs:
        bodies, attempts, tags, keys, log lines, entries, edges, groups, open lines.

        An execution whose key is still alive stays, and so does what was changed since. Cursors
        that stand before a removed line are `CursorExpired` from then on.
        """
        ...

    async def lanes(self, after: str, limit: int) -> list[Lane]:
        """Read lanes ordered by name, after the given one."""
        ...

    async def queues(self, namespace: str, after: str, limit: int, depth: int) -> list[Queue]:
        """Read what is ready in a namespace: the next routes that have something, in their order,
        each counted up to `depth` rows. A store may count all of them together a part at a time."""
        ...

    async def put(
        self, batch: Sequence[Put], now_ms: int, *, passing: bool = False
    ) -> list[PutAnswer]:
        """Create, write or remove each document that has the revision that was seen; answers in the
        order given.

        They are independent: a refused one comes back with what refused it, as it was at that
        moment, and spoils no other. All of one kind and namespace are written as a whole.
        Repeated, a put that was written is refused with what it wrote. `passing`: nobody is hurt
        if it goes with the machine, and a timer that is set need not wake anybody.
        """
        ...

    async def documents(self, query: DocumentQuery) -> list[AnyDocument]:
        """Read documents of one kind and namespace in the order of their names. One that cannot be
        read keeps no other back."""
        ...

    async def shifts(self, asks: Sequence[Shift], now_ms: int) -> list[Shift]:
        """Take each of these shifts that is free, or the asker's own, and answer all there are,
        ordered by name: whoever got one finds his ask in the answer.

        A shift is free when its `until_ms` is not after `now_ms`. An ask without a report keeps
        the one that is there.
        """
        ...
