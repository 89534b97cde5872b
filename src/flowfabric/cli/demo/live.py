"""The live board of a terminal: counts, workers, the flow as a tree, and what just happened.

Everything stays where it is and only changes its words; what does not fit is cut, never wrapped.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from rich.console import Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowfabric.cli.demo import tree
from flowfabric.cli.demo.board import Board, Happening
from flowfabric.cli.demo.premiere import NAME
from flowfabric.cli.demo.screen import now_ms
from flowfabric.core.states import PUBLIC, TERMINAL, PublicState, State

_RECENT = 12
_TOP_LINES = 5
_LATEST_WIDTHS = (6, 8)

_COLUMNS = {
    "waiting": (PublicState.WAITING, PublicState.WAITING_CHILDREN),
    "delayed": (PublicState.DELAYED,),
    "running": (PublicState.ACTIVE,),
    "done": (PublicState.COMPLETED,),
    "failed": (PublicState.FAILED,),
    "cancelled": (PublicState.CANCELLED,),
    "skipped": (PublicState.SKIPPED,),
}


class LiveBoard:
    """A screen that is drawn in place."""

    def __init__(self, live: Live, start_ms: int) -> None:
        self._live = live
        self._start_ms = start_ms
        self._recent: deque[Happening] = deque(maxlen=_RECENT)

    def tell(self, happening: Happening) -> None:
        self._recent.append(happening)

    def show(self, board: Board) -> None:
        self._live.update(self.frame(board), refresh=True)

    def frame(self, board: Board) -> Group:
        rows: list[RenderableType] = [self._counts(board), _workers(board), ""]
        taken = _TOP_LINES
        if board.members:
            rows += [_flow(board), ""]
            taken += tree.height() + 1
        rows.append(self._latest(self._live.console.size.height - taken))
        return Group(*rows)

    def _counts(self, board: Board) -> Table:
        counts: Counter[PublicState] = Counter()
        for state, count in board.counts().items():
            counts[PUBLIC[state]] += count
        seconds = (now_ms() - self._start_ms) / 1000
        cells = [str(sum(counts[state] for state in states)) for states in _COLUMNS.values()]
        table = _grid(len(_COLUMNS) + 1, justify="right")
        table.add_row(Text("FlowFabric demo", style="bold"), *_COLUMNS, style="dim")
        table.add_row(f"{seconds:.1f} s", *cells)
        return table

    def _latest(self, room: int) -> Table:
        table = _grid(3)
        for column, width in zip(table.columns, _LATEST_WIDTHS, strict=False):
            column.min_width = width
        for happening in list(self._recent)[-room:] if room > 0 else []:
            seconds = (happening.at_ms - self._start_ms) / 1000
            table.add_row(f"{seconds:4.1f} s", happening.who, happening.what)
        return table


def _workers(board: Board) -> Table:
    table = _grid(2)
    for worker, number in sorted(board.workers.items(), key=lambda known: known[1]):
        works_on = _summed(board.labels[id] for id in board.held_by(worker))
        if worker in board.killed:
            told = f"killed; still leased to it: {works_on}"
            table.add_row(f"worker {number}", told, style="red")
        else:
            table.add_row(f"worker {number}", f"works on {works_on}")
    return table


def _flow(board: Board) -> RenderableType:
    places = [board.places[id] for id in board.members.values()]
    ended = sum(place.state in TERMINAL for place in places)
    title = f"flow {NAME}: {ended} of {len(places)} ended"
    return tree.draw(title, lambda label: _told(board, label))


def _told(board: Board, label: str) -> tree.Told:
    place = board.places[board.members[label]]
    state = PUBLIC[place.state]
    who = board.name(place.worker)
    match place.state:
        case State.ACTIVE if place.worker in board.killed:
            return tree.Told(state, f"with {who}, which was killed", is_lost=True)
        case State.ORPHANED:
            return tree.Told(state, "its lease ran out", is_lost=True)
        case State.ACTIVE if place.attempt:
            return tree.Told(state, f"by {who}, attempt {place.attempt + 1}")
        case State.ACTIVE | State.COMPLETED:
            return tree.Told(state, f"by {who}")
        case _:
            return tree.Told(state, place.reason)


def _summed(labels: Iterable[str]) -> str:
    """Work of one sort is told once: `render (4), listen`."""
    sorts = Counter(label.partition(" ")[0] for label in labels)
    each = [f"{sort} ({count})" if count > 1 else sort for sort, count in sorted(sorts.items())]
    return ", ".join(each) or "nothing"


def _grid(columns: int, *, justify: JustifyMethod = "left") -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns):
        table.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
    return table
