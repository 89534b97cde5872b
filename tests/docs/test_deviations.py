"""Every row of the deviations names tests that exist and carry the row's case."""

from __future__ import annotations

import re

import pytest

from tools import cases

ROW = re.compile(r"^\| ([A-Z]{2}-\d{3}) \| deviates \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(test_\w+)`")

ROWS = ROW.findall((cases.ROOT / "docs" / "deviations.md").read_text(encoding="utf-8"))
MARKED = {(mark.where.rpartition("::")[2], mark.case_id) for mark in cases.collect(cases.ROOT)}


def test_there_are_deviations_and_none_twice() -> None:
    ids = [case_id for case_id, _ in ROWS]
    assert ids
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(("case_id", "what"), ROWS)
def test_a_deviation_is_asserted_by_the_test_it_names(case_id: str, what: str) -> None:
    named = TEST.findall(what)
    assert named
    assert any((test, case_id) in MARKED for test in named)


def test_every_test_that_is_named_exists() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in cases.sources(cases.ROOT))
    named = {test for _, what in ROWS for test in TEST.findall(what)}
    assert [test for test in sorted(named) if f"def {test}(" not in sources] == []
