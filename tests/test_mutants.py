"""The mutation run: which faults it plants, on small inputs, and how it chooses."""

from pathlib import Path

import pytest

from tools.mutants import areas, known, python, query, trial
from tools.mutants.__main__ import sample
from tools.mutants.fault import Fault

ROOT = Path(__file__).resolve().parent.parent

PYTHON = {
    "a < b": {"a <= b"},
    "a is not b": {"a is b"},
    "a not in b": {"a in b"},
    "a and b": {"a or b"},
    "not a": {"(a)"},
    "c if a else b": {"c if (not a) else b"},
    "[x for x in y if x]": {"[x for x in y if (not x)]"},
    "f(500)": {"f(501)"},
    "f(is_open=True)": {"f(is_open=False)"},
    "zip(a, b, strict=True)": set(),
    "class A(frozen=True): b = 1": {"class A(frozen=True): b = 2"},
    "{'state': a, 'other': b}": {"{ 'other': b}"},
    "{'state': a}": {"{}"},
    "'ä' == b": {"'ä' != b"},
}


@pytest.mark.parametrize("source", PYTHON)
def test_faults_in_python(source: str) -> None:
    assert _planted(source, python.edits(source, {"state"})) == PYTHON[source]


SQL = {
    "SELECT 1 FROM t WHERE a = 1 AND b = 'x'": {
        "SELECT 1 FROM t WHERE 1 = 1 AND b = 'x'",
        "SELECT 1 FROM t WHERE a = 1 AND 1 = 1",
    },
    "SELECT 1 FROM t WHERE a <= 1": {
        "SELECT 1 FROM t WHERE 1 = 1",
        "SELECT 1 FROM t WHERE a < 1",
    },
    "SELECT 1 FROM t WHERE (a OR b) ORDER BY c": {
        "SELECT 1 FROM t WHERE 1 = 1 ORDER BY c",
        "SELECT 1 FROM t WHERE (a OR 1 = 1) ORDER BY c",
    },
    "SELECT 1 FROM t JOIN u ON t.a = u.a WHERE c": {
        "SELECT 1 FROM t JOIN u ON 1 = 1 WHERE c",
        "SELECT 1 FROM t JOIN u ON t.a = u.a WHERE 1 = 1",
    },
    "INSERT INTO t VALUES (1) ON CONFLICT (a) DO NOTHING": set(),
    "SELECT a -> '$.b', c::text FROM t -- WHERE it is": set(),
}


@pytest.mark.parametrize("statement", SQL)
def test_faults_in_sql(statement: str) -> None:
    text = f"-- name: a@sqlite\n{statement}\n"
    found = list(query.sql_edits(text))
    assert {dialect for dialect, _ in found} <= {"sqlite"}
    planted = _planted(text, [edit for _, edit in found])
    assert {each.split("\n")[1] for each in planted} == SQL[statement]


def test_faults_in_lua() -> None:
    text = "if a == 'x == y' and not b then -- a < b\n"
    assert _planted(text, list(query.lua_edits(text))) == {
        "if a ~= 'x == y' and not b then -- a < b\n",
        "if a == 'x == y' or not b then -- a < b\n",
        "if a == 'x == y' and b then -- a < b\n",
    }


def _planted(text: str, edits: list[tuple[int, int, str]]) -> set[str]:
    return {Fault("", *edit, "core").plant(text) for edit in edits}


def test_every_area_has_faults_and_a_sample_has_some_of_each() -> None:
    faults = areas.all_faults(ROOT)
    chosen = sample(faults, 25, seed=1)
    assert {fault.place for fault in chosen} == set(areas.STAGES)
    assert sample(faults, 25, seed=1) == chosen != sample(faults, 25, seed=2)


def test_an_equivalent_fault_is_named_by_its_line() -> None:
    text = "x = 1\nif a <  b:\n"
    fault = Fault("p.py", 11, 12, "<=", "core")
    (it,) = known.read_equivalents(
        "[[equivalent]]\npath = 'p.py'\nline = 'if a <  b:'\nold = '<'\nnew = '<='\nwhy = 'so'\n"
    )
    assert it.is_about(fault, text)
    assert not it.is_about(Fault("p.py", 11, 12, ">", "core"), text)


class Played(trial.Bench):
    """A bench whose runs answer what the test says, in turn."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.ran: list[tuple[str, ...]] = []

    def _run(self, stage: areas.Stage, *chosen: str) -> tuple[trial.Verdict, str]:
        self.ran.append(chosen)
        by = self._answers.pop(0)
        return (trial.Verdict.KILLED if by else trial.Verdict.SURVIVED), by


STAGE = ("tests/core",)
FAILED = "FAILED tests/core/test_a.py::test_b[c d]"
OTHER = "FAILED tests/core/test_a.py::test_e"


@pytest.mark.parametrize(
    ("answers", "by"),
    [
        ([""], ""),
        ([FAILED, FAILED], FAILED),
        ([FAILED, "", ""], ""),
        ([FAILED, "", OTHER, OTHER], OTHER),
        ([FAILED, "", OTHER, "", FAILED, ""], FAILED),
        ([trial.ITSELF], trial.ITSELF),
    ],
)
def test_a_test_that_failed_by_chance_notices_no_fault(answers: list[str], by: str) -> None:
    bench = Played(*answers)
    verdict = trial.Verdict.KILLED if by else trial.Verdict.SURVIVED
    assert bench._judge(STAGE) == (verdict, by)
    assert len(bench.ran) == len(answers)
    if answers[1:2] == [""]:
        test = FAILED.partition(" ")[2]
        assert bench.ran[1:3] == [(test,), (*STAGE, "--deselect", test)]


def test_the_first_failure_is_no_line_of_a_log() -> None:
    text = "ERROR    flowfabric.loop:loop.py:85 failed\n==== short test summary info ====\n"
    assert trial._first_failure(f"{text}{FAILED} - assert 1\n{OTHER}\n") == FAILED
    assert trial._first_failure("ERROR    flowfabric.loop:loop.py:85 failed\n") == trial.ITSELF


def test_what_is_called_equivalent_is_still_there() -> None:
    texts = {fault.path: (ROOT / fault.path).read_text() for fault in areas.all_faults(ROOT)}
    faults = areas.all_faults(ROOT)
    for each in known.load(ROOT):
        assert any(each.is_about(fault, texts[fault.path]) for fault in faults), each
        assert each.why
