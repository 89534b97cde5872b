"""One fault: which characters of which file are replaced by what. Nothing here is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """`place` is the area and, in SQL, the statement; it chooses the tests that should see it."""

    path: str
    start: int
    end: int
    new: str
    place: str

    def plant(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def line(self, text: str) -> int:
        return text.count("\n", 0, self.start) + 1

    def old(self, text: str) -> str:
        return text[self.start : self.end]

    def around(self, text: str) -> str:
        """The line that it is in, as it stands: with what is replaced, the name of a fault that
        survives changes elsewhere in the file."""
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.start)
        return text[first : len(text) if last < 0 else last].strip()


def read(root: Path, path: str) -> str:
    return (root / path).read_text(encoding="utf-8")
