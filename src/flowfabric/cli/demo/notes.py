"""The side file of the demo: what tasks did in the outside world, noted while they did it.

A task that gets to its end says so before it returns, and one whose code is stopped says that; the
closing proof compares both with what the store says.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from flowfabric.worker.context import Context


class Effect(StrEnum):
    FINISHED = "finished"
    STOPPED = "stopped"


class Note(NamedTuple):
    """Which execution, in which of its attempts."""

    id: str
    attempt: int
    effect: Effect = Effect.FINISHED


class Notes:
    """One line per note; appended in one write, so that lines of several processes never mix."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def finished(self, ctx: Context) -> None:
        self._add(Note(ctx.id, ctx.attempt))

    @contextmanager
    def when_stopped(self, ctx: Context) -> Iterator[None]:
        """Around what may be cancelled while it runs."""
        try:
            yield
        except asyncio.CancelledError:
            self._add(Note(ctx.id, ctx.attempt, Effect.STOPPED))
            raise

    def _add(self, note: Note) -> None:
        line = f"{note.id} {note.attempt} {note.effect}\n".encode()
        handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)

    def read(self) -> list[Note]:
        if not self._file.exists():
            return []
        lines = [line.split() for line in self._file.read_text(encoding="ascii").splitlines()]
        return [Note(id, int(attempt), Effect(effect)) for id, attempt, effect in lines]
