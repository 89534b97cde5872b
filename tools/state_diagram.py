"""Draws the states of an execution into docs/internals/states.md, from the tables of the core.

    python tools/state_diagram.py            write the page again
    python tools/state_diagram.py --check    say whether the page is current; exit 1 if it is not

Only what stands between the markers is written; the prose around them is written by people.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from flowfabric.core.states import (
    ALLOWED,
    ATTEMPT_STATES,
    PUBLIC,
    REASONS,
    SHAPE,
    TERMINAL,
    State,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "internals" / "states.md"
FIRST = (State.WAITING, State.DELAYED)

Alike = tuple[State, ...]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="compare and write nothing")
    options = arguments.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    current = rendered(text)
    if not options.check:
        PAGE.write_text(current, encoding="utf-8")
    elif text != current:
        page = PAGE.relative_to(ROOT)
        sys.exit(f"{page} is not what the tables say: run python tools/state_diagram.py")


def rendered(page: str) -> str:
    """The page with every part between markers drawn again."""
    for name, draw in PARTS.items():
        start, end = markers(name)
        if page.count(start) != 1 or page.count(end) != 1:
            raise SystemExit(f"the page needs one line '{start}' and one '{end}'")
        before, rest = page.split(start)
        after = rest.split(end)[1]
        page = f"{before}{start}\n\n{draw()}\n\n{end}{after}"
    return page


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: drawn by tools/state_diagram.py -->", f"<!-- end of {name} -->"


def alike() -> list[Alike]:
    """States that nobody can tell apart by who may follow whom, as one box each."""
    boxes: list[list[State]] = []
    for state in State:
        box = next((box for box in boxes if is_twin(box[0], state)), None)
        if box is None:
            boxes.append([state])
        else:
            box.append(state)
    return [tuple(box) for box in boxes]


def is_twin(one: State, other: State) -> bool:
    """Swapping the two changes nothing in the table."""
    swap = {one: other, other: one}
    return all(
        ALLOWED[swap.get(state, state)] == {swap.get(after, after) for after in ALLOWED[state]}
        for state in State
    )


def diagram() -> str:
    boxes = alike()
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{"<br/>".join(box)}" as {box[0]}' for box in boxes if len(box) > 1]
    lines += [f"    [*] --> {state}" for state in FIRST]
    lines += [
        f"    {box[0]} --> {after[0]}"
        for box in boxes
        for after in boxes
        if any(state in ALLOWED[box[0]] for state in after)
    ]
    lines += [f"    {box[0]} --> [*]" for box in boxes if box[0] in TERMINAL]
    return "\n".join([*lines, "```"])


def vectors() -> str:
    heading = ("state", "phase", "ownership", "eligibility", "outcome", "public state")
    return table(heading, [[state, *SHAPE[state], PUBLIC[state]] for state in State])


def details() -> str:
    heading = ("state", "reasons", "attempt states")
    rows = [[s, in_order(REASONS[s]), in_order(ATTEMPT_STATES[s])] for s in State]
    return table(heading, rows)


def followers() -> str:
    heading = ("from \\ to", *(str(number) for number in range(1, len(State) + 1)))
    rows = [
        [f"{number} {state}", *("●" if after in ALLOWED[state] else " " for after in State)]
        for number, state in enumerate(State, start=1)
    ]
    return table(heading, rows)


def in_order(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def table(heading: Iterable[str], rows: list[list[str]]) -> str:
    lines = [list(heading), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in lines
    )


PARTS: dict[str, Callable[[], str]] = {
    "diagram": diagram,
    "vectors": vectors,
    "details": details,
    "followers": followers,
}


if __name__ == "__main__":
    main()
