"""How the demo is shown: a live board in a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from flowfabric.cli.demo.board import Board, Happening
from flowfabric.cli.terminal import console_for, is_terminal
from flowfabric.printing import one_line


class Screen(Protocol):
    def tell(self, happening: Happening) -> None:
        """Something happened."""
        ...

    def show(self, board: Board) -> None:
        """This is how it stands."""
        ...


class Lines:
    """One line per happening, without any control characters."""

    def __init__(self, out: TextIO, start_ms: int) -> None:
        self._out = out
        self._start_ms = start_ms

    def tell(self, happening: Happening) -> None:
        seconds = max(happening.at_ms - self._start_ms, 0) / 1000
        line = f"{seconds:5.1f} s  {happening.who:<8}  {happening.what}"
        print(one_line(line), file=self._out, flush=True)

    def show(self, board: Board) -> None:
        return


@contextmanager
def open_screen(out: TextIO = sys.stdout) -> Iterator[Screen]:
    start_ms = now_ms()
    if not is_terminal(out):
        yield Lines(out, start_ms)
        return
    from rich.live import Live

    from flowfabric.cli.demo.live import LiveBoard

    with Live(console=console_for(out), auto_refresh=False, transient=True) as live:
        yield LiveBoard(live, start_ms)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
