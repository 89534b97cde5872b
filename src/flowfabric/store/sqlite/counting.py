"""A connection that counts, and notices what SQLite does by itself.

A transaction is a trip, and so is a statement outside of one. A look at a setting is neither: it
reads memory that the processes share.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from flowfabric.store.trips import Trips

if TYPE_CHECKING:
    from sqlite3 import _Parameters


class Compiling:
    """Whether a statement was compiled since the version was last read.

    In steady use none is, except when another process has changed the schema: then SQLite compiles
    every statement again before it runs.
    """

    def __init__(self) -> None:
        self.is_noticed = True

    def notice(self, *_: object) -> int:
        self.is_noticed = True
        return sqlite3.SQLITE_OK


class CountingConnection(sqlite3.Connection):
    trips: Trips | None = None
    compiling: Compiling | None = None

    def notice_compiling(self) -> None:
        self.compiling = Compiling()
        self.set_authorizer(self.compiling.notice)

    def execute(self, sql: str, parameters: _Parameters = (), /) -> sqlite3.Cursor:
        if self.trips is not None and not sql.startswith("PRAGMA"):
            self.trips.add(round_trips=0 if self.in_transaction else 1)
        return super().execute(sql, parameters)
