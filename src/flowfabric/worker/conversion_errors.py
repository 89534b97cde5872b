"""Why a value cannot be written or read by a hook or by pydantic; the codec names the task."""

from __future__ import annotations


class Unstorable(TypeError):
    """A value that cannot be written."""


class Unreadable(ValueError):
    """A stored value that cannot be read.

    `place`: where inside the value, as in `.items[0].price`; empty for the whole.
    """

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem)
        self.place = place
