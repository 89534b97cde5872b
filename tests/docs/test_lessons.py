"""Every lesson is there, in order, and names tests and modules that exist."""

from __future__ import annotations

import re

import pytest

from tools import cases, statements

ROW = re.compile(r"^\| (W\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([^`]+)`")

PAGE = (cases.ROOT / "docs" / "internals" / "lessons.md").read_text(encoding="utf-8")
ROWS = ROW.findall(PAGE)
SOURCES = (cases.ROOT / "src" / "flowfabric").rglob("*.py")
TESTS = {
    test
    for path in (*cases.sources(cases.ROOT), *SOURCES)
    for test in statements.tests_in(path.read_text(encoding="utf-8"), path.name)
}


def is_there(name: str) -> bool:
    is_module = name.endswith(".py")
    return (cases.ROOT / "src" / "flowfabric" / name).is_file() if is_module else name in TESTS


def test_all_sixty_lessons_are_there_in_order() -> None:
    assert [row[0] for row in ROWS] == [f"W{number}" for number in range(1, 61)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_lesson_names_what_excludes_it_and_that_exists(row: tuple[str, str, str, str]) -> None:
    named = NAMED.findall(row[3])
    assert named
    assert [name for name in named if not is_there(name)] == []


def test_a_name_that_is_not_there_would_be_found() -> None:
    assert not is_there("test_that_nobody_has_written")
    assert not is_there("engine/nothing.py")
    assert is_there("engine/janitor.py")
