"""Reports how much of the behaviour catalogue the tests cover, area by area.

The figures come from markers and tables alone: the ids in tests/catalogue.toml, the markers
`pytest.mark.case(...)` in the test sources, and the rows of docs/deviations.md. A test that is
expected to fail because a feature is not built makes its cases "later"; a feature that we lack
without such a test is "missing". Sources are parsed and never imported, so the report needs nothing
but the standard library.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LATER = re.compile(r"not built: \S")
ROW = re.compile(
    r"^\|\s*([A-Z]{2}-\d{3})\s*\|\s*(not applicable|deviates|missing)\s*\|\s*(\S.*?)\s*\|\s*$"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """One id claimed by one test; `later` when the test fails until a feature is built."""

    case_id: str
    where: str
    later: bool


@dataclass(frozen=True, slots=True)
class Coverage:
    """The ids of one area, each in exactly one of the four groups."""

    area: str
    covered: tuple[str, ...]
    not_applicable: tuple[str, ...]
    later: tuple[str, ...]
    missing: tuple[str, ...]


def read_catalogue(text: str) -> dict[str, tuple[str, ...]]:
    return {area: tuple(ids) for area, ids in tomllib.loads(text).items()}


def read_deviations(text: str) -> dict[str, str]:
    """The kind of each row by id: "not applicable", "deviates" or "missing". A row without a reason
    is no row."""
    rows = (ROW.match(line) for line in text.splitlines())
    return {row[1]: row[2] for row in rows if row}


def read_marks(source: str, name: str) -> list[Mark]:
    """The ids that the tests of one file claim, with its class and module markers passed down."""
    return list(marks_of(ast.parse(source, name), name, outer=[]))


def marks_of(
    scope: ast.Module | ast.ClassDef, name: str, *, outer: list[ast.Call]
) -> Iterator[Mark]:
    shared = [*outer, *assigned_markers(scope)]
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            inherited = [*shared, *calls_in(node.decorator_list)]
            yield from marks_of(node, name, outer=inherited)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from marks_of_test(node, name, shared)
        elif isinstance(node, ast.Assign) and (test := assigned_test(node)):
            calls = [*shared, *calls_in([node.value])]
            yield from marks_among(calls, f"{name}::{test}", later=is_later(calls))


def marks_of_test(
    node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, shared: list[ast.Call]
) -> Iterator[Mark]:
    """A parameter's own markers count for that parameter; all others for the whole test."""
    if not node.name.startswith("test_"):
        return
    decorators = calls_in(node.decorator_list)
    parameters = [call for call in decorators if ends_with(call.func, "param")]
    inside = {id(call) for parameter in parameters for call in calls_in([parameter])}
    own = [*shared, *(call for call in decorators if id(call) not in inside)]
    where = f"{name}::{node.name}"
    yield from marks_among(own, where, later=is_later(own))
    for parameter in parameters:
        calls = calls_in([parameter])
        yield from marks_among(calls, where, later=is_later([*own, *calls]))


def marks_among(calls: Iterable[ast.Call], where: str, *, later: bool) -> Iterator[Mark]:
    for call in calls:
        if ends_with(call.func, "mark", "case"):
            for argument in call.args:
                yield Mark(literal(argument, where), where, later)


def literal(argument: ast.expr, where: str) -> str:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    raise ValueError(f"{where}: the marker `case` takes literal ids, one string each")


def is_later(calls: Iterable[ast.Call]) -> bool:
    reasons = (
        keyword.value
        for call in calls
        if ends_with(call.func, "mark", "xfail")
        for keyword in call.keywords
        if keyword.arg == "reason"
    )
    return any(
        isinstance(reason, ast.Constant) and LATER.match(str(reason.value)) is not None
        for reason in reasons
    )


def assigned_test(node: ast.Assign) -> str:
    """The name of a test class that is marked where it is assigned, as state machines are."""
    names = (target.id for target in node.targets if isinstance(target, ast.Name))
    return next((name for name in names if name.startswith("Test")), "")


def assigned_markers(scope: ast.Module | ast.ClassDef) -> list[ast.Call]:
    values = (
        node.value
        for node in scope.body
        if isinstance(node, ast.Assign)
        and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        )
    )
    return calls_in(values)


def calls_in(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    return [call for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call)]


def ends_with(expression: ast.expr, *names: str) -> bool:
    """Whether a dotted name ends so: `pytest.mark.case` and `mark.case` both end mark, case."""
    if isinstance(expression, ast.Name):
        return names == (expression.id,)
    if not isinstance(expression, ast.Attribute) or expression.attr != names[-1]:
        return False
    return len(names) == 1 or ends_with(expression.value, *names[:-1])


def judge(
    catalogue: Mapping[str, tuple[str, ...]], marks: Iterable[Mark], rows: Mapping[str, str]
) -> list[Coverage]:
    """Sort every id of the catalogue into covered, not applicable, later or missing."""
    known = list(marks)
    covered = {mark.case_id for mark in known if not mark.later}
    later = {mark.case_id for mark in known} - covered
    silent = {case_id for case_id, kind in rows.items() if kind == "not applicable"}
    silent -= covered | later
    return [
        Coverage(
            area=area,
            covered=tuple(case_id for case_id in ids if case_id in covered),
            not_applicable=tuple(case_id for case_id in ids if case_id in silent),
            later=tuple(case_id for case_id in ids if case_id in later),
            missing=tuple(case_id for case_id in ids if case_id not in covered | later | silent),
        )
        for area, ids in catalogue.items()
    ]


def sources(root: Path) -> list[Path]:
    shipped = root / "src" / "flowfabric" / "testing"
    return sorted([*(root / "tests").rglob("*.py"), *shipped.rglob("*.py")])


def collect(root: Path) -> list[Mark]:
    return [
        mark
        for path in sources(root)
        for mark in read_marks(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())
    ]


def read_tree(root: Path) -> tuple[dict[str, tuple[str, ...]], list[Mark], dict[str, str]]:
    catalogue = read_catalogue((root / "tests" / "catalogue.toml").read_text(encoding="utf-8"))
    deviations = root / "docs" / "deviations.md"
    rows = read_deviations(deviations.read_text(encoding="utf-8")) if deviations.exists() else {}
    return catalogue, collect(root), rows


def table(report: list[Coverage]) -> list[str]:
    total = Coverage(
        area="all",
        covered=tuple(case_id for one in report for case_id in one.covered),
        not_applicable=tuple(case_id for one in report for case_id in one.not_applicable),
        later=tuple(case_id for one in report for case_id in one.later),
        missing=tuple(case_id for one in report for case_id in one.missing),
    )
    head = (
        f"{'area':4}  {'cases':>5}  {'covered':>7}  {'not applicable':>14}  {'later':>5}  missing"
    )
    return [head, *(line(one) for one in [*report, total])]


def line(one: Coverage) -> str:
    groups = (one.covered, one.not_applicable, one.later, one.missing)
    covered, silent, later, missing = (len(group) for group in groups)
    cases = covered + silent + later + missing
    return f"{one.area:4}  {cases:5}  {covered:7}  {silent:14}  {later:5}  {missing:7}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Coverage of the behaviour catalogue by area.")
    parser.add_argument("--missing", action="store_true", help="name the missing ids")
    parser.add_argument("--strict", nargs="+", default=[], metavar="AREA", help="fail if missing")
    options = parser.parse_args(arguments)
    catalogue, marks, rows = read_tree(ROOT)
    unknown = sorted(set(options.strict) - set(catalogue))
    if unknown:
        parser.error(f"no such area: {', '.join(unknown)}")
    report = judge(catalogue, marks, rows)
    print("\n".join(table(report)))
    if options.missing:
        for one in report:
            if one.missing:
                print(f"\nmissing in {one.area}: {' '.join(one.missing)}")
    return int(any(one.missing for one in report if one.area in options.strict))


if __name__ == "__main__":
    sys.exit(main())
