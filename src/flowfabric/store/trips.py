"""How often a store went to its database: counted by the store itself, where it does.

Time is different on every machine and every day; what is asked of a database is not. Benches and
tests compare these numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from flowfabric.forking import begin_here_and_in_children


class Count(NamedTuple):
    """Waits for an answer, and the statements or commands that went with them."""

    round_trips: int = 0
    statements: int = 0

    def since(self, before: Count) -> Count:
        return Count(self.round_trips - before.round_trips, self.statements - before.statements)


class Trips:
    """The counter of one store. May be raised from any thread."""

    def __init__(self) -> None:
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._round_trips = 0
        self._statements = 0
        self._waits = 0
        self._examined = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While a store waits for its database by itself, and not for a verb."""
        with self._lock:
            self._waits += 1
        try:
            yield
        finally:
            with self._lock:
                self._waits -= 1

    @property
    def is_waiting(self) -> bool:
        return self._waits > 0

    def add(self, *, round_trips: int = 1, statements: int = 1) -> None:
        with self._lock:
            self._round_trips += round_trips
            self._statements += statements

    def look_at(self, rows: int) -> None:
        """A claim has looked at so many rows of ready queues, or hints of them."""
        with self._lock:
            self._examined += rows

    @property
    def examined(self) -> int:
        with self._lock:
            return self._examined

    @property
    def count(self) -> Count:
        with self._lock:
            return Count(self._round_trips, self._statements)
