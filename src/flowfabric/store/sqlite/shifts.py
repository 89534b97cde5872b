"""Shifts: whose turn each duty is."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from flowfabric.core.model import Shift
from flowfabric.store.sqlite.statements import one_text, run


def take(connection: sqlite3.Connection, asks: Sequence[Shift], now_ms: int) -> list[Shift]:
    """Take those that are free, and answer all of them."""
    for ask in asks:
        run(connection, "shift_take", ask.name, ask.owner, ask.until_ms, ask.report, now_ms)
    return known(connection)


def known(connection: sqlite3.Connection) -> list[Shift]:
    return msgspec.json.decode(one_text(connection, "shift_list"), type=list[Shift])
