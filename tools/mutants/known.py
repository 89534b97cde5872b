"""Faults that change nothing: each with the reason, in tests/mutants.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.fault import Fault

FILE = "tests/mutants.toml"


@dataclass(frozen=True, slots=True)
class Equivalent:
    path: str
    line: str
    old: str
    new: str
    why: str

    def is_about(self, fault: Fault, text: str) -> bool:
        seen = (fault.path, fault.around(text), fault.old(text), fault.new)
        return seen == (self.path, self.line, self.old, self.new)


def read_equivalents(text: str) -> list[Equivalent]:
    return [Equivalent(**each) for each in tomllib.loads(text).get("equivalent", [])]


def load(root: Path) -> list[Equivalent]:
    return read_equivalents((root / FILE).read_text(encoding="utf-8"))
