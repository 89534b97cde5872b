"""Records to and from rows.

Reads come back as one JSON text per statement and writes go in as one statement per batch. Both
matter for the same reason: each step of SQLite lets go of Python's lock and must get it back, which
under load costs more than the row itself (see the decision about statement shapes).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import (
    Attempt,
    Execution,
    Lease,
    Malformed,
)
from flowfabric.core.states import State
from flowfabric.store.columns import ATTEMPT_COLUMNS, COLUMNS, INSERT_COLUMNS, MEMBER_COLUMNS
from flowfabric.store.damage import MISSING_PAYLOAD, lease_or_unusable, problem_of, unreadable

Cell = str | int | float | bytes | None
Row = Sequence[Cell] | msgspec.Struct
Rows = list[Sequence[object]]

STATES = msgspec.json.encode(list(State)).decode()

# For None and for a bool, Python looks for an adapter first, which takes ten times as long as the
# cell itself. SQLite takes a float that is not a number for NULL.
NULL = float("nan")
# Anything else that holds bytes would be turned into text.
_BODIES = (bytes, bytearray, memoryview)
SIZES = (1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 70, 100, 140, 200)

head_row: Callable[[Execution], tuple[Cell, ...]] = attrgetter(*INSERT_COLUMNS)
member_row: Callable[[Execution], tuple[Cell, ...]] = attrgetter(*MEMBER_COLUMNS)
attempt_row: Callable[[Attempt], tuple[Cell, ...]] = attrgetter("execution", *ATTEMPT_COLUMNS)

_heads = msgspec.json.Decoder(list[Execution], strict=False)
_claimed = msgspec.json.Decoder(list[tuple[Execution, str | None]], strict=False)
_Bodies = list[tuple[str, str | None]]
_bodies = msgspec.json.Decoder(_Bodies)
_raw = msgspec.json.Decoder(list[Sequence[object]])
_raw_claimed = msgspec.json.Decoder(list[tuple[Sequence[object], str | None]])
encode = msgspec.json.Encoder().encode


def ids_json(ids: Iterable[str | int | tuple[str, str]]) -> str:
    """Ids, or pairs of a flow and a member of it."""
    return encode(list(ids)).decode()


def decode_heads(found: str | Rows) -> list[Execution]:
    """Heads, or `Corrupt` naming the first that cannot be read."""
    heads: list[Execution] = []
    for row in decode_due(found):
        if isinstance(row, Malformed):
            raise unreadable(row.id, row.problem)
        heads.append(row)
    return heads


def decode_due(found: str | Rows) -> list[Execution | Malformed]:
    """Heads; if one of them cannot be read, each by itself, so that it keeps no other back."""
    if isinstance(found, str):
        try:
            return list(_heads.decode(found))
        except msgspec.DecodeError:
            found = _raw.decode(found)
    return [_head_or_malformed(row) for row in found]


def _head_or_malformed(row: Sequence[object]) -> Execution | Malformed:
    try:
        return msgspec.convert(row, Execution, strict=False)
    except msgspec.ValidationError as error:
        cells = dict(zip(COLUMNS, row, strict=True))
        problem = problem_of(error, COLUMNS)
        return malformed(str(cells["id"]), cells["rev"], cells["failures"], problem)


def malformed(id: str, rev: object, failures: object, problem: str) -> Malformed:
    """What can be said of a row that cannot be read, however little of it makes sense."""
    return Malformed(
        ExecutionId(id),
        rev if isinstance(rev, int) else 0,
        failures if isinstance(failures, int) else 0,
        problem,
    )


def decode_leases(text: str) -> list[Lease]:
    """Leases. A row that cannot be read keeps its lease until its timer finds it there."""
    try:
        return [
            Lease(head, bytes.fromhex(body)) if body is not None else _lease(head, body)
            for head, body in _claimed.decode(text)
        ]
    except msgspec.DecodeError:
        rows = [(_head_or_malformed(row), body) for row, body in _raw_claimed.decode(text)]
        return [_lease(row, body) for row, body in rows if isinstance(row, Execution)]


def _lease(head: Execution, body: str | None) -> Lease:
    return lease_or_unusable(head, None if body is None else bytes.fromhex(body))


def decode_bodies(found: str | Rows) -> dict[str, bytes]:
    """Inputs by id, or `Corrupt` naming the first that is missing."""
    told = _bodies.decode(found) if isinstance(found, str) else msgspec.convert(found, _Bodies)
    bodies = dict(told)
    for id, body in bodies.items():
        if body is None:
            raise unreadable(id, MISSING_PAYLOAD)
    return {id: bytes.fromhex(body) for id, body in bodies.items() if body is not None}


def cells(rows: Sequence[Row]) -> list[Cell]:
    """All cells of all rows one after another, as SQLite has them: an enum is its value."""
    plain: list[Sequence[Cell]] = msgspec.to_builtins(rows, builtin_types=_BODIES)
    return [
        NULL if cell is None else 1 if cell is True else 0 if cell is False else cell
        for row in plain
        for cell in row
    ]


@lru_cache(maxsize=1024)
def row_marks(width: int, count: int) -> str:
    row = "(" + ",".join("?" * width) + ")"
    return ",".join([row] * count)


def chunks(rows: Sequence[Row]) -> Iterator[tuple[int, list[Cell]]]:
    """How many rows, and their cells: few sizes, so that few statements are ever prepared.

    Rows of NULL fill a chunk up. No statement writes such a row: it has no id.
    """
    for start in range(0, len(rows), SIZES[-1]):
        chunk = rows[start : start + SIZES[-1]]
        size = SIZES[bisect_left(SIZES, len(chunk))]
        found = cells(chunk)
        width = len(found) // len(chunk)
        yield size, found + [NULL] * (width * (size - len(chunk)))
