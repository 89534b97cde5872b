"""The page about states is what the tables say, and its diagram hides no arrow and invents none."""

from __future__ import annotations

import re
import sys
from itertools import product
from pathlib import Path

import pytest

from flowfabric.core.states import ALLOWED, PUBLIC, REASONS, SHAPE, TERMINAL, State
from tests.core.build import NOW, submitted
from tools import state_diagram

PAGE = state_diagram.PAGE.read_text(encoding="utf-8")


def part(name: str) -> str:
    start, end = state_diagram.markers(name)
    return PAGE.split(start)[1].split(end)[0].strip()


def boxes() -> dict[str, list[State]]:
    """What each name in the diagram stands for."""
    labels = re.findall(r'state "(.+)" as (\w+)', part("diagram"))
    together = {name: [State(word) for word in label.split("<br/>")] for label, name in labels}
    inside = {state for states in together.values() for state in states}
    return {**{state: [state] for state in State if state not in inside}, **together}


def rows(name: str) -> list[list[str]]:
    """The cells of a table, without its heading."""
    lines = part(name).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_is_current() -> None:
    assert state_diagram.rendered(PAGE) == PAGE


def test_every_state_is_drawn_once() -> None:
    assert sorted(state for states in boxes().values() for state in states) == sorted(State)


def test_the_arrows_are_exactly_those_of_the_table() -> None:
    arrows = re.findall(r"^\s*(\w+) --> (\w+)$", part("diagram"), re.MULTILINE)
    drawn = {
        (before, after)
        for source, target in arrows
        for before, after in product(boxes()[source], boxes()[target])
        if before is not after
    }
    assert drawn == {(before, after) for before in State for after in ALLOWED[before]}


def test_the_diagram_begins_where_a_submission_does_and_ends_where_all_ends() -> None:
    begins = set(re.findall(r"\[\*\] --> (\w+)", part("diagram")))
    assert begins == {submitted().state, submitted(delay_until_ms=NOW + 1).state}
    ends = re.findall(r"(\w+) --> \[\*\]", part("diagram"))
    assert {state for name in ends for state in boxes()[name]} == TERMINAL


def test_the_vector_of_every_state_is_shown() -> None:
    shown = {name: cells for name, *cells in rows("vectors")}
    assert shown == {state: [*SHAPE[state], PUBLIC[state]] for state in State}


def test_the_reasons_of_every_state_are_shown() -> None:
    shown = {name: set(reasons.split(", ")) for name, reasons, _ in rows("details")}
    assert shown == {state: REASONS[state] for state in State}


def test_every_step_is_shown() -> None:
    order = list(State)
    for (label, *cells), before in zip(rows("followers"), order, strict=True):
        assert label.split()[1] == before
        marked = {after for after, cell in zip(order, cells, strict=True) if cell}
        assert marked == ALLOWED[before]


def test_a_page_without_its_markers_is_refused() -> None:
    start, _ = state_diagram.markers("vectors")
    with pytest.raises(SystemExit, match="the page needs one line"):
        state_diagram.rendered(PAGE.replace(start, ""))


def run(monkeypatch: pytest.MonkeyPatch, page: Path, *arguments: str) -> None:
    monkeypatch.setattr(state_diagram, "ROOT", page.parent)
    monkeypatch.setattr(state_diagram, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["state_diagram.py", *arguments])
    state_diagram.main()


def test_a_page_that_is_not_current_is_noticed_and_drawn_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "states.md"
    old = PAGE.replace("active --> suspended", "")
    page.write_text(old, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"states\.md is not what the tables say"):
        run(monkeypatch, page, "--check")
    assert page.read_text(encoding="utf-8") == old
    run(monkeypatch, page)
    assert page.read_text(encoding="utf-8") == PAGE
    run(monkeypatch, page, "--check")
