"""How long to rest when there is nothing to do."""

from __future__ import annotations


class Idle:
    """A pause that doubles from `least` to `most` until something happens."""

    def __init__(self, least_seconds: float, most_seconds: float) -> None:
        self._least = least_seconds
        self._most = most_seconds
        self._next = least_seconds

    def next(self) -> float:
        pause, self._next = self._next, min(self._next * 2, self._most)
        return pause

    def reset(self) -> None:
        self._next = self._least
