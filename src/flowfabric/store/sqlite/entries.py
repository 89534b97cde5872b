"""Entries: appended inside the writer's transaction under the lease of their execution, and read.

Usually every lease is good and every key new; then one statement for each chunk is all. Only if
fewer were written than were given, it is looked which, and what is there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.core.entries import Append, Appended, Kept, Topic
from flowfabric.core.model import Execution
from flowfabric.core.transition import Rejected, Transition, guard_holds
from flowfabric.store.damage import kept_or_damaged
from flowfabric.store.sqlite.reads import current_rows, one_look
from flowfabric.store.sqlite.rows import Rows, encode
from flowfabric.store.sqlite.spoilt import text_or_rows
from flowfabric.store.sqlite.statements import Part, Statement, many, run_part

_raw = msgspec.json.Decoder(list[Sequence[object]])


def append_part(batch: Iterable[Append]) -> Part:
    """All that is written if every lease is good and every key new."""
    rows = [
        (append.id, *append.guard.compared, each.topic, each.key, each.n, each.body)
        for append in batch
        for each in append.entries
    ]
    return Part(many("entry_append", rows, is_timed=True), len(rows))


def insert_statements(transitions: Iterable[Transition]) -> list[Statement]:
    """What transitions carry, written after them."""
    rows = [
        (transition.id, each.topic, each.key, each.n, each.body)
        for transition in transitions
        for each in transition.entries
    ]
    return many("entry_insert", rows)


def append(
    connection: sqlite3.Connection, batch: Sequence[Append], ready: Part, store_now_ms: int
) -> list[Appended | Rejected]:
    connection.execute("SAVEPOINT entries")
    is_good = run_part(connection, ready, store_now_ms) == ready.changes
    if not is_good:
        connection.execute("ROLLBACK TO entries")
    connection.execute("RELEASE entries")
    if is_good:
        return [Appended(each.id) for each in batch]
    return _judged(connection, batch, store_now_ms)


def _judged(
    connection: sqlite3.Connection, batch: Sequence[Append], store_now_ms: int
) -> list[Appended | Rejected]:
    rows = current_rows(connection, [each.id for each in batch])
    current = {id: row for id, row in rows.items() if isinstance(row, Execution)}
    good = {
        each.id: each
        for each in batch
        if each.id in current and guard_holds(each.guard, current[each.id], store_now_ms)
    }
    there = _there(connection, good.values())
    run_part(connection, append_part(good.values()), store_now_ms)
    return [
        Appended(each.id, _known(each, there))
        if each.id in good
        else Rejected(each.id, current.get(each.id))
        for each in batch
    ]


def _known(append: Append, there: dict[tuple[str, str, str], Kept]) -> tuple[Kept, ...]:
    places = ((append.id, each.topic, each.key) for each in append.entries)
    return tuple(there[place] for place in places if place in there)


def _there(
    connection: sqlite3.Connection, batch: Iterable[Append]
) -> dict[tuple[str, str, str], Kept]:
    asked = [(append.id, each.topic, each.key) for append in batch for each in append.entries]
    found = text_or_rows(connection, "entry_there", encode(asked).decode())
    rows = _raw.decode(found) if isinstance(found, str) else found
    kept = [(str(id), _kept(cells)) for id, *cells in rows]
    return {(id, each.topic, each.key): each for id, each in kept}


def read(connection: sqlite3.Connection, asks: Sequence[Topic]) -> list[list[Kept]]:
    with one_look(connection):
        return [_read(connection, ask) for ask in asks]


def _read(connection: sqlite3.Connection, ask: Topic) -> list[Kept]:
    wanted = (ask.id, ask.topic, ask.after, ask.limit, ask.generation)
    found: str | Rows = text_or_rows(connection, "entry_read", *wanted)
    rows = _raw.decode(found) if isinstance(found, str) else found
    return [_kept(cells) for cells in rows]


def _kept(cells: Sequence[object]) -> Kept:
    topic, key, body, *numbers = cells
    return kept_or_damaged(
        (topic, key, bytes.fromhex(body) if isinstance(body, str) else body, *numbers)
    )
