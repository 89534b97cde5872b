"""Which files can have which faults, and which tests should see them.

Tests are tried in stages, the nearest first; a fault that one stage notices needs no other.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tools.mutants.fault import Fault, read
from tools.mutants.python import edits
from tools.mutants.query import lua_edits, sql_edits

SOURCE = "src/flowfabric"
RECORDS = ("core/model.py", "core/flow/model.py")
# What only tells people something, or is a table that a test compares with another.
LEFT_OUT = ("telemetry.py", "dispatch_log.py", "__init__.py")

Stage = tuple[str, ...]

QUICK = "not lab and not package"
PURE: Stage = ("tests/core",)
MODEL: Stage = ("tests/core", "tests/engine", "tests/flow", "tests/store", "-k", "memory")
ABOVE: Stage = (
    *("tests/engine", "tests/flow", "tests/worker", "tests/client", "tests/app", "tests/testing"),
    *("-k", "not postgres and not valkey"),
)


def _kind(name: str) -> list[Stage]:
    """The contract of stores, then everything else that runs on this one."""
    chosen = f"{name} and not valkey-cluster" if name == "valkey" else name
    contract = "tests/store/test_conformance.py"
    return [
        (contract, "-k", chosen),
        ("tests/store", f"--ignore={contract}", "-k", chosen),
        ("tests/flow", "tests/engine", "tests/app", "-k", chosen),
    ]


STAGES: dict[str, list[Stage]] = {
    "core": [PURE, MODEL, ABOVE],
    "engine": [MODEL, ABOVE],
    "sqlite": _kind("sqlite"),
    "postgres": _kind("postgres"),
    "lua": _kind("valkey"),
}


def all_faults(root: Path) -> list[Fault]:
    return sorted([*_python(root, "core"), *_python(root, "engine"), *_sql(root), *_lua(root)])


def _python(root: Path, area: str) -> list[Fault]:
    names = columns(root)
    return [
        Fault(path, start, end, new, area)
        for path in _paths(root, f"{SOURCE}/{area}", ".py")
        if not path.endswith(LEFT_OUT)
        for start, end, new in edits(read(root, path), names)
    ]


def _sql(root: Path) -> list[Fault]:
    return [
        Fault(path, *edit, dialect)
        for path in _paths(root, f"{SOURCE}/store/sql", ".sql")
        if "/migrations/" not in path
        for dialect, edit in sql_edits(read(root, path))
    ]


def _lua(root: Path) -> list[Fault]:
    return [
        Fault(path, *edit, "lua")
        for path in _paths(root, f"{SOURCE}/store/lua", ".lua")
        for edit in lua_edits(read(root, path))
    ]


def _paths(root: Path, folder: str, ending: str) -> list[str]:
    found = (root / folder).rglob(f"*{ending}")
    return sorted(str(path.relative_to(root)) for path in found)


def columns(root: Path) -> set[str]:
    """The fields of the stored records: what a patch can name."""
    found: set[str] = set()
    for path in RECORDS:
        tree = ast.parse(read(root, f"{SOURCE}/{path}"))
        found |= {
            field.target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
    return found
