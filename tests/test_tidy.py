"""The tree keeps its own rules of size, naming and wording; tidy_rules.py holds the rules.

Each rule is asked about the files of the checkout, and once about a planted violation, so that a
rule which no longer finds anything is noticed.
"""

import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import tidy_rules as rules
from tests.tidy_rules import Source

ROOT = Path(__file__).resolve().parent.parent
Rule = Callable[[Source], Iterator[str]]


def tracked() -> list[str]:
    """Files of the checkout, new ones included; without git, every file outside hidden folders."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and (ROOT / ".git").exists():
        return listed.stdout.splitlines()
    return [
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*")
        if not {".venv", ".cache", "dist", "__pycache__"}.intersection(path.parts)
    ]


@cache
def files() -> tuple[Source, ...]:
    """Every text file of the checkout; what does not decode is no text."""
    found = []
    for name in sorted(set(tracked())):
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            found.append(Source(name, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return tuple(found)


def under(*folders: str, suffix: str = ".py") -> list[Source]:
    return [
        source
        for source in files()
        if source.path.endswith(suffix) and source.path.startswith(folders)
    ]


def code() -> list[Source]:
    return under("src/", "tests/", "tools/", "examples/")


def package() -> list[Source]:
    return under("src/")


def sql() -> list[Source]:
    return under("src/", suffix=".sql")


def named_sql() -> list[Source]:
    """Migrations are applied whole and in order, so their statements carry no names."""
    return [source for source in sql() if "/migrations/" not in source.path]


# Rules that read the syntax of a file; to parse it takes longer than to judge it.
SYNTAX: tuple[Rule, ...] = (
    rules.long_function,
    rules.many_positional,
    rules.history,
    rules.sleeps,
    rules.skips,
    rules.unsafe_code,
    rules.prints,
    rules.impure_ids,
    rules.decisions_in_store,
    rules.loose_types,
    rules.added_await,
    rules.no_docstring,
)


@cache
def places() -> dict[tuple[Rule, str], list[str]]:
    """What these rules find, file by file, so that each is parsed once."""
    return {(rule, source.path): list(rule(source)) for source in code() for rule in SYNTAX}


def broken(rule: Rule, sources: list[Source]) -> list[str]:
    known = places() if rule in SYNTAX else {}
    found = (known.get((rule, source.path)) for source in sources)
    return [
        place
        for source, seen in zip(sources, found, strict=True)
        for place in (rule(source) if seen is None else seen)
    ]


def test_the_walk_finds_the_tree() -> None:
    names = {source.path for source in files()}
    assert {"pyproject.toml", "tests/test_tidy.py", "src/flowfabric/errors.py"} <= names


def test_files_are_short() -> None:
    assert broken(rules.long_file, code()) == []


def test_functions_are_short() -> None:
    assert broken(rules.long_function, code()) == []


def test_functions_take_few_positional_parameters() -> None:
    assert broken(rules.many_positional, code()) == []


def test_modules_are_named_by_what_lives_there() -> None:
    assert broken(rules.vague_module, code()) == []


def test_nothing_is_marked_unfinished() -> None:
    assert broken(rules.unfinished, [*code(), *sql()]) == []


def test_comments_speak_of_the_present() -> None:
    assert broken(rules.history, [*code(), *sql()]) == []


def test_the_type_checker_is_not_silenced() -> None:
    assert broken(rules.silenced_types, package()) == []


def test_tests_do_not_sleep() -> None:
    assert broken(rules.sleeps, under("tests/", "src/flowfabric/testing/")) == []


def test_tests_are_not_skipped() -> None:
    assert broken(rules.skips, under("tests/", "src/flowfabric/testing/")) == []


def test_nothing_is_unpickled_or_evaluated() -> None:
    assert broken(rules.unsafe_code, package()) == []


def test_only_the_command_line_prints() -> None:
    rooms = [one for one in package() if not one.path.startswith("src/flowfabric/cli/")]
    assert broken(rules.prints, rooms) == []


def test_the_core_makes_no_ids_of_its_own() -> None:
    assert broken(rules.impure_ids, under("src/flowfabric/core/")) == []


def test_stores_import_the_words_of_the_core_and_none_of_its_rules() -> None:
    assert broken(rules.decisions_in_store, under("src/flowfabric/store/")) == []


def test_only_codecs_know_values_of_any_type() -> None:
    rooms = [one for one in package() if one.name != "codec.py"]
    assert broken(rules.loose_types, rooms) == []


def test_no_await_inside_an_addition_to_a_name() -> None:
    assert broken(rules.added_await, code()) == []


def test_modules_say_what_lives_there() -> None:
    assert broken(rules.no_docstring, package()) == []


def test_text_names_no_machine_and_no_registry() -> None:
    assert broken(rules.machine_words, list(files())) == []


def test_locked_requirements_are_hashed_and_name_no_address() -> None:
    locked = under("requirements/", suffix=".txt")
    assert {source.name for source in locked} >= {"base.txt", "build.txt", "dev.txt"}
    assert broken(rules.loose_requirement, locked) == []


def test_the_package_has_few_public_names() -> None:
    assert broken(rules.many_public_names, under("src/flowfabric/__init__.py")) == []


def test_sql_statements_are_named_and_opened_by_a_sentence() -> None:
    assert broken(rules.unnamed_sql, named_sql()) == []


def test_sql_statements_are_short() -> None:
    assert broken(rules.long_statement, named_sql()) == []


def test_every_sql_statement_is_used() -> None:
    users = "\n".join(source.text for source in under("src/flowfabric/store/"))
    assert broken(lambda source: rules.unused_statement(source, users), named_sql()) == []


LONG = "x = 1\n" * 501
LONG_BODY = "def f():\n" + "    x = 1\n" * 60
LONG_SQL = "-- name: claim\n-- Takes rows.\n" + "SELECT 1\n" * 60
MANY = "__all__ = " + repr([f"name_{number}" for number in range(rules.PUBLIC_NAMES_MAX + 1)])
LOCKED = f"rich==15.0.0 \\\n    --hash=sha256:{'0' * 64}\n    # via typer\n"
HOST = "pypi" + ".org"
PLANTED: list[tuple[Rule, str, str]] = [
    (rules.long_file, "src/a.py", LONG),
    (rules.long_function, "src/a.py", LONG_BODY),
    (rules.long_function, "src/a.py", "async " + LONG_BODY),
    (rules.many_positional, "src/a.py", "def f(a, b, c, d, e): ..."),
    (rules.many_positional, "src/a.py", "class A:\n    def f(self, a, b, c, d, e, /): ..."),
    (rules.vague_module, "src/flowfabric/_utils.py", ""),
    (rules.vague_module, "src/flowfabric/common/ids.py", ""),
    (rules.unfinished, "src/a.py", "x = 1  # TO" + "DO later"),
    (rules.unfinished, "src/a.sql", "-- FIX" + "ME"),
    (rules.history, "src/a.py", "x = 1  # as issue 12 asks"),
    (rules.history, "src/a.py", "x = 1  # see #12"),
    (rules.history, "src/a.py", '"""What RFC-009 says."""'),
    (rules.history, "src/a.py", "x = 1  # finding F12"),
    (rules.history, "src/a.py", "def f():\n    '''House rule, §3.9.'''"),
    (rules.history, "src/a.py", "x = 1  # since 2024-01"),
    (rules.history, "src/a.sql", "-- PR 7 changed this"),
    (rules.silenced_types, "src/a.py", "x = 1  # type: ignore[assignment]"),
    (rules.sleeps, "tests/a.py", "import time\ntime.sleep(1)"),
    (rules.sleeps, "tests/a.py", "async def f():\n    await asyncio.sleep(0.1)"),
    (rules.sleeps, "tests/a.py", "async def f():\n    await asyncio.sleep(delay)"),
    (rules.skips, "tests/a.py", "@pytest.mark.skipif(True, reason='')\ndef test_a(): ..."),
    (rules.unsafe_code, "src/a.py", "import pickle"),
    (rules.unsafe_code, "src/a.py", "from pickle import loads"),
    (rules.unsafe_code, "src/a.py", "eval('1')"),
    (rules.prints, "src/a.py", "print('here')"),
    (rules.impure_ids, "src/a.py", "import uuid\nx = uuid.uuid4()"),
    (rules.impure_ids, "src/a.py", "from uuid import uuid4"),
    (rules.decisions_in_store, "src/a.py", "from flowfabric.core import lifecycle"),
    (rules.decisions_in_store, "src/a.py", "from flowfabric.core.settle import settle"),
    (rules.decisions_in_store, "src/a.py", "import flowfabric.core.timers"),
    (rules.loose_types, "src/a.py", "from typing import Any, cast"),
    (rules.loose_types, "src/a.py", "import typing\nx: typing.Any = 1"),
    (rules.added_await, "src/a.py", "async def f(x):\n    x += await g()"),
    (rules.no_docstring, "src/a.py", "x = 1"),
    (rules.machine_words, "README.md", "unpack it into /home" + "/someone/flows"),
    (rules.machine_words, "requirements/a.txt", f"--index-url {HOST}/simple"),
    (rules.loose_requirement, "requirements/a.txt", "--index-url x\n" + LOCKED),
    (rules.loose_requirement, "requirements/a.txt", "rich>=13\n" + LOCKED),
    (rules.loose_requirement, "requirements/a.txt", LOCKED + "    --find-links http://x\n"),
    (rules.many_public_names, "src/flowfabric/__init__.py", MANY),
    (rules.unnamed_sql, "src/a.sql", "SELECT 1;"),
    (rules.unnamed_sql, "src/a.sql", "-- name: claim\nSELECT 1;"),
    (rules.unnamed_sql, "src/a.sql", "-- name: claim\n-- takes rows\nSELECT 1;"),
    (rules.unnamed_sql, "src/a.sql", "-- name: Claim!\n-- Takes rows.\nSELECT 1;"),
    (rules.unnamed_sql, "src/a.sql", "-- name: claim\n-- Takes rows.\nSELECT 1;\nSELECT 2;"),
    (rules.long_statement, "src/a.sql", LONG_SQL),
    (lambda source: rules.unused_statement(source, "'other'"), "src/a.sql", LONG_SQL),
]


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED)
def test_a_planted_violation_is_found(rule: Rule, path: str, text: str) -> None:
    assert len(list(rule(Source(path, text)))) == 1


ALLOWED: list[tuple[Rule, str, str]] = [
    (rules.long_file, "src/flowfabric/store/protocol.py", LONG),
    (rules.many_positional, "src/a.py", "def f(a, b, c, d, *, e, g): ..."),
    (rules.many_positional, "tests/a.py", "def test_a(a, b, c, d, e): ..."),
    (rules.many_positional, "src/a.py", "@overload\ndef f(a, b, c, d, e): ..."),
    (rules.silenced_types, "src/a.py", "def f():  # type: ignore[overload-overlap]\n    ..."),
    (rules.many_positional, "tests/a.py", "@pytest.fixture\ndef store(a, b, c, d, e): ..."),
    (rules.history, "src/a.py", 'COLOUR = "#123456"  # a light blue'),
    (rules.history, "src/a.py", 'START = "2024-01-01"'),
    (rules.sleeps, "tests/a.py", "async def f():\n    await asyncio.sleep(0)"),
    (rules.decisions_in_store, "src/a.py", "from flowfabric.core.model import Execution"),
    (rules.decisions_in_store, "src/a.py", "from flowfabric.core import ids, states"),
    (rules.machine_words, "README.md", "the file is ./home/flows.db or https://example.org/root"),
    (rules.loose_requirement, "requirements/a.txt", LOCKED + LOCKED),
    (rules.unnamed_sql, "src/a.sql", "-- Claims.\n\n-- name: claim\n-- Takes rows.\nSELECT 1;"),
    (rules.unnamed_sql, "src/a.sql", "-- name: claim@sqlite\n-- Takes rows.\nSELECT 1"),
    (lambda source: rules.unused_statement(source, 'run("claim")'), "src/a.sql", LONG_SQL),
]


@pytest.mark.parametrize(("rule", "path", "text"), ALLOWED)
def test_what_only_looks_like_a_violation_is_allowed(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []
