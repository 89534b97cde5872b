"""What is beside the heads, from rows: ends, attempts, tags, lanes, lines of the log.

A row that cannot be read is `Corrupt` where one record was asked for, and keeps no other back where
many are followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Attempt, Ended, Event, Lane
from flowfabric.core.states import AttemptKind, AttemptLifecycle, State
from flowfabric.store.columns import ATTEMPT_COLUMNS
from flowfabric.store.cursor import cursor_text
from flowfabric.store.damage import ended, event_of, lane_or_shut, problem_of, unreadable
from flowfabric.store.sqlite.rows import Rows

T = TypeVar("T")

_End = tuple[str, State, str, str, str | None]
_END_COLUMNS = ("id", "state", "outcome_detail", "outcome_category", "result")
_ends = msgspec.json.Decoder(list[_End])
_Tag = tuple[str, str, str]
_TAG_COLUMNS = ("id", "tag.key", "tag.value")
_tags = msgspec.json.Decoder(list[_Tag])
_raw = msgspec.json.Decoder(list[Sequence[object]])
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
    str | None,
]
_KEPT_COLUMNS = ("id", *ATTEMPT_COLUMNS)
_attempts = msgspec.json.Decoder(list[_AttemptRow])


def decode_ends(found: str | Rows) -> dict[str, Ended]:
    rows = _decoded(found, _ends, _End, _END_COLUMNS)
    return {
        id: Ended(ExecutionId(id), state, detail, category, bytes.fromhex(body))
        if body is not None
        else ended(ExecutionId(id), state, (detail, category), None)
        for id, state, detail, category, body in rows
    }


def _bytes(body: str | None) -> bytes | None:
    return None if body is None else bytes.fromhex(body)


def decode_tags(found: str | Rows) -> list[_Tag]:
    return _decoded(found, _tags, _Tag, _TAG_COLUMNS)


def decode_attempts(found: str | Rows) -> dict[str, list[Attempt]]:
    attempts: dict[str, list[Attempt]] = {}
    for row in _decoded(found, _attempts, _AttemptRow, _KEPT_COLUMNS):
        id, number, kind, lifecycle, worker, epoch, started_ms, ended_ms, detail, category, body = (
            row
        )
        attempt = Attempt(
            execution=ExecutionId(id),
            attempt=number,
            kind=kind,
            lifecycle=lifecycle,
            worker=worker,
            epoch=epoch,
            started_ms=started_ms,
            ended_ms=ended_ms,
            detail=detail,
            category=category,
            result=_bytes(body),
        )
        attempts.setdefault(id, []).append(attempt)
    return attempts


def _decoded(
    found: str | Rows, decoder: msgspec.json.Decoder[list[T]], kind: object, columns: Sequence[str]
) -> list[T]:
    """Rows that begin with the id of an execution, or `Corrupt` for the first that is not right."""
    if isinstance(found, str):
        try:
            return decoder.decode(found)
        except msgspec.DecodeError:
            found = _raw.decode(found)
    rows: list[T] = []
    for row in found:
        try:
            rows.append(msgspec.convert(row, cast("type[T]", kind)))
        except msgspec.ValidationError as error:
            which = f"attempt {row[1]}: " if columns is _KEPT_COLUMNS else ""
            raise unreadable(str(row[0]), which + problem_of(error, columns)) from None
    return rows


def decode_lanes(found: str | Rows) -> list[Lane]:
    rows = _raw.decode(found) if isinstance(found, str) else found
    return [lane_or_shut(str(name), state, rev) for name, state, rev in rows]


def decode_events(found: str | Rows, incarnation: str) -> list[Event]:
    rows = _raw.decode(found) if isinstance(found, str) else found
    return [
        event_of(cursor_text(incarnation, int(str(seq))), str(id), cells)
        for seq, id, *cells in rows
    ]
