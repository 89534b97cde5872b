"""How the demo is shown: a live board in a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from flowfabric.cli.demo.board import Board, Happening
from flowfabric.cli.terminal import console_for, is_terminal
from flowfabric.core.states import TERMINAL, State

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

RECENT = 10


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
        print(line, file=self._out, flush=True)

    def show(self, board: Board) -> None:
        return


class LiveBoard:
    """States, who works on what, and the latest lines, drawn in place."""

    def __init__(self, live: Live, start_ms: int) -> None:
        self._live = live
        self._start_ms = start_ms
        self._recent: deque[Happening] = deque(maxlen=RECENT)

    def tell(self, happening: Happening) -> None:
        self._recent.append(happening)

    def show(self, board: Board) -> None:
        from rich.console import Group
        from rich.text import Text

        seconds = (now_ms() - self._start_ms) / 1000
        title = Text(f"FlowFabric demo  {seconds:4.1f} s", style="bold")
        group: Group = Group(title, _states(board), _workers(board), self._latest())
        self._live.update(group, refresh=True)

    def _latest(self) -> Table:
        table = _table("seconds", "who", "what just happened")
        for happening in self._recent:
            seconds = (happening.at_ms - self._start_ms) / 1000
            table.add_row(f"{seconds:.1f}", happening.who, happening.what)
        return table


def _states(board: Board) -> Table:
    counts = board.counts()
    seen = [state for state in State if counts[state]]
    table = _table(*(str(state) for state in seen), "done")
    done = sum(counts[state] for state in TERMINAL)
    table.add_row(*(str(counts[state]) for state in seen), f"{done} of {counts.total()}")
    return table


def _workers(board: Board) -> Table:
    table = _table("who", "works on")
    for worker, number in sorted(board.workers.items(), key=lambda known: known[1]):
        labels = ", ".join(sorted(board.labels[id] for id in board.held_by(worker))) or "nothing"
        is_killed = worker in board.killed
        told = f"killed; still leased to it: {labels}" if is_killed else labels
        table.add_row(f"worker {number}", told, style="red" if is_killed else "")
    return table


def _table(*headers: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(*headers, box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)


@contextmanager
def open_screen(out: TextIO = sys.stdout) -> Iterator[Screen]:
    start_ms = now_ms()
    if not is_terminal(out):
        yield Lines(out, start_ms)
        return
    from rich.live import Live

    with Live(console=console_for(out), auto_refresh=False, transient=True) as live:
        yield LiveBoard(live, start_ms)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
