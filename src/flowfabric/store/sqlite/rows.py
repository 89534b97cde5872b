"""Records to and from rows.

Reads come back as one JSON text per statement and writes go in as one statement per batch. Both
matter for the same reason: each step of SQLite lets go of Python's lock and must get it back, which
under load costs more than the row itself (see the decision about statement shapes).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import (
    Attempt,
    Ended,
    Event,
    Execution,
    Lane,
    Lease,
    Malformed,
    Value,
)
from flowfabric.core.states import AttemptKind, AttemptLifecycle, LaneState, State
from flowfabric.store.columns import ATTEMPT_COLUMNS, COLUMNS, INSERT_COLUMNS, MEMBER_COLUMNS
from flowfabric.store.cursor import cursor_text, unreadable

logger = logging.getLogger("flowfabric.store")

Cell = str | int | float | bytes | None
Row = Sequence[Cell] | msgspec.Struct

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
_claimed = msgspec.json.Decoder(list[tuple[Execution, str]], strict=False)
_bodies = msgspec.json.Decoder(list[tuple[str, str]])
_End = tuple[str, State, str, str, str | None]
_STATES = {state.value: state for state in State}
_ends = msgspec.json.Decoder(list[_End])
_lanes = msgspec.json.Decoder(list[Lane], strict=False)
_loose_lanes = msgspec.json.Decoder(list[tuple[str, object, object]])
_raw = msgspec.json.Decoder(list[list[Value | float]])
_raw_claimed = msgspec.json.Decoder(list[tuple[list[Value | float], str]])
# Every cell was read as what it is declared to be.
_attempt: Callable[..., Attempt] = Attempt
_AttemptRow = tuple[
    str,
    int,
    AttemptKind,
    AttemptLifecycle,
    str,
    int,
    int | None,
    int | None,
    str,
    str,
    str,
    int,
]
_attempts = msgspec.json.Decoder(list[_AttemptRow])
_Line = tuple[int, str, int, str, State, int, int, str]
_events = msgspec.json.Decoder(list[_Line])
_loose_events = msgspec.json.Decoder(list[tuple[int, str, int, str, str, int, int, str]])
_detail = msgspec.json.Decoder(dict[str, Value])
encode = msgspec.json.Encoder().encode


def ids_json(ids: Iterable[str | int | tuple[str, str]]) -> str:
    """Ids, or pairs of a flow and a member of it."""
    return encode(list(ids)).decode()


def decode_heads(text: str) -> list[Execution]:
    """Heads, or `Corrupt` naming the first that cannot be read."""
    try:
        return _heads.decode(text)
    except msgspec.DecodeError:
        bad = next(row for row in decode_due(text) if isinstance(row, Malformed))
        raise unreadable(bad.id, bad.problem) from None


def decode_due(text: str) -> list[Execution | Malformed]:
    """Heads; if one of them cannot be read, each by itself, so that it keeps no other back."""
    try:
        return list(_heads.decode(text))
    except msgspec.DecodeError:
        return [_head_or_malformed(row) for row in _raw.decode(text)]


def _head_or_malformed(row: list[Value | float]) -> Execution | Malformed:
    try:
        return msgspec.convert(row, Execution, strict=False)
    except msgspec.ValidationError as error:
        cells = dict(zip(COLUMNS, row, strict=True))
        return malformed(str(cells["id"]), cells["rev"], cells["failures"], str(error))


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
        return [Lease(head, bytes.fromhex(body)) for head, body in _claimed.decode(text)]
    except msgspec.DecodeError:
        rows = [(_head_or_malformed(row), body) for row, body in _raw_claimed.decode(text)]
        return [Lease(r, bytes.fromhex(body)) for r, body in rows if isinstance(r, Execution)]


def decode_bodies(text: str) -> dict[str, bytes]:
    return {id: bytes.fromhex(body) for id, body in _bodies.decode(text)}


def decode_ends(text: str) -> dict[str, Ended]:
    return {
        id: Ended(ExecutionId(id), state, detail, category, bytes.fromhex(body or ""))
        for id, state, detail, category, body in _decoded_ends(text)
    }


def _decoded_ends(text: str) -> list[_End]:
    try:
        return _ends.decode(text)
    except msgspec.DecodeError as error:
        bad = next(row for row in _raw.decode(text) if row[1] not in _STATES)
        raise unreadable(str(bad[0]), str(error)) from None


def decode_attempts(text: str) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = {}
    for id, *cells, body, is_empty in _decoded_attempts(text):
        result = None if is_empty else bytes.fromhex(body)
        named = dict(zip(ATTEMPT_COLUMNS, [*cells, result], strict=True))
        attempt = _attempt(execution=ExecutionId(id), **named)
        found.setdefault(id, []).append(attempt)
    return found


def _decoded_attempts(text: str) -> list[_AttemptRow]:
    try:
        return _attempts.decode(text)
    except msgspec.DecodeError as error:
        bad = next(row for row in _raw.decode(text) if not _is_attempt(row))
        raise unreadable(str(bad[0]), f"attempt {bad[1]}: {error}") from None


def _is_attempt(row: list[Value | float]) -> bool:
    try:
        msgspec.convert(row, _AttemptRow)
    except msgspec.ValidationError:
        return False
    return True


def decode_lanes(text: str) -> list[Lane]:
    """Lanes. One in a state that cannot be read takes and hands out nothing, and stops no other."""
    try:
        return _lanes.decode(text)
    except msgspec.DecodeError:
        return [_lane_or_shut(*row) for row in _loose_lanes.decode(text)]


def _lane_or_shut(name: str, state: object, rev: object) -> Lane:
    try:
        return msgspec.convert([name, state, rev], Lane, strict=False)
    except msgspec.ValidationError as error:
        logger.error("lane %s cannot be read", name, extra={"lane": name, "problem": str(error)})
        return Lane(name, LaneState.DISABLED, rev if isinstance(rev, int) else 0)


def decode_events(text: str, incarnation: str) -> list[Event]:
    return [
        Event(
            cursor=cursor_text(incarnation, seq),
            execution=ExecutionId(id),
            at_ms=at_ms,
            kind=kind,
            state=state,
            attempt=attempt,
            epoch=epoch,
            detail=_decoded_detail(detail),
        )
        for seq, id, at_ms, kind, state, attempt, epoch, detail in _decoded_lines(text)
    ]


def _decoded_detail(text: str) -> dict[str, Value]:
    """Its fields, or the text itself: a line must not keep its followers from those behind it."""
    try:
        return _detail.decode(text)
    except msgspec.DecodeError:
        return {"unreadable": text}


def _decoded_lines(text: str) -> list[_Line]:
    """Lines. One of a row whose state cannot be read is told as of a row that is being held."""
    try:
        return _events.decode(text)
    except msgspec.DecodeError:
        loose = _loose_events.decode(text)
        return [(*line[:4], _STATES.get(line[4], State.ACTIVE), *line[5:]) for line in loose]


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
