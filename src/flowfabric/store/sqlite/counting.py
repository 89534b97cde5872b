"""A connection that counts.

A transaction is a trip, and so is a statement outside of one. A look at a setting is neither: it
reads memory that the processes share.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from flowfabric.store.trips import Trips

if TYPE_CHECKING:
    from sqlite3 import _Parameters


class CountingConnection(sqlite3.Connection):
    trips: Trips | None = None

    def execute(self, sql: str, parameters: _Parameters = (), /) -> sqlite3.Cursor:
        if self.trips is not None and not sql.startswith("PRAGMA"):
            self.trips.add(round_trips=0 if self.in_transaction else 1)
        return super().execute(sql, parameters)
