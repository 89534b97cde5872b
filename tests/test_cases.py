"""The report on the behaviour catalogue: its parser on small inputs, its inputs in this tree."""

import ast
import re
from textwrap import dedent

import pytest

from tools import cases
from tools.cases import Coverage, Mark

CATALOGUE = {"LC": ("LC-001", "LC-002", "LC-003"), "RT": ("RT-001",)}


def marks(source: str) -> list[tuple[str, bool]]:
    found = cases.read_marks(dedent(source), "tests/made_up.py")
    return sorted((mark.case_id, mark.later) for mark in found)


def mark(case_id: str, *, later: bool = False) -> Mark:
    return Mark(case_id, "tests/made_up.py::test_it", later)


def test_a_marker_on_a_test_names_its_cases() -> None:
    source = """
        @pytest.mark.case("LC-001", "LC-002")
        @pytest.mark.case("RT-001")
        async def test_it(): ...
    """
    assert marks(source) == [("LC-001", False), ("LC-002", False), ("RT-001", False)]


def test_markers_of_module_and_class_reach_every_test_in_them() -> None:
    source = """
        pytestmark = [pytest.mark.lab, pytest.mark.case("LC-001")]

        @pytest.mark.case("LC-002")
        class TestIt:
            pytestmark = pytest.mark.case("LC-003")

            def test_one(self): ...
    """
    assert marks(source) == [("LC-001", False), ("LC-002", False), ("LC-003", False)]


def test_a_marker_without_a_test_covers_nothing() -> None:
    source = """
        pytestmark = pytest.mark.case("LC-001")

        @pytest.mark.case("LC-002")
        def build(): ...
    """
    assert marks(source) == []


def test_a_state_machine_is_marked_where_its_test_class_is_assigned() -> None:
    source = 'TestMachine = pytest.mark.case("LC-001")(Machine.TestCase)'
    assert marks(source) == [("LC-001", False)]


def test_a_marker_in_a_comment_or_string_covers_nothing() -> None:
    source = """
        # @pytest.mark.case("LC-001")
        def test_it():
            text = '@pytest.mark.case("LC-002")'
    """
    assert marks(source) == []


def test_a_test_of_a_feature_that_is_not_built_is_later() -> None:
    source = """
        @pytest.mark.xfail(strict=True, reason="not built: flows")
        @pytest.mark.case("LC-001")
        def test_it(): ...
    """
    assert marks(source) == [("LC-001", True)]


@pytest.mark.parametrize("reason", ["flaky", "step 3: flows", "not built", "not built: "])
def test_an_expected_failure_for_another_reason_is_not_later(reason: str) -> None:
    source = f"""
        @pytest.mark.xfail(reason="{reason}")
        @pytest.mark.case("LC-001")
        def test_it(): ...
    """
    assert marks(source) == [("LC-001", False)]


def test_a_parameter_is_later_on_its_own() -> None:
    source = """
        @pytest.mark.case("LC-001")
        @pytest.mark.parametrize("x", [
            pytest.param(1, marks=pytest.mark.case("LC-002")),
            pytest.param(2, marks=[
                pytest.mark.case("LC-003"), pytest.mark.xfail(reason="not built: more stores"),
            ]),
        ])
        def test_it(x): ...
    """
    assert marks(source) == [("LC-001", False), ("LC-002", False), ("LC-003", True)]


@pytest.mark.parametrize("argument", ["*IDS", "NAME", 'f"LC-{n}"', "1"])
def test_an_id_that_is_not_literal_is_refused(argument: str) -> None:
    source = f"@pytest.mark.case({argument})\ndef test_it(): ..."
    with pytest.raises(ValueError, match=re.escape("tests/made_up.py::test_it")):
        cases.read_marks(source, "tests/made_up.py")


def test_rows_of_the_deviations_are_read_by_kind() -> None:
    text = dedent("""
        | case | kind | what |
        |---|---|---|
        | LC-001 | not applicable | there is no such call |
        | LC-002 | deviates | ends at once, test_it |
        | LC-003 | not applicable | |
        | LC-004 | unsure | why |
        LC-005 | not applicable | not a row |
        | LC-006 | missing | nobody has built it |
    """)
    assert cases.read_deviations(text) == {
        "LC-001": "not applicable",
        "LC-002": "deviates",
        "LC-006": "missing",
    }


def test_a_feature_that_we_lack_is_missing_and_not_silent() -> None:
    report = cases.judge(CATALOGUE, [mark("LC-001"), mark("LC-002")], {"LC-003": "missing"})
    assert (report[0].not_applicable, report[0].missing) == ((), ("LC-003",))


def test_every_case_lands_in_exactly_one_group() -> None:
    rows = {"LC-002": "not applicable", "LC-003": "deviates"}
    report = cases.judge(CATALOGUE, [mark("LC-001"), mark("RT-001", later=True)], rows)
    assert report == [
        Coverage("LC", ("LC-001",), ("LC-002",), (), ("LC-003",)),
        Coverage("RT", (), (), ("RT-001",), ()),
    ]


def test_a_deviation_with_a_test_is_covered() -> None:
    report = cases.judge(CATALOGUE, [mark("LC-003")], {"LC-003": "deviates"})
    assert report[0].covered == ("LC-003",)


def test_a_case_is_covered_as_soon_as_one_of_its_tests_passes() -> None:
    found = [mark("LC-001", later=True), mark("LC-001")]
    report = cases.judge(CATALOGUE, found, {})
    assert (report[0].covered, report[0].later) == (("LC-001",), ())


def test_the_table_adds_up() -> None:
    report = cases.judge(CATALOGUE, [mark("LC-001")], {"LC-002": "not applicable"})
    figures = [line.split()[1:] for line in cases.table(report)[1:]]
    assert figures == [
        ["3", "1", "1", "0", "1"],
        ["1", "0", "0", "0", "1"],
        ["4", "1", "1", "0", "2"],
    ]


def test_a_strict_area_fails_only_when_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = (CATALOGUE, [mark("RT-001")], {"LC-001": "not applicable"})
    monkeypatch.setattr(cases, "read_tree", lambda root: tree)
    assert cases.main(["--strict", "RT"]) == 0
    assert cases.main([]) == 0
    assert "missing in" not in capsys.readouterr().out
    assert cases.main(["--missing", "--strict", "RT", "LC"]) == 1
    assert "missing in LC: LC-002 LC-003" in capsys.readouterr().out


def test_an_unknown_strict_area_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cases.main(["--strict", "ZZ"])
    assert "no such area: ZZ" in capsys.readouterr().err


def test_the_catalogue_names_every_case_once_and_under_its_area() -> None:
    catalogue, _, _ = cases.read_tree(cases.ROOT)
    ids = [case_id for found in catalogue.values() for case_id in found]
    assert len(ids) == len(set(ids)) == 451
    for area, found in catalogue.items():
        assert all(re.fullmatch(rf"{area}-\d{{3}}", case_id) for case_id in found)


def test_markers_and_deviations_name_only_cases_of_the_catalogue() -> None:
    catalogue, found, rows = cases.read_tree(cases.ROOT)
    known = {case_id for ids in catalogue.values() for case_id in ids}
    assert [mark for mark in found if mark.case_id not in known] == []
    assert set(rows) - known == set()


def test_no_case_is_both_tested_and_not_applicable_or_missing() -> None:
    _, found, rows = cases.read_tree(cases.ROOT)
    silent = {case_id for case_id, kind in rows.items() if kind != "deviates"}
    assert [mark for mark in found if mark.case_id in silent] == []


def test_every_expected_failure_names_the_feature_that_is_not_built() -> None:
    marked = [
        (path.name, call)
        for path in cases.sources(cases.ROOT)
        for call in cases.calls_in([ast.parse(path.read_text(encoding="utf-8"))])
        if cases.ends_with(call.func, "mark", "xfail")
    ]
    assert marked
    assert [name for name, call in marked if not cases.is_later([call])] == []
