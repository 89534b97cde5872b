"""Looking for timers: what is due and when the next one will be, past entries that are dead.

Where timers have passed, what is seen from a floor on is all there is, but for timers that were
written as passed already: a hint of one lowers the floor. What will be next is guessed for as long
as looking for it is dear, and no longer: the caller is asked to look again then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowfabric.core.model import DueBatch
from flowfabric.store.damage import document_or_damaged
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.floors import ON_ITS_WAY_MS, TimeFloor
from flowfabric.store.postgres.rows import seen_heads
from flowfabric.store.postgres.statements import Argument, Statements

_NEVER_MS = 2**62

# When the next timer passes, how many entries of the index were read, and when the time of the next
# document comes: then a document, then a head.
_DOCUMENT, _HEAD = 3, 10


class Ask(NamedTuple):
    """What is due then: so many rows, and so many documents of these kinds."""

    now_ms: int
    limit: int
    kinds: Sequence[str]


class TimerFloors(NamedTuple):
    """Before `passed` no timer is left, and none before `coming` is still to pass."""

    passed: TimeFloor
    coming: TimeFloor

    def lower(self, due_ms: int) -> None:
        self.passed.lower(due_ms)
        self.coming.lower(due_ms)

    def walked(self, now_ms: int, first_ms: int | None, next_ms: int | None, entries: int) -> None:
        """After a look over this many entries for nothing that found these."""
        safe_ms = now_ms - ON_ITS_WAY_MS
        at_ms = safe_ms if first_ms is None else min(first_ms, safe_ms)
        if self.passed.of(now_ms) is None:
            self.passed.walked(at_ms, now_ms, entries)
            return
        self.passed.rise(at_ms)
        if self.coming.of(now_ms) is None:
            self.coming.walked(_NEVER_MS if next_ms is None else next_ms, now_ms, entries)


async def due(connection: Connection, sql: Statements, floors: TimerFloors, ask: Ask) -> DueBatch:
    now_ms = ask.now_ms
    coming_ms = floors.coming.of(now_ms)
    arguments: dict[str, Argument] = {
        "now_ms": now_ms,
        "limit": ask.limit,
        "kinds": ask.kinds,
        "since_ms": floors.passed.of(now_ms) or 0,
        "later_ms": now_ms if coming_ms is None else max(now_ms, coming_ms - 1),
    }
    records = await sql.due().fetch(connection, arguments)
    next_ms: int | None = records[0]["next_ms"]
    found = [record for record in records if record["id"] is not None]
    documents = [record for record in records if record["name"] is not None]
    if coming_ms is not None:
        next_ms = min(floors.coming.until_ms, next_ms or _NEVER_MS)
    first_ms = found[0]["due_ms"] if found else None
    floors.walked(now_ms, first_ms, next_ms, _entries(records) - max(len(found), 1))
    later = (at_ms for at_ms in (next_ms, records[0]["next_document_ms"]) if at_ms is not None)
    return DueBatch(
        seen_heads(found, _HEAD),
        min(later, default=None),
        [document_or_damaged(tuple(record)[_DOCUMENT:_HEAD]) for record in documents],
    )


def _entries(records: Sequence[Record]) -> int:
    """How many were read before the last row was made."""
    return max(record["entries"] or 0 for record in records)
