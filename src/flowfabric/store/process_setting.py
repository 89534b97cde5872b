"""What is set for the whole process while somebody needs it, and put back afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from flowfabric.forking import begin_here_and_in_children

T = TypeVar("T")


class ProcessSetting(Generic[T]):
    """The first who needs it sets what `wanted` makes of the usual value; the last who does puts
    the usual one back, unless somebody has set another meanwhile."""

    def __init__(
        self, read: Callable[[], T], write: Callable[[T], None], wanted: Callable[[T], T]
    ) -> None:
        self._read = read
        self._write = write
        self._wanted = wanted
        self._needed_by = 0
        self._usual = self._ours = read()
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        if self._needed_by:
            self._needed_by = 1
            self.end()

    def begin(self) -> None:
        with self._lock:
            self._needed_by += 1
            if self._needed_by == 1:
                self._usual = self._read()
                self._write(self._wanted(self._usual))
                self._ours = self._read()

    def end(self) -> None:
        with self._lock:
            self._needed_by -= 1
            if not self._needed_by and self._read() == self._ours:
                self._write(self._usual)
