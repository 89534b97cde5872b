"""Statements of the reading verbs: each answers one JSON text, decoded in one go."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import (
    DueBatch,
    Ended,
    Execution,
    Feed,
    Lane,
    Loaded,
    Malformed,
    Want,
)
from flowfabric.store.sqlite import documents
from flowfabric.store.sqlite.beside_rows import (
    decode_attempts,
    decode_ends,
    decode_lanes,
    decode_tags,
)
from flowfabric.store.sqlite.changes import load_heads
from flowfabric.store.sqlite.rows import (
    STATES,
    Rows,
    decode_bodies,
    decode_due,
    encode,
    ids_json,
)
from flowfabric.store.sqlite.spoilt import text_or_rows
from flowfabric.store.sqlite.statements import ALL_COLUMNS, run


def load(connection: sqlite3.Connection, want: Want) -> list[Loaded | None]:
    if not (want.payload or want.tags or want.attempts):
        return _load(connection, want)
    with one_look(connection):
        return _load(connection, want)


@contextmanager
def one_look(connection: sqlite3.Connection) -> Iterator[None]:
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
    payloads = decode_bodies(text_or_rows(connection, "payload_load", ids)) if want.payload else {}
    tags = _tags(connection, ids) if want.tags else {}
    attempts = (
        decode_attempts(text_or_rows(connection, "attempt_load", ids)) if want.attempts else {}
    )
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
    for id, key, value in decode_tags(text_or_rows(connection, "tag_load", ids)):
        found.setdefault(id, {})[key] = value
    return found


def current_rows(
    connection: sqlite3.Connection, ids: Iterable[str]
) -> dict[str, Execution | Malformed]:
    """Rows by id, with as much as can be said of those that cannot be read."""
    found = text_or_rows(connection, "execution_load", ids_json(ids), columns=ALL_COLUMNS)
    return {row.id: row for row in decode_due(found)}


def endings(connection: sqlite3.Connection, ids: Sequence[ExecutionId]) -> list[Ended | None]:
    found = decode_ends(text_or_rows(connection, "execution_ends", ids_json(ids)))
    return [found.get(id) for id in ids]


def due(connection: sqlite3.Connection, now_ms: int, limit: int, kinds: Sequence[str]) -> DueBatch:
    with one_look(connection):
        upcoming: int | None = run(connection, "execution_next_due", now_ms).fetchone()[0]
        found = text_or_rows(connection, "execution_due", now_ms, limit, columns=ALL_COLUMNS)
        passed, later = documents.due(connection, now_ms, limit, kinds)
    soonest = min((at for at in (upcoming, later) if at is not None), default=None)
    return DueBatch(decode_due(found), soonest, passed)


def log(connection: sqlite3.Connection, feed: Feed, after: int) -> str | Rows:
    if feed.newest and feed.execution is None:
        return text_or_rows(connection, "log_newest", after)
    if feed.newest:
        return text_or_rows(connection, "log_newest_of", after, feed.execution)
    if feed.execution is None:
        states = encode(feed.states).decode() if feed.states else None
        return text_or_rows(connection, "log_feed", after, feed.limit, states, STATES)
    return text_or_rows(connection, "log_history", after, feed.limit, feed.execution)


def lanes(connection: sqlite3.Connection, after: str, limit: int) -> list[Lane]:
    return decode_lanes(text_or_rows(connection, "lane_list", after, limit))
