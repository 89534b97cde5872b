"""The flow of the demo as a tree: as it is drawn while it runs."""

import io

import pytest
from rich.console import Console
from rich.live import Live

from flowfabric.cli.demo import tree
from flowfabric.cli.demo.board import Board, Happening, Place
from flowfabric.cli.demo.live import LiveBoard
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import PublicState, State

FILMS = [f"render film {number}" for number in range(1, 5)]
OTHERS = ["model swift", "model clever", "model huge", "write invitation", "reader Ann"]
OTHERS += ["reader Ben", "reader Cyd", "send invitation", "translate invitation"]
OTHERS += ["print translation", "tell the editor"]


def id_of(label: str) -> ExecutionId:
    return ExecutionId(f"{{fp:1}}:{label}")


@pytest.fixture
def board() -> Board:
    """Worker 1 holds the films and everything else waits for them."""
    made = Board()
    made.workers = {"host-1": 1, "host-2": 2}
    made.members = {label: id_of(label) for label in FILMS + OTHERS}
    made.watch({id: label for label, id in made.members.items()})
    for label in OTHERS:
        made.places[id_of(label)] = Place(State.BLOCKED_DEPENDENCIES)
    for label in FILMS:
        made.places[id_of(label)] = Place(State.ACTIVE, "host-1", 0)
    return made


def shown(board: Board, *, width: int = 80, lines: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=lines)
    screen = LiveBoard(Live(console=console), 0)
    for number in range(40):
        screen.tell(Happening(number, "worker 2", f"charge order {number} " + "x" * width))
    with console.capture() as capture:
        console.print(screen.frame(board))
    return [line.rstrip() for line in capture.get().splitlines()]


def told(board: Board, label: str) -> tuple[str, str]:
    """The state and the note on the line that begins with these words."""
    (line,) = [line for line in shown(board) if line.lstrip("│├└─ ").startswith(label)]
    return line[33:44].strip(), line[44:].strip()


@pytest.mark.parametrize(("width", "lines", "latest"), [(80, 24, 3), (120, 40, 12), (60, 20, 0)])
def test_nothing_is_wrapped_and_the_latest_lines_take_what_is_left(
    board: Board, width: int, lines: int, latest: int
) -> None:
    found = shown(board, width=width, lines=lines)
    assert len(found) == 21 + latest
    assert max(len(line) for line in found) <= width
    assert [line.split()[3:6] for line in found[21:]] == [
        ["2", "charge", "order"] for _ in range(latest)
    ]


def test_members_that_wait_say_so_in_one_column(board: Board) -> None:
    for label in ("model swift", "reader Cyd", "on success", "on failure"):
        assert told(board, label) == ("waiting", "")
    assert told(board, "all of 4 films") == ("running", "4 by worker 1")


def test_work_of_a_killed_worker_is_lost_until_it_is_taken_over(board: Board) -> None:
    board.killed = {"host-1"}
    assert told(board, "all of 4 films") == ("lost", "4 with worker 1, which was killed")
    assert "worker 1  killed; still leased to it: render (4)" in shown(board)
    for label in FILMS:
        board.places[id_of(label)] = Place(State.ACTIVE, "host-2", 1)
    assert told(board, "all of 4 films") == ("running", "4 by worker 2, attempt 2")


def test_members_on_one_line_are_told_by_the_first_that_is_not_done(board: Board) -> None:
    board.places[id_of(FILMS[0])] = Place(State.COMPLETED, "host-2", 0)
    assert told(board, "all of 4 films") == ("running", "1 by worker 2, 3 by worker 1")


def test_endings_are_told_with_their_reasons(board: Board) -> None:
    board.places[id_of("model huge")] = Place(State.CANCELLED, "host-2", 0, "lost the race")
    board.places[id_of("print translation")] = Place(State.SKIPPED, reason="no translation")
    assert told(board, "model huge") == ("cancelled", "lost the race")
    assert told(board, "on success") == ("skipped", "no translation")
    assert "flow premiere: 2 of 15 ended" in shown(board)


def test_without_unicode_the_guides_are_plain(board: Board) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=out, width=80)
    console.print(tree.draw("flow", lambda _: tree.Told(PublicState.WAITING)))
    out.seek(0)
    assert "`-- on failure: tell editor" in out.read()
