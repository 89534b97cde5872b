"""A wall clock that jumps: the lab moves it, and every process of the crew reads it. No test lives
here, and nothing of the project is imported: a process replaces its clock before anything else."""

from __future__ import annotations

import os
import time
from pathlib import Path

PLACE = "FLOWFABRIC_CHAOS_WALL"


class Wall:
    """How far the wall clocks of the crew are off, kept in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def jump(self, seconds: float) -> None:
        """To be off by so much from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(str(int(seconds * 1_000_000_000)), encoding="ascii")
        new.rename(self._file)


def follow_the_wall() -> None:
    """From now on this process's wall clock is off by what the lab says."""
    file = os.environ.get(PLACE, "")
    true_ns = time.time_ns

    def wall_ns() -> int:
        try:
            off_ns = int(Path(file).read_text(encoding="ascii"))
        except FileNotFoundError:
            off_ns = 0
        return true_ns() + off_ns

    time.time_ns = wall_ns
    time.time = lambda: wall_ns() / 1_000_000_000
