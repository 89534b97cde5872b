"""Every row of the deviations names tests that exist and carry the row's case or statement; and
every statement of the documents that are built is accounted for."""

from __future__ import annotations

import re

import pytest

from tools import cases, statements

ROW = re.compile(r"^\| ([A-Z]{2}-\d{3}) \| deviates \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(test_\w+)`")

PAGE = (cases.ROOT / "docs" / "deviations.md").read_text(encoding="utf-8")
ROWS = ROW.findall(PAGE)
DOCUMENTS, TESTS, STATEMENTS = statements.read_tree(cases.ROOT)
# Documents whose part is built.
BUILT = ("S0", "S1", "S2", "S3", "S4")
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


def test_no_statement_deviates_twice() -> None:
    numbers = [row.statement for row in STATEMENTS]
    assert numbers
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("row", STATEMENTS, ids=lambda row: row.statement)
def test_a_deviating_statement_is_shown_by_tests_that_carry_its_number(
    row: statements.Row,
) -> None:
    assert row.tests
    assert [test for test in row.tests if test not in TESTS] == []
    assert any(row.statement in statements.numbers_in(test) for test in row.tests)


@pytest.mark.parametrize("row", STATEMENTS, ids=lambda row: row.statement)
def test_a_deviating_statement_says_whether_it_is_stronger_or_weaker(row: statements.Row) -> None:
    assert row.why.startswith(("stronger: ", "weaker, because "))


def test_every_row_and_every_test_is_about_a_statement_that_exists() -> None:
    known = {number for document in DOCUMENTS for number in document.statements}
    named = {number for test in TESTS for number in statements.numbers_in(test)}
    assert {row.statement for row in STATEMENTS} | named <= known


def test_every_statement_of_the_documents_that_are_built_is_accounted_for() -> None:
    report = statements.judge(DOCUMENTS, TESTS, STATEMENTS)
    missing = {one.document.name: one.missing for one in report if one.document.name in BUILT}
    assert missing == dict.fromkeys(BUILT, ())


def test_tests_outside_the_statement_table_that_the_page_names_exist() -> None:
    carrying = {test for test in TEST.findall(PAGE) if statements.numbers_in(test)}
    assert carrying <= TESTS.keys()


def test_the_page_names_features_and_no_numbers_of_a_plan() -> None:
    assert re.findall(r"\bstep \d+", PAGE) == []
