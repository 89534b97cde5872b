"""Accounts for the numbered statements of the source documents, document by document.

A statement is kept by tests whose names carry its number (`test_s2_11_...`), or it deviates by a
row of docs/deviations.md: number, what replaces it, why it is stronger, the tests. Whatever is
neither is missing. Sources are parsed and never imported.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
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
    """The statements of one document, each in exactly one of the three groups."""

    document: Document
    tested: tuple[str, ...]
    deviating: tuple[str, ...]
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


def tests_in(source: str, name: str) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(source, name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def judge(
    documents: Iterable[Document], tests: Iterable[str], rows: Iterable[Row]
) -> list[Account]:
    """A row stands only on tests that exist and carry its number."""
    kept: dict[str, set[str]] = {}
    for test in tests:
        for number in numbers_in(test):
            kept.setdefault(number, set()).add(test)
    deviating = {row.statement for row in rows if kept.get(row.statement, set()) & {*row.tests}}
    rowed = {row.statement for row in rows}
    return [account(document, kept, deviating, rowed) for document in documents]


def account(
    document: Document, kept: Mapping[str, set[str]], deviating: set[str], rowed: set[str]
) -> Account:
    tested = {number for number in document.statements if number in kept} - rowed
    return Account(
        document,
        tested=tuple(number for number in document.statements if number in tested),
        deviating=tuple(number for number in document.statements if number in deviating),
        missing=tuple(n for n in document.statements if n not in tested | deviating),
    )


def read_tree(root: Path) -> tuple[list[Document], set[str], list[Row]]:
    documents = read_documents((root / "tests" / "statements.toml").read_text(encoding="utf-8"))
    tests = {
        test
        for path in sorted((root / "tests").rglob("test_*.py"))
        for test in tests_in(path.read_text(encoding="utf-8"), path.name)
    }
    rows = read_rows((root / "docs" / "deviations.md").read_text(encoding="utf-8"))
    return documents, tests, rows


def table(report: Iterable[Account]) -> list[str]:
    head = f"{'document':8}  {'statements':>10}  {'tested':>6}  {'deviating':>9}  missing  about"
    return [head, *(line(one) for one in report)]


def line(one: Account) -> str:
    document = one.document
    tested, deviating, missing = len(one.tested), len(one.deviating), len(one.missing)
    return (
        f"{document.name:8}  {len(document.statements):10}  {tested:6}  {deviating:9}"
        f"  {missing:7}  {document.title}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Account of the source documents' statements.")
    parser.add_argument("--missing", action="store_true", help="name the missing statements")
    parser.add_argument("--strict", nargs="+", default=[], metavar="S0", help="fail if missing")
    options = parser.parse_args(arguments)
    report = judge(*read_tree(ROOT))
    unknown = sorted(set(options.strict) - {one.document.name for one in report})
    if unknown:
        parser.error(f"no such document: {', '.join(unknown)}")
    print("\n".join(table(report)))
    if options.missing:
        for one in report:
            if one.missing:
                print(f"\nmissing in {one.document.name}: {' '.join(one.missing)}")
    return int(any(one.missing for one in report if one.document.name in options.strict))


if __name__ == "__main__":
    sys.exit(main())
