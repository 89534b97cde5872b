"""Accounts for the numbered statements of the source documents, document by document.

A statement is kept by tests whose names carry its number (`test_s2_11_...`), or it deviates by a
row of docs/deviations.md: number, what replaces it, whether that is stronger or weaker and why, the
tests. One that a test carries which is expected to fail is later, whatever else carries it: a part
of it is not built. All others are missing. Sources are parsed and never imported.
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
NUMBER = re.compile(r"(?<=_)s(\d)_(\d+)(?=_)")
ROW = re.compile(r"^\|\s*(S\d\.\d+)\s*\|\s*(\S[^|]*?)\s*\|\s*(\S[^|]*?)\s*\|\s*(\S[^|]*?)\s*\|\s*$")
TEST = re.compile(r"`(test_\w+)`")


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    title: str
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One statement that is not kept as it is written."""

    statement: str
    instead: str
    why: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Account:
    """The statements of one document, each in exactly one of the four groups."""

    document: Document
    tested: tuple[str, ...]
    deviating: tuple[str, ...]
    later: tuple[str, ...]
    missing: tuple[str, ...]


def read_documents(text: str) -> list[Document]:
    return [
        Document(
            name,
            str(about["title"]),
            tuple(f"{name}.{number}" for number in range(1, int(about["statements"]) + 1)),
        )
        for name, about in tomllib.loads(text).items()
    ]


def read_rows(text: str) -> list[Row]:
    """Rows of the table of statements; one without all four cells is no row."""
    found = (ROW.match(line) for line in text.splitlines())
    return [Row(row[1], row[2], row[3], tuple(TEST.findall(row[4]))) for row in found if row]


def numbers_in(test: str) -> set[str]:
    """The statements that the name of a test carries."""
    return {f"S{document}.{number}" for document, number in NUMBER.findall(test)}


def tests_in(source: str, name: str) -> dict[str, bool]:
    """The tests of a file, each with whether it, or one of its parameters, is expected to fail."""
    return dict(_tests(ast.parse(source, name), is_later=False))


def _tests(scope: ast.Module | ast.ClassDef, *, is_later: bool) -> Iterator[tuple[str, bool]]:
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node, is_later=is_later or _has_xfail(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node.name, is_later or _has_xfail(node)


def _has_xfail(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    inside = (each for decorator in node.decorator_list for each in ast.walk(decorator))
    return any(isinstance(each, ast.Attribute) and each.attr == "xfail" for each in inside)


def judge(
    documents: Iterable[Document], tests: Mapping[str, bool], rows: Iterable[Row]
) -> list[Account]:
    """A row stands only on tests that exist and carry its number."""
    kept: dict[str, set[str]] = {}
    later: set[str] = set()
    for test, is_later in tests.items():
        for number in numbers_in(test):
            kept.setdefault(number, set()).add(test)
            if is_later:
                later.add(number)
    standing = {row.statement for row in rows if kept.get(row.statement, set()) & {*row.tests}}
    tested = kept.keys() - {row.statement for row in rows}
    return [account(document, tested - later, standing - later, later) for document in documents]


def account(document: Document, tested: set[str], deviating: set[str], later: set[str]) -> Account:
    numbers = document.statements
    return Account(
        document,
        tested=tuple(number for number in numbers if number in tested),
        deviating=tuple(number for number in numbers if number in deviating),
        later=tuple(number for number in numbers if number in later),
        missing=tuple(number for number in numbers if number not in tested | deviating | later),
    )


def read_tree(root: Path) -> tuple[list[Document], dict[str, bool], list[Row]]:
    documents = read_documents((root / "tests" / "statements.toml").read_text(encoding="utf-8"))
    tests: dict[str, bool] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        tests |= tests_in(path.read_text(encoding="utf-8"), path.name)
    rows = read_rows((root / "docs" / "deviations.md").read_text(encoding="utf-8"))
    return documents, tests, rows


def table(report: Iterable[Account]) -> list[str]:
    head = (
        f"{'document':8}  {'statements':>10}  {'tested':>6}  {'deviating':>9}  {'later':>5}"
        "  missing  about"
    )
    return [head, *(line(one) for one in report)]


def line(one: Account) -> str:
    document = one.document
    groups = (one.tested, one.deviating, one.later, one.missing)
    tested, deviating, later, missing = (len(group) for group in groups)
    return (
        f"{document.name:8}  {len(document.statements):10}  {tested:6}  {deviating:9}  {later:5}"
        f"  {missing:7}  {document.title}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Account of the source documents' statements.")
    parser.add_argument("--missing", action="store_true", help="name what is later or missing")
    parser.add_argument("--strict", nargs="+", default=[], metavar="S0", help="fail if missing")
    options = parser.parse_args(arguments)
    report = judge(*read_tree(ROOT))
    unknown = sorted(set(options.strict) - {one.document.name for one in report})
    if unknown:
        parser.error(f"no such document: {', '.join(unknown)}")
    print("\n".join(table(report)))
    if options.missing:
        for one in report:
            for word, group in (("later", one.later), ("missing", one.missing)):
                if group:
                    print(f"\n{word} in {one.document.name}: {' '.join(group)}")
    return int(any(one.missing for one in report if one.document.name in options.strict))


if __name__ == "__main__":
    sys.exit(main())
