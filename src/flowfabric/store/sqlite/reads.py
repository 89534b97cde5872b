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
from flowfabric.store.cursor import unreadable
from flowfabric.store.sqlite.changes import load_heads
from flowfabric.store.sqlite.patience import is_spoilt
from flowfabric.store.sqlite.rows import (
    Cell,
    decode_attempts,
    decode_bodies,
    decode_due,
    decode_ends,
    decode_heads,
    decode_lanes,
    encode,
    ids_json,
    malformed,
)
from flowfabric.store.sqlite.statements import ALL_COLUMNS, one_text, run

# Greater than every id: ids are ASCII.
_AFTER_ALL_IDS = "\x7f"


def load(connection: sqlite3.Connection, want: Want) -> list[Loaded | None]:
    """All at once, or in halves: until it fits, or until the one that cannot be read is named."""
    try:
        if not (want.payload or want.tags or want.attempts):
            return _load(connection, want)
        with _one_look(connection):
            return _load(connection, want)
    except (sqlite3.OperationalError, sqlite3.DataError) as error:
        _require_divisible(want.ids, error)
        middle = len(want.ids) // 2
        halves = (want.ids[:middle], want.ids[middle:])
        parts = [load(connection, msgspec.structs.replace(want, ids=half)) for half in halves]
        return parts[0] + parts[1]


def _require_divisible(ids: Sequence[str], error: sqlite3.Error) -> None:
    """Asking for fewer helps only if the rows are the trouble, and if there are several."""
    if not is_spoilt(error):
        raise error
    if len(ids) < 2:
        raise unreadable(ids[0], str(error)) from error


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
    for id, rev, failures in msgspec.json.decode(outline, type=list[tuple[str, object, object]]):
        try:
            text = one_text(connection, "execution_load", ids_json([id]), columns=ALL_COLUMNS)
        except sqlite3.OperationalError as error:
            if not is_spoilt(error):
                raise
            found[id] = malformed(id, rev, failures, str(error))
        else:
            found[id] = decode_due(text)[0]
    return found


def endings(connection: sqlite3.Connection, ids: Sequence[ExecutionId]) -> list[Ended | None]:
    try:
        found = decode_ends(one_text(connection, "execution_ends", ids_json(ids)))
    except (sqlite3.OperationalError, sqlite3.DataError) as error:
        _require_divisible(ids, error)
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
    wanted = (
        max(lower, query.after or ""),
        upper,
        query.namespace,
        query.lane,
        query.kind,
        encode(query.states).decode() if query.states else None,
        encode(query.tags).decode(),
        query.limit,
    )
    try:
        text = one_text(connection, "execution_find", *wanted, columns=ALL_COLUMNS)
    except (sqlite3.OperationalError, sqlite3.DataError) as error:
        if not is_spoilt(error):
            raise
        return _find_spoilt(connection, wanted)
    return sorted(decode_heads(text), key=lambda head: head.id)


def _find_spoilt(connection: sqlite3.Connection, wanted: Sequence[Cell]) -> list[Execution]:
    """The rows by their ids: as many as fit, or the one that cannot be read is named."""
    text = one_text(connection, "execution_find", *wanted, columns="e.id")
    ids = sorted(id for (id,) in msgspec.json.decode(text, type=list[tuple[ExecutionId]]))
    loaded = load(connection, Want(ids=ids))
    return [found.head for found in loaded if found is not None]


def log(connection: sqlite3.Connection, feed: Feed, after: int) -> str:
    if feed.newest and feed.execution is None:
        return one_text(connection, "log_newest", after)
    if feed.newest:
        return one_text(connection, "log_newest_of", after, feed.execution)
    if feed.execution is None:
        states = encode(feed.states).decode() if feed.states else None
        return one_text(connection, "log_feed", after, feed.limit, states)
    return one_text(connection, "log_history", after, feed.limit, feed.execution)


def lanes(connection: sqlite3.Connection, after: str, limit: int) -> list[Lane]:
    return decode_lanes(one_text(connection, "lane_list", after, limit))
