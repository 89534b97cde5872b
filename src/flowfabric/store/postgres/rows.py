"""Records to and from rows.

Writes go in as one array per column; heads come back as binary rows whose columns stand in the
order of the record, converted in one call. A row that cannot be converted spoils no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from operator import attrgetter

import msgspec

from flowfabric.core.entries import Entry
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Attempt, Ended, Execution, Lane, Lease, Malformed
from flowfabric.core.states import State
from flowfabric.store.columns import ATTEMPT_COLUMNS, COLUMNS, INSERT_COLUMNS
from flowfabric.store.damage import ended, in_column, lane_or_shut, problem_of, unreadable
from flowfabric.store.postgres.driver import Record

Cell = str | int | bool | bytes | None
Row = tuple[Cell, ...]

_BOOLEANS = frozenset({"paused", "deps_open"})
_NUMBERS = frozenset(
    {
        "rev",
        "priority",
        "epoch",
        "attempt",
        "next_attempt",
        "retry_count",
        "reclaim_count",
        "replay_count",
        "generation",
        "failures",
        "progress_pct",
    }
)

WIDTH = len(COLUMNS)
_ID, _REV, _FAILURES = (COLUMNS.index(name) for name in ("id", "rev", "failures"))
_STATES = {state.value: state for state in State}
_head = msgspec.json.Decoder(Execution)
_tags = msgspec.json.Decoder(dict[str, str])
encode = msgspec.json.Encoder().encode

insert_cells = attrgetter(
    *(f"{name}._value_" if name in ("state", "reason") else name for name in INSERT_COLUMNS)
)
attempt_cells = attrgetter(
    *(f"{name}._value_" if name in ("kind", "lifecycle") else name for name in ATTEMPT_COLUMNS)
)


def sql_type(column: str) -> str:
    """What a column is declared as; the migration says the same."""
    if column in _BOOLEANS:
        return "boolean"
    if column == "result":
        return "bytea"
    return "bigint" if column in _NUMBERS or column.endswith("_ms") else "text"


def cell(value: Cell) -> Cell:
    """The bare value of an enum: the driver takes nothing else for a text."""
    return value._value_ if isinstance(value, StrEnum) else value


def columns_of(rows: Iterable[Row], width: int) -> list[Sequence[Cell]]:
    """One sequence per column."""
    turned: list[Sequence[Cell]] = list(zip(*rows, strict=True))
    return turned or [()] * width


def heads_of(records: Iterable[Record], start: int = 0) -> list[Execution]:
    """Heads from the columns after `start`, or `Corrupt` naming the first that cannot be read."""
    rows = [tuple(record)[start : start + WIDTH] for record in records]
    try:
        return msgspec.convert(rows, list[Execution])
    except msgspec.ValidationError:
        bad = next(row for row in map(head_or_malformed, rows) if isinstance(row, Malformed))
        raise unreadable(bad.id, bad.problem) from None


def seen_heads(records: Iterable[Record], start: int = 0) -> list[Execution | Malformed]:
    """Heads; if one of them cannot be read, each by itself, so that it keeps no other back."""
    rows = [tuple(record)[start : start + WIDTH] for record in records]
    try:
        return list(msgspec.convert(rows, list[Execution]))
    except msgspec.ValidationError:
        return [head_or_malformed(row) for row in rows]


def head_or_malformed(row: Row) -> Execution | Malformed:
    try:
        return msgspec.convert(row, Execution)
    except msgspec.ValidationError as error:
        rev, failures = row[_REV], row[_FAILURES]
        return Malformed(
            ExecutionId(str(row[_ID])),
            rev if isinstance(rev, int) else 0,
            failures if isinstance(failures, int) else 0,
            problem_of(error, COLUMNS),
        )


def head_of_json(text: str) -> Execution | None:
    """One head from an array of its columns; None if it cannot be read."""
    try:
        return _head.decode(text)
    except msgspec.ValidationError:
        return None


def leases_of(records: Sequence[Record], start: int) -> list[Lease]:
    """Leases: the input is the column before the head. One that cannot be read keeps its lease
    until its timer finds it there."""
    heads = seen_heads(records, start)
    return [
        Lease(head, record[start - 1])
        for head, record in zip(heads, records, strict=True)
        if isinstance(head, Execution)
    ]


def ended_of(record: Record) -> Ended:
    id, state, detail, category, result = record
    known = _STATES.get(state)
    if known is None:
        raise unreadable(id, in_column("state", f"Invalid enum value {state!r}"))
    return ended(id, known, (detail, category), result)


def attempt_of(id: ExecutionId, cells: Sequence[Cell]) -> Attempt:
    named = dict(zip(ATTEMPT_COLUMNS, cells, strict=True))
    try:
        return msgspec.convert({**named, "execution": id}, Attempt)
    except msgspec.ValidationError as error:
        raise unreadable(id, f"attempt {cells[0]!r}: {problem_of(error)}") from None


def tags_of(text: str | None) -> dict[str, str]:
    return dict(sorted(_tags.decode(text).items())) if text else {}


def entries_text(entries: Sequence[Entry]) -> str | None:
    """What a transition carries, as one text; nothing for nothing."""
    if not entries:
        return None
    rows = [
        {"topic": each.topic, "key": each.key, "place": each.n, "body": each.body.hex()}
        for each in entries
    ]
    return encode(rows).decode()


def lane_of(record: Record) -> Lane:
    return lane_or_shut(*record)
