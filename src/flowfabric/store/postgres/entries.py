"""Entries: appended by one statement under the leases of their executions, and read by one.

Only if fewer were written than were given a second one reads what is there. Entries never change,
so that it does not matter when it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from flowfabric.core.entries import Append, Appended, Entry, Kept, Topic
from flowfabric.core.ids import ExecutionId
from flowfabric.core.transition import Rejected
from flowfabric.store.damage import kept_or_damaged
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.rows import columns_of, head_of_json
from flowfabric.store.postgres.statements import APPEND, Argument, Statements


class _Missed(NamedTuple):
    """What was not written because it is there: of which row and generation."""

    n: int
    generation: int
    entry: Entry

    @property
    def place(self) -> tuple[int, str, str]:
        return self.n, self.entry.topic, self.entry.key


async def append(
    connection: Connection, call: Call, batch: Sequence[Append]
) -> list[Appended | Rejected]:
    entries = [each for append in batch for each in append.entries]
    arguments: dict[str, Argument] = {
        **call.arguments,
        **_asked(batch),
        "topic": [each.topic for each in entries],
        "key": [each.key for each in entries],
        "place": [each.n for each in entries],
        "body": [each.body for each in entries],
        "total": len(entries),
    }
    records = answered(await call.sql.append().fetch(connection, arguments), call)
    if not records[0]["are_fewer"]:
        return [Appended(each.id) for each in batch]
    found = {record["id"]: record for record in records if record["id"] is not None}
    missed = {
        append.id: _missed(append, found[append.id])
        for append in batch
        if append.id in found and found[append.id]["refused"] is None
    }
    there = await _there(connection, call, [each for some in missed.values() for each in some])
    return [_answer(append, found.get(append.id), missed, there) for append in batch]


def _asked(batch: Sequence[Append]) -> dict[str, Argument]:
    lasts = list(accumulate(len(append.entries) for append in batch))
    rows = [
        (append.id, *append.guard.compared, last - len(append.entries) + 1, last)
        for append, last in zip(batch, lasts, strict=True)
    ]
    return dict(zip(APPEND, columns_of(rows, len(APPEND)), strict=True))


def _missed(append: Append, record: Record) -> list[_Missed]:
    # A topic has no space in it.
    written = {tuple(name.split(" ", 1)) for name in record["written"]}
    return [
        _Missed(record["n"], record["generation"], each)
        for each in append.entries
        if (each.topic, each.key) not in written
    ]


def _answer(
    append: Append,
    record: Record | None,
    missed: dict[ExecutionId, list[_Missed]],
    there: dict[tuple[int, str, str], Kept],
) -> Appended | Rejected:
    if record is None:
        return Rejected(append.id, None)
    if append.id not in missed:
        return Rejected(append.id, head_of_json(record["refused"]))
    known = (there.get(each.place) for each in missed[append.id])
    return Appended(append.id, tuple(each for each in known if each is not None))


async def _there(
    connection: Connection, call: Call, missed: Sequence[_Missed]
) -> dict[tuple[int, str, str], Kept]:
    if not missed:
        return {}
    arguments: dict[str, Argument] = {
        "numbers": [each.n for each in missed],
        "generations": [each.generation for each in missed],
        "topics": [each.entry.topic for each in missed],
        "keys": [each.entry.key for each in missed],
    }
    records = await call.sql.named("entry_there").fetch(connection, arguments)
    return {(n, cells[0], cells[1]): kept_or_damaged(cells) for n, *cells in records}


async def read(connection: Connection, sql: Statements, asks: Sequence[Topic]) -> list[list[Kept]]:
    arguments: dict[str, Argument] = {
        "ids": [ask.id for ask in asks],
        "topics": [ask.topic for ask in asks],
        "afters": [ask.after for ask in asks],
        "limits": [ask.limit for ask in asks],
        "generations": [ask.generation for ask in asks],
    }
    found: list[list[Kept]] = [[] for _ in asks]
    for which, *cells in await sql.named("entry_read").fetch(connection, arguments):
        found[which - 1].append(kept_or_damaged(cells))
    return found
