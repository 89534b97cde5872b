"""Answers that one bad cell spoils: bytes where text belongs, text that is no UTF-8.

A reading statement answers one JSON text, and such a cell is no JSON. Then the same statement is
run again for its bare rows, so that the row with that cell can be named and keeps no other back.
"""

from __future__ import annotations

import re
import sqlite3
from functools import lru_cache

from flowfabric.store.sqlite.patience import is_spoilt
from flowfabric.store.sqlite.rows import Cell, Rows
from flowfabric.store.sqlite.statements import one_text, plain

_PACKED = re.compile(r"json_group_array\(json_array\((.*?)\)\)(?=\s+FROM\b)", re.DOTALL)


@lru_cache(maxsize=64)
def _unpacked(text: str) -> str:
    return _PACKED.sub(r"\1", text, count=1)


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def text_or_rows(
    connection: sqlite3.Connection, name: str, *arguments: Cell, columns: str = ""
) -> str | Rows:
    """What a reading statement answers: JSON of its rows, or the rows."""
    try:
        return one_text(connection, name, *arguments, columns=columns)
    except (sqlite3.OperationalError, sqlite3.DataError) as error:
        if not is_spoilt(error):
            raise
    text, order = plain(name, columns)
    usual, connection.text_factory = connection.text_factory, _text
    try:
        given = [arguments[position] for position in order]
        return list(connection.execute(_unpacked(text), given))
    finally:
        connection.text_factory = usual
