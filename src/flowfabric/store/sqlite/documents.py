"""Documents: guards are compared inside the writer's transaction, then all is written at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from flowfabric.core.documents import (
    NOT_THERE,
    AnyDocument,
    DocumentQuery,
    Put,
    PutAnswer,
    PutDone,
    PutRefused,
    rev_after,
)
from flowfabric.store.damage import damaged_document, document_or_damaged, in_column
from flowfabric.store.sqlite.rows import Rows, encode
from flowfabric.store.sqlite.spoilt import text_or_rows
from flowfabric.store.sqlite.statements import Part, many, one_text, run, run_part

Key = tuple[str, str, str]

_revs = msgspec.json.Decoder(list[tuple[str, str, str, int, str]])
_raw = msgspec.json.Decoder(list[list[object]])
_words = msgspec.json.Decoder(tuple[str, ...])


def put(connection: sqlite3.Connection, batch: Sequence[Put], now_ms: int) -> list[PutAnswer]:
    names = _names([put.key for put in batch])
    there = {
        (kind, namespace, name): (rev, words)
        for kind, namespace, name, rev, words in _revs.decode(
            one_text(connection, "document_revs", names)
        )
    }
    good = [each for each in batch if each.rev == there.get(each.key, (NOT_THERE, ""))[0]]
    changed = [each for each in good if _words_text(each) != there.get(each.key, (0, "[]"))[1]]
    _write(connection, good, now_ms)
    _write_words(connection, changed)
    refused = _load(connection, [each.key for each in batch if each not in good])
    return [
        PutDone(rev_after(each, now_ms)) if each in good else PutRefused(refused.get(each.key))
        for each in batch
    ]


def _write(connection: sqlite3.Connection, good: Sequence[Put], now_ms: int) -> None:
    rows = [
        (*put.key, rev_after(put, now_ms), put.due_ms, _words_text(put), put.body)
        for put in good
        if put.body is not None
    ]
    gone = [put.key for put in good if put.body is None]
    run_part(connection, Part([*many("document_put", rows), *many("document_delete", gone)]))


def _write_words(connection: sqlite3.Connection, changed: Sequence[Put]) -> None:
    rows = [(*put.key, word) for put in changed for word in put.words]
    removed = many("document_word_delete", [put.key for put in changed])
    run_part(connection, Part([*removed, *many("document_word_insert", rows)]))


def _load(connection: sqlite3.Connection, keys: Sequence[Key]) -> dict[Key, AnyDocument]:
    if not keys:
        return {}
    found = _documents(text_or_rows(connection, "document_load", _names(keys)))
    return {(each.kind, each.namespace, each.name): each for each in found}


def find(connection: sqlite3.Connection, query: DocumentQuery) -> list[AnyDocument]:
    wanted = (query.kind, query.namespace, query.after, query.limit)
    if query.word:
        return _documents(text_or_rows(connection, "document_list_word", *wanted, query.word))
    return _documents(text_or_rows(connection, "document_list", *wanted))


def due(
    connection: sqlite3.Connection, now_ms: int, limit: int, kinds: Sequence[str]
) -> tuple[list[AnyDocument], int | None]:
    """What is due, and when the next one will be."""
    names = encode(list(kinds)).decode()
    next_ms: int | None = run(connection, "document_next_due", names, now_ms).fetchone()[0]
    rows: list[list[object]] = []
    for kind in sorted(kinds):
        rows += _rows(text_or_rows(connection, "document_due", kind, now_ms, limit))
    rows.sort(key=_due_of)
    return [_document(row) for row in rows[:limit]], next_ms


def _due_of(cells: list[object]) -> float:
    due_ms = cells[4]
    return due_ms if isinstance(due_ms, int | float) else 0


def _documents(found: str | Rows) -> list[AnyDocument]:
    return [_document(row) for row in _rows(found)]


def _rows(found: str | Rows) -> list[list[object]]:
    return _raw.decode(found) if isinstance(found, str) else [list(row) for row in found]


def _document(cells: list[object]) -> AnyDocument:
    """A row whose body is a text of hexadecimal digits, and whose words are one of JSON."""
    *named, rev, due_ms, words, body = cells
    try:
        cells = [*named, rev, due_ms, _words.decode(words if isinstance(words, str) else b""), body]
    except msgspec.DecodeError as error:
        return damaged_document(cells, in_column("words", str(error)))
    cells[-1] = bytes.fromhex(body) if isinstance(body, str) else body
    return document_or_damaged(cells)


def _names(keys: Sequence[Key]) -> str:
    return encode(list(keys)).decode()


def _words_text(put: Put) -> str:
    return encode(put.words).decode()
