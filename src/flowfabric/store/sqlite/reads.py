"""Statements of the reading verbs: each answers one JSON text, decoded in one go."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import (
    DueBatch,
    Ended,
    Execution,
    Feed,
    Lane,
    Loaded,
    Malformed,
    Query,
    Want,
)
from flowfabric.store.sqlite.changes import load_heads
from flowfabric.store.sqlite.patience import is_spoilt
from flowfabric.store.sqlite.rows import (
    decode_attempts,
    decode_bodies,
    decode_due,
    decode_ends,
    decode_heads,
    decode_lanes,
    encode,
    ids_json,
)
from flowfabric.store.sqlite.statements import ALL_COLUMNS, one_text, run

# Greater than every id: ids are ASCII.
_AFTER_ALL_IDS = "\x7f"


def load(connection: sqlite3.Connection, want: Want) -> list[Loaded | None]:
    if not (want.payload or want.tags or want.attempts):
        return _load(connection, want)
    try:
        with _one_look(connection):
            return _load(connection, want)
    except sqlite3.DataError:
        # More than fits into one text.
        if len(want.ids) < 2:
            raise
        middle = len(want.ids) // 2
        halves = (want.ids[:middle], want.ids[middle:])
        parts = [load(connection, msgspec.structs.replace(want, ids=half)) for half in halves]
        return parts[0] + parts[1]


@contextmanager
def _one_look(connection: sqlite3.Connection) -> Iterator[None]:
    """Several statements that see the same moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _load(connection: sqlite3.Connection, want: Want) -> list[Loaded | None]:
    ids = ids_json(want.ids)
    heads = load_heads(connection, want.ids)
    payloads = decode_bodies(one_text(connection, "payload_load", ids)) if want.payload else {}
    tags = _tags(connection, ids) if want.tags else {}
    attempts = decode_attempts(one_text(connection, "attempt_load", ids)) if want.attempts else {}
    return [
        Loaded(
            heads[id],
            payload=payloads.get(id, b""),
            tags=dict(sorted(tags.get(id, {}).items())),
            attempts=tuple(sorted(attempts.get(id, ()), key=lambda attempt: attempt.attempt)),
        )
        if id in heads
        else None
        for id in want.ids
    ]


def _tags(connection: sqlite3.Connection, ids: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    rows = msgspec.json.decode(
        one_text(connection, "tag_load", ids), type=list[tuple[str, str, str]]
    )
    for id, key, value in rows:
        found.setdefault(id, {})[key] = value
    return found


def current_rows(
    connection: sqlite3.Connection, ids: Iterable[str]
) -> dict[str, Execution | Malformed]:
    """Rows by id, with as much as can be said of those that cannot be read."""
    wanted = list(ids)
    try:
        text = one_text(connection, "execution_load", ids_json(wanted), columns=ALL_COLUMNS)
    except sqlite3.OperationalError as error:
        if not is_spoilt(error):
            raise
        return _one_by_one(connection, wanted)
    return {row.id: row for row in decode_due(text)}


def _one_by_one(
    connection: sqlite3.Connection, ids: Sequence[str]
) -> dict[str, Execution | Malformed]:
    """One of them spoils the statement for all, so each gets its own."""
    outline = one_text(connection, "execution_outline", ids_json(ids))
    found: dict[str, Execution | Malformed] = {}
    for id, rev, failures in msgspec.json.decode(outline, type=list[tuple[ExecutionId, int, int]]):
        try:
            text = one_text(connection, "execution_load", ids_json([id]), columns=ALL_COLUMNS)
        except sqlite3.OperationalError as error:
            if not is_spoilt(error):
                raise
            found[id] = Malformed(id, rev, failures, str(error))
        else:
            found[id] = decode_due(text)[0]
    return found


def endings(connection: sqlite3.Connection, ids: Sequence[ExecutionId]) -> list[Ended | None]:
    try:
        found = decode_ends(one_text(connection, "execution_ends", ids_json(ids)))
    except sqlite3.DataError:
        # More than fits into one text.
        if len(ids) < 2:
            raise
        middle = len(ids) // 2
        return endings(connection, ids[:middle]) + endings(connection, ids[middle:])
    return [found.get(id) for id in ids]


def due(connection: sqlite3.Connection, now_ms: int, limit: int) -> DueBatch:
    upcoming = run(connection, "execution_next_due", now_ms).fetchone()[0]
    try:
        text = one_text(connection, "execution_due", now_ms, limit, columns=ALL_COLUMNS)
    except sqlite3.OperationalError as error:
        if not is_spoilt(error):
            raise
        text = one_text(connection, "execution_due_ids", now_ms, limit)
        ids = msgspec.json.decode(text, type=list[str])
        rows = _one_by_one(connection, ids)
        return DueBatch([rows[id] for id in ids if id in rows], upcoming)
    return DueBatch(decode_due(text), upcoming)


def find(connection: sqlite3.Connection, query: Query) -> list[Execution]:
    lower, upper = "", _AFTER_ALL_IDS
    if query.partition is not None:
        lower = f"{{fp:{query.partition}}}:"
        upper = lower + _AFTER_ALL_IDS
    text = one_text(
        connection,
        "execution_find",
        max(lower, query.after or ""),
        upper,
        query.namespace,
        query.lane,
        query.kind,
        encode(query.states).decode() if query.states else None,
        encode(query.tags).decode(),
        query.limit,
        columns=ALL_COLUMNS,
    )
    return sorted(decode_heads(text), key=lambda head: head.id)


def log(connection: sqlite3.Connection, feed: Feed, after: int) -> str:
    if feed.newest:
        return one_text(connection, "log_newest", after, feed.execution)
    if feed.execution is None:
        states = encode(feed.states).decode() if feed.states else None
        return one_text(connection, "log_feed", after, feed.limit, states)
    return one_text(connection, "log_history", after, feed.limit, feed.execution)


def lanes(connection: sqlite3.Connection, after: str, limit: int) -> list[Lane]:
    return decode_lanes(one_text(connection, "lane_list", after, limit))
