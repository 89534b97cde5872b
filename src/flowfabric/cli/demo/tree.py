"""A flow as a tree: one line for each member, its state in place, aligned.

Which lines there are is fixed by the flow of the demo. What they say comes from whoever draws: the
live board while it runs, the closing proof at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from flowfabric.cli.demo import premiere
from flowfabric.core.states import PublicState
from flowfabric.printing import one_line

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_GUIDE = 4
_LABEL_WIDTH = 33
_STATE_WIDTH = 11

_WORDS = {
    PublicState.WAITING_CHILDREN: "waiting",
    PublicState.WAITING: "ready",
    PublicState.ACTIVE: "running",
    PublicState.COMPLETED: "done",
}
_STYLES = {
    PublicState.ACTIVE: "bold",
    PublicState.COMPLETED: "green",
    PublicState.FAILED: "red",
    PublicState.CANCELLED: "yellow",
    PublicState.SKIPPED: "magenta",
}


class Told(NamedTuple):
    """What the tree says of one member."""

    state: PublicState
    note: str = ""
    is_lost: bool = False


class Branch(NamedTuple):
    """One line: a member, several that are told together, or only a heading for its children."""

    label: str
    members: tuple[str, ...] = ()
    note: str = ""
    children: tuple[Branch, ...] = ()


Tell = Callable[[str], Told]


def branches() -> tuple[Branch, ...]:
    """In the order in which things happen; what belongs to one join is under its heading."""
    films = tuple(f"render film {number}" for number in range(1, premiere.FILMS + 1))
    readers = len(premiere.READER_SECONDS)
    return (
        Branch(f"all of {len(films)} films", films),
        _join(
            f"any of {len(premiere.MODEL_SECONDS)} models",
            tuple(premiere.MODEL_SECONDS),
            "the first answer wins, the rest is cancelled",
        ),
        _member(premiere.DOWNSTREAM),
        _join(
            f"{premiere.NEEDED_READERS} of {readers} readers",
            tuple(premiere.READER_SECONDS),
            f"{premiere.NEEDED_READERS} that agree are enough, the rest is cancelled",
        ),
        _member("send invitation"),
        _member(
            "translate invitation",
            Branch("on success: print it", (premiere.SKIPPED,)),
            Branch("on failure: tell editor", ("tell the editor",)),
        ),
    )


def _member(label: str, *children: Branch) -> Branch:
    return Branch(label, (label,), children=children)


def _join(label: str, members: tuple[str, ...], note: str) -> Branch:
    return Branch(label, note=note, children=tuple(_member(member) for member in members))


def height() -> int:
    """How many lines it takes, with its title."""
    return 1 + sum(1 + len(branch.children) for branch in branches())


def draw(title: str, tell: Tell) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(title, style="bold"), guide_style="dim")
    for branch in branches():
        _grow(tree, branch, tell, depth=1)
    return tree


def _grow(tree: Tree, branch: Branch, tell: Tell, *, depth: int) -> None:
    below = tree.add(_line(branch, tell, _LABEL_WIDTH - _GUIDE * depth))
    for child in branch.children:
        _grow(below, child, tell, depth=depth + 1)


def _line(branch: Branch, tell: Tell, width: int) -> Text:
    from rich.text import Text

    line = Text(f"{branch.label:<{width}}", no_wrap=True, overflow="ellipsis")
    if not branch.members:
        return line.append(branch.note, style="dim")
    told = _together([tell(member) for member in branch.members])
    style = "red" if told.is_lost else _STYLES.get(told.state, "dim")
    return line.append(f"{_word(told):<{_STATE_WIDTH}}", style=style).append(one_line(told.note))


def _together(told: list[Told]) -> Told:
    """Several members on one line: the first that is not done speaks for them."""
    first = next((one for one in told if one.state is not PublicState.COMPLETED), told[0])
    if len(told) == 1:
        return first
    notes = Counter(one.note or _word(one) for one in told)
    return first._replace(note=", ".join(f"{count} {note}" for note, count in notes.items()))


def _word(told: Told) -> str:
    return "lost" if told.is_lost else _WORDS.get(told.state, str(told.state))
