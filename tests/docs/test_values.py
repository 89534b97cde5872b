"""The table of types in the reference is the one that the tests send values by."""

from __future__ import annotations

from pathlib import Path

from tests.worker.travelling import table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "values.md"


def test_the_page_has_the_table() -> None:
    assert "\n".join(table()) in PAGE.read_text(encoding="utf-8")
