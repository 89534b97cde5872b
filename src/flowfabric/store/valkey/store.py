"""The verbs of the waist over Valkey or Redis, one server or a cluster.

Each partition is one scope: a call writes in one of them, as a whole or not at all. A verb about
several partitions is several calls, sent at once, each repeatable.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

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
from flowfabric.errors import StoreMismatch, StoreUnavailable
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
from flowfabric.store.upkeep import Damage, Size, Verified
from flowfabric.store.valkey.address import Address
from flowfabric.store.valkey.answers import Answer, answer_of
from flowfabric.store.valkey.calls import Call, Caller, Patience, command, function
from flowfabric.store.valkey.claiming import Claiming
from flowfabric.store.valkey.codec import (
    inserted_of,
    record,
    refused_of,
    rows_of,
    shifts_of,
    time_of,
)
from flowfabric.store.valkey.documents import Documents
from flowfabric.store.valkey.entries import Entries
from flowfabric.store.valkey.feed import Log
from flowfabric.store.valkey.finding import Finding
from flowfabric.store.valkey.flows.codec import flags_of
from flowfabric.store.valkey.flows.reading import FlowReading
from flowfabric.store.valkey.flows.writing import commit_calls
from flowfabric.store.valkey.hinting import Hinting
from flowfabric.store.valkey.library import PROTOCOL, refuse_protocol
from flowfabric.store.valkey.network import Network
from flowfabric.store.valkey.purging import Purging
from flowfabric.store.valkey.reading import Reading
from flowfabric.store.valkey.timers import Ask, Timers
from flowfabric.store.valkey.trouble import is_passing
from flowfabric.store.valkey.upgrading import Upgrading
from flowfabric.store.valkey.upkeep import Keeping
from flowfabric.store.valkey.verifying import Verifying
from flowfabric.store.valkey.waking import Waking
from flowfabric.store.valkey.writing import (
    Keys,
    Moment,
    apply_calls,
    insert_calls,
)

# How many records a look at the indexes compares in one call.
INSPECT_AT_ONCE = 500


class ValkeyStore:
    """One prefix on one server or cluster. `clock` replaces the servers' clocks in tests."""

    def __init__(
        self, address: Address, *, clock: Clock | None = None, counts: PartitionCounts | None = None
    ) -> None:
        self.hints = Hints(on_subscribe=self._listen)
        self.address = address
        self.keys = Keys(address.prefix, inline=not address.is_cluster)
        self._clock = clock
        self._wanted = counts
        self._counts: PartitionCounts | None = None
        self._lanes: set[str] = set()
        self.network = Network(address, on_new_life=self._begin_anew)
        self.caller = Caller(self.network, on_load=self._refuse_protocol)
        self.trips = self.caller.trips
        self.caller_clock: FollowingClock | None = None
        self._keeping = Keeping(self.network, self.keys)
        self._hinting = Hinting(self.caller, self.keys)
        self._claiming = Claiming(self.caller, self.keys, self._hinting)
        self._documents = Documents(self.caller, self.keys, self._hinting)
        self._timers = Timers(self.caller, self.keys, self._hinting)
        self._reading = Reading(self.caller, self.keys, self._hinting)
        self._finding = Finding(self.caller, self.keys)
        self._entries = Entries(self.caller, self.keys)
        self._flows = FlowReading(self.caller, self.keys, self._hinting)
        self._purging = Purging(self.caller, self.keys, self._hinting)
        self._verifying = Verifying(self.caller, self.keys, self._hinting)
        self._log = Log(self.caller, self.keys)
        self._waking = Waking(self.network, self.keys.shared("wake"), self.hints)

    # -- opening ----------------------------------------------------------------------------

    async def migrate(self) -> PartitionCounts:
        if self._counts is None:
            try:
                self._counts = await self._reach_and_set_up()
            except BaseException:
                await self.close()
                raise
            self._hinting.open(self._counts)
            self._waking.open()
        return self._counts

    async def _reach_and_set_up(self) -> PartitionCounts:
        """All of it can be repeated, so what passes is waited for within the time of a call."""
        patience = Patience(self.address.timeout_seconds)
        while True:
            try:
                await self.network.reach()
                await self._refuse_protocol()
                await self.network.load()
                return await self._set_up()
            except StoreUnavailable as error:
                if not is_passing(error) or not patience.is_left:
                    raise
            await patience.pause()

    async def _set_up(self) -> PartitionCounts:
        wanted = self._wanted or PartitionCounts()
        fields: dict[str, str | int] = {
            "protocol": PROTOCOL,
            "floor": PROTOCOL,
            "flow": wanted.flow,
            "budget": wanted.budget,
            "quota": wanted.quota,
            "incarnation": secrets.token_hex(8),
        }
        cells = [cell for field in fields.items() for cell in field]
        call = function("setup", self.keys.shared("meta"), *self._moment(0).cells, *cells)
        found = record(await self.caller.one(call))
        counts = _checked(found, self._wanted, self.address.prefix)
        await self._upgrade(int(found["protocol"]), counts)
        self._log.open(counts, found["incarnation"])
        return counts

    async def _upgrade(self, made: int, counts: PartitionCounts) -> None:
        """First older programs are kept out, then what is stored is brought up to date, and last
        the store says so: whoever is interrupted begins again."""
        if made < PROTOCOL:
            await self._raise("floor")
            await self.network.forget(range(made, PROTOCOL))
            await self._keeping.forget_hints()
            upgrading = Upgrading(self.caller, self.keys, self._hinting)
            await upgrading.walk(counts, self._moment(0))
            await self._raise("protocol")

    async def _raise(self, field: str) -> None:
        meta = self.keys.shared("meta")
        await self.caller.one(function("raise", meta, field, PROTOCOL))

    async def _refuse_protocol(self) -> None:
        """Before functions are loaded, at the start and when they are gone: another server may be
        in charge, or a newer program at work, and then the server keeps what it has."""
        meta = self.keys.shared("meta")
        found = record(await self.caller.one(command(meta, "HGETALL", meta)))
        if found:
            refuse_protocol(found, self.address.prefix)

    async def close(self) -> None:
        self._counts = None
        self._lanes = set()
        await self._waking.close()
        await self.network.close()

    def _begin_anew(self) -> None:
        """A server was restarted or replaced: what it knew last may be gone."""
        self._lanes = set()
        self._hinting.forget()
        self.hints.publish(Hint(foreign=True))

    def _listen(self) -> None:
        self._waking.listen()

    async def now(self) -> int:
        if self._clock is not None:
            return self._clock.now_ms()
        return time_of(await self.caller.one(command(self.keys.shared("meta"), "TIME")))

    def _moment(self, now_ms: int) -> Moment:
        fixed_ms = None if self._clock is None else self._clock.now_ms()
        return Moment(now_ms, fixed_ms, self.caller_clock)

    def _known_counts(self) -> PartitionCounts:
        if self._counts is None:
            raise StoreUnavailable("the store is not open")
        return self._counts

    async def _refuse_skew(self, now_ms: int) -> None:
        """For a call that has nothing to write, and so no server that would look at its clock."""
        sent_ms = arriving_ms(self.caller_clock, now_ms)
        refuse_difference(await self.now(), sent_ms)

    # -- writing ----------------------------------------------------------------------------

    async def insert(self, batch: Sequence[Submission], now_ms: int) -> list[Inserted]:
        if not batch:
            await self._refuse_skew(now_ms)
            return []
        moment = self._moment(now_ms)
        calls = list(insert_calls(self.keys, batch, moment))
        answers = await self._write([call for _, call in calls])
        inserted: dict[int, Inserted] = {}
        for (part, _), answer in zip(calls, answers, strict=True):
            for position, reply in zip(part.positions, rows_of(answer.value), strict=True):
                inserted[position] = inserted_of(batch[position].execution.id, reply)
        heads = [submission.execution for submission in batch]
        # Also where the id was there: the call that made it may have ended before its lane was.
        lanes = {
            head.lane
            for n, head in enumerate(heads)
            if inserted[n].exists and inserted[n].id == head.id
        }
        await self._ensure_lanes(lanes, moment)
        self._tell(hint_of_inserts(batch))
        return [inserted[position] for position in range(len(batch))]

    async def _ensure_lanes(self, names: set[str], moment: Moment) -> None:
        """Lanes are in a scope of their own, so they come to be after what is in them."""
        fresh = sorted(names - self._lanes)
        if fresh:
            call = function("lane_ensure", self.keys.shared("lanes"), *moment.cells, *fresh)
            answer_of(await self.caller.one(call))
            self._lanes |= names

    async def _write(self, calls: Sequence[Call]) -> list[Answer]:
        """Every call is answered before a clock that was off is told of."""
        self._known_counts()
        replies = await self.caller.all(calls)
        answers = [answer_of(reply) for reply in replies]
        await self._hinting.tell([change for answer in answers for change in answer.changes])
        return answers

    def _tell(self, hint: Hint) -> None:
        self.hints.publish(hint)
        self._waking.say(hint)

    async def claim(self, ask: Claim) -> list[Lease]:
        counts = self._known_counts()
        if not ask.repeated and (ask.limit < 1 or not ask.routes):
            await self._refuse_skew(ask.now_ms)
            return []
        return await self._claiming.claim(ask, self._moment(ask.now_ms), counts)

    async def apply(
        self, transitions: Sequence[Transition], now_ms: int, *, urgent: bool = False
    ) -> list[Applied | Rejected]:
        del urgent
        refuse_doubles([transition.id for transition in transitions])
        if not transitions:
            await self._refuse_skew(now_ms)
            return []
        calls = list(apply_calls(self.keys, transitions, self._moment(now_ms)))
        answers = await self._write([call for _, call in calls])
        refused: dict[int, Execution | None] = {}
        for (part, _), answer in zip(calls, answers, strict=True):
            ids = [transitions[position].id for position in part.positions]
            for place, row in refused_of(ids, answer.value).items():
                refused[part.positions[place]] = row
        self._tell(hint_of(transitions))
        return [
            Rejected(transition.id, refused[position])
            if position in refused
            else Applied(transition.id)
            for position, transition in enumerate(transitions)
        ]

    async def commit(self, changes: Changeset, now_ms: int) -> bool:
        return (await self.commit_each([changes], now_ms))[0]

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        refuse_doubles_in(batch)
        moment = self._moment(now_ms)
        calls = list(commit_calls(self.keys, batch, moment, self._known_counts()))
        if not calls:
            await self._refuse_skew(now_ms)
        # Before what is in them: nobody repeats a commit that was written, as an insert is.
        members = [member for changes in batch for member in changes.members]
        await self._ensure_lanes({member.execution.lane for member in members}, moment)
        answers = [True] * len(batch)
        replies = await self._write([written.call for written in calls])
        for written, reply in zip(calls, replies, strict=True):
            for position, flag in zip(written.positions, flags_of(reply.value), strict=True):
                answers[position] = flag
        done = [changes for changes, is_done in zip(batch, answers, strict=True) if is_done]
        self._tell(hint_of_changes(done))
        return answers

    async def append(self, batch: Sequence[Append], now_ms: int) -> list[Appended | Rejected]:
        refuse_doubles([append.id for append in batch])
        if not batch:
            await self._refuse_skew(now_ms)
            return []
        self._known_counts()
        return await self._entries.append(batch, self._moment(now_ms))

    async def pending(self, turn: Turn) -> list[Pending | Unreadable]:
        counts = self._known_counts()
        if turn.limit < 1:
            await self._refuse_skew(turn.now_ms)
            return []
        return await self._flows.pending(turn, self._moment(turn.now_ms), counts)

    async def purge(self, purge: Purge) -> Purged:
        counts = self._known_counts()
        if not purge.executions and not purge.flows:
            await self._refuse_skew(purge.now_ms)
            return Purged([], {})
        return await self._purging.purge(purge, self._moment(purge.now_ms), counts)

    # -- reading ----------------------------------------------------------------------------

    async def next_turn(self, now_ms: int) -> int | None:
        self._known_counts()
        return await self._flows.next_turn(now_ms)

    async def graph(self, sights: Sequence[Sight]) -> list[View]:
        return await self._flows.graph(sights, self._moment(0), self._known_counts())

    async def find_flows(self, query: FlowQuery) -> list[Flow]:
        return await self._flows.find(query, self._moment(0), self._known_counts())

    async def load(self, want: Want) -> list[Loaded | None]:
        return await self._reading.load(want, self._moment(0))

    async def endings(self, ids: Sequence[ExecutionId]) -> list[Ended | None]:
        self._known_counts()
        return await self._reading.endings(ids)

    async def entries(self, asks: Sequence[Topic]) -> list[list[Kept]]:
        self._known_counts()
        return await self._entries.read(asks, self._moment(0))

    async def due(self, now_ms: int, limit: int, kinds: Sequence[str] = ()) -> DueBatch:
        self._known_counts()
        return await self._timers.due(Ask(now_ms, limit, kinds), self._moment(0))

    async def find(self, query: Query) -> list[Execution]:
        return await self._finding.find(query, self._moment(0), self._known_counts())

    async def count(self, query: Query) -> int:
        return await self._finding.count(query, self._moment(0), self._known_counts())

    async def queues(self, namespace: str, after: str, limit: int, depth: int) -> list[Queue]:
        counts = self._known_counts()
        found = await self._finding.queues(namespace, depth, self._moment(0), counts)
        return [found[route] for route in sorted(found) if route > after][:limit]

    async def tail(self, feed: Feed) -> list[Event]:
        self._known_counts()
        return await self._log.tail(feed)

    async def departing(self, now_ms: int, limit: int) -> Departing:
        return await self._purging.departing(now_ms, limit, self._moment(0), self._known_counts())

    async def lanes(self, after: str, limit: int) -> list[Lane]:
        return await self._reading.lanes(after, limit)

    async def put(
        self, batch: Sequence[Put], now_ms: int, *, passing: bool = False
    ) -> list[PutAnswer]:
        refuse_doubles([str(put.key) for put in batch])
        if not batch:
            await self._refuse_skew(now_ms)
            return []
        answers = await self._documents.put(batch, self._moment(now_ms), self._known_counts())
        self._tell(hint_of_puts(batch, passing=passing))
        return answers

    async def documents(self, query: DocumentQuery) -> list[AnyDocument]:
        return await self._documents.find(query, self._moment(0), self._known_counts())

    async def shifts(self, asks: Sequence[Shift], now_ms: int) -> list[Shift]:
        refuse_doubles([ask.name for ask in asks])
        self._known_counts()
        cells = [cell for ask in asks for cell in (ask.name, ask.owner, ask.until_ms, ask.report)]
        call = function(
            "shift_take", self.keys.shared("duties"), *self._moment(now_ms).cells, *cells
        )
        return shifts_of(answer_of(await self.caller.one(call)).value)

    # -- upkeep -----------------------------------------------------------------------------

    async def unmigrated(self) -> list[str]:
        return await self._keeping.unmigrated()

    async def sizes(self) -> list[Size]:
        return await self._keeping.sizes()

    async def verify(self, cursor: str, limit: int) -> Verified:
        counts = self._known_counts()
        return await self._verifying.verify(cursor, limit, self._moment(0), counts)

    async def inspect(self) -> list[Damage]:
        wrong, cursor = 0, ""
        while True:
            found = await self._verifying.verify(
                cursor, INSPECT_AT_ONCE, self._moment(0), self._known_counts(), only_count=True
            )
            wrong, cursor = wrong + found.repaired, found.cursor
            if not cursor:
                break
        told = f"{wrong} entries differ from their records"
        return [Damage("the indexes", told)] if wrong else []

    async def drop(self) -> None:
        await self._keeping.drop()
        self._counts = None
        self._lanes = set()


def _checked(found: dict[str, str], wanted: PartitionCounts | None, prefix: str) -> PartitionCounts:
    """The counts that the store was set up with, if they and its protocol are what we can serve."""
    refuse_protocol(found, prefix)
    counts = PartitionCounts(*(int(found[name]) for name in ("flow", "budget", "quota")))
    if wanted is not None and wanted != counts:
        raise StoreMismatch(
            f"the store was set up with {counts}, not {wanted}",
            hint="omit the counts, or use another ?prefix=",
        )
    return counts
