"""Shifts: whose turn each duty is."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from flowfabric.core.model import Shift
from flowfabric.store.damage import shift_or_free
from flowfabric.store.sqlite.spoilt import text_or_rows
from flowfabric.store.sqlite.statements import run

_rows = msgspec.json.Decoder(list[Sequence[object]])


def take(connection: sqlite3.Connection, asks: Sequence[Shift], now_ms: int) -> list[Shift]:
    """Take those that are free, and answer all of them."""
    for ask in asks:
        run(connection, "shift_take", ask.name, ask.owner, ask.until_ms, ask.report, now_ms)
    return known(connection)


def known(connection: sqlite3.Connection) -> list[Shift]:
    found = text_or_rows(connection, "shift_list")
    rows = _rows.decode(found) if isinstance(found, str) else found
    return [shift_or_free(str(name), *cells) for name, *cells in rows]
