"""The account of the source documents: its parser on small inputs."""

import pytest

from tools import statements
from tools.statements import Document, Row

DOCUMENT = Document("S2", "made up", ("S2.1", "S2.2", "S2.11"))
TABLE = """
| statement | what replaces it | stronger or weaker | tests |
|---|---|---|---|
| S2.1 | this | that | `test_s2_1_it`, `test_it` |
| S2.2 | this | that |  |
| LC-001 | deviates | this; `test_it` |
"""


def test_documents_have_their_statements_in_order() -> None:
    text = '[S2]\ntitle = "made up"\nstatements = 2\n'
    assert statements.read_documents(text) == [Document("S2", "made up", ("S2.1", "S2.2"))]


def test_a_name_carries_every_number_in_it() -> None:
    assert statements.numbers_in("test_s2_1_s0_11_it_is_so") == {"S2.1", "S0.11"}
    assert statements.numbers_in("test_s2_1") == set()
    assert statements.numbers_in("test_it_is_so") == set()


def test_tests_are_found_wherever_they_stand() -> None:
    source = "def test_a(): ...\nclass TestIt:\n    async def test_b(self): ...\ndef build(): ...\n"
    found = statements.tests_in(source, "made_up.py")
    assert found == {"test_a": False, "test_b": False}


@pytest.mark.parametrize(
    "marker",
    [
        'pytest.mark.xfail(strict=True, reason="not built: it")',
        "pytest.mark.xfail",
        'pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.xfail(reason="no"))])',
    ],
)
def test_a_test_that_is_expected_to_fail_in_whole_or_in_part_is_later(marker: str) -> None:
    alone = f"@{marker}\ndef test_a(): ...\ndef test_b(): ..."
    assert statements.tests_in(alone, "made_up.py") == {"test_a": True, "test_b": False}
    inside = f"@{marker}\nclass TestIt:\n    def test_a(self): ..."
    assert statements.tests_in(inside, "made_up.py") == {"test_a": True}


def test_a_row_needs_all_of_its_cells() -> None:
    assert statements.read_rows(TABLE) == [Row("S2.1", "this", "that", ("test_s2_1_it", "test_it"))]


def test_a_statement_is_tested_or_deviates_or_is_missing() -> None:
    rows = [Row("S2.11", "this", "that", ("test_s2_11_it",))]
    tests = dict.fromkeys(("test_s2_1_it", "test_s2_11_it"), False)
    (one,) = statements.judge([DOCUMENT], tests, rows)
    assert (one.tested, one.deviating, one.missing) == (("S2.1",), ("S2.11",), ("S2.2",))


def test_a_row_without_a_test_that_carries_its_number_is_missing() -> None:
    rows = [Row("S2.1", "this", "that", ("test_gone",)), Row("S2.2", "this", "that", ("test_it",))]
    tests = dict.fromkeys(("test_s2_1_it", "test_it", "test_s2_11_it"), False)
    (one,) = statements.judge([DOCUMENT], tests, rows)
    assert (one.tested, one.deviating, one.missing) == (("S2.11",), (), ("S2.1", "S2.2"))


def test_a_statement_of_which_a_part_is_not_built_is_later_and_nothing_else() -> None:
    rows = [Row("S2.11", "this", "that", ("test_s2_11_it",))]
    tests = {"test_s2_1_it": False, "test_s2_1_s2_11_rest": True, "test_s2_11_it": False}
    (one,) = statements.judge([DOCUMENT], tests, rows)
    assert (one.tested, one.deviating, one.later, one.missing) == (
        *((), ()),
        ("S2.1", "S2.11"),
        ("S2.2",),
    )


def test_the_table_counts_each_group() -> None:
    tests = {"test_s2_1_it": False, "test_s2_11_it": True}
    (one,) = statements.judge([DOCUMENT], tests, [])
    assert statements.table([one])[1].split() == ["S2", "3", "1", "0", "1", "1", "made", "up"]


def test_the_account_of_this_tree_can_be_printed() -> None:
    assert statements.main(["--missing"]) == 0
