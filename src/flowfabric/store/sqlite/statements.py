"""The named statements: filled for a number of rows, bound, run.

What many records need is made ready as parts, by whoever asks for it: the writing thread, which
all of them wait for, then has little to do in Python.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from flowfabric.store.columns import COLUMNS
from flowfabric.store.queries import statements
from flowfabric.store.sqlite.rows import Cell, Row, cells, chunks, row_marks

SQL = statements("sqlite")
ALL_COLUMNS = ", ".join(f"e.{name}" for name in COLUMNS)

_NUMBERED = re.compile(r"\?(\d+)")


@lru_cache(maxsize=256)
def plain(name: str, columns: str) -> tuple[str, tuple[int, ...]]:
    """The statement with plain marks, and which argument each takes.

    Some releases of Python warn when numbered marks are bound from a sequence.
    """
    text = SQL[name].format(columns=columns) if columns else SQL[name]
    order = tuple(int(number) - 1 for number in _NUMBERED.findall(text))
    return _NUMBERED.sub("?", text), order


def run(
    connection: sqlite3.Connection, name: str, *arguments: Cell, columns: str = ""
) -> sqlite3.Cursor:
    """A statement with numbered marks."""
    text, order = plain(name, columns)
    return connection.execute(text, [arguments[position] for position in order])


def one_text(connection: sqlite3.Connection, name: str, *arguments: Cell, columns: str = "") -> str:
    """The single JSON text that a reading statement answers."""
    text: str = run(connection, name, *arguments, columns=columns).fetchone()[0]
    return text


@lru_cache(maxsize=2048)
def _filled(name: str, width: int, count: int, names: tuple[str, ...] = ()) -> str:
    return SQL[name].format(
        rows=row_marks(width, count),
        names=", ".join(names),
        more="".join(f", {column}" for column in names),
        values=", ".join(f"new.{column}" for column in names),
        patch="".join(f"{column} = new.{column}, " for column in names),
        one=row_marks(1 + len(names), 1),
        alike="".join(f"{column} = (SELECT {column} FROM clock), " for column in names),  # noqa: S608
    )


class Statement(NamedTuple):
    """A statement and its cells; the first cell of a timed one is the time when it is run."""

    sql: str
    cells: Sequence[Cell]
    is_timed: bool = False


class Part(NamedTuple):
    """Statements, and how many rows they change together if all is as it was seen (None: any)."""

    statements: Sequence[Statement]
    changes: int | None = None


def one(name: str, *arguments: Cell) -> Statement:
    """A statement with numbered marks."""
    text, order = plain(name, "")
    return Statement(text, [arguments[position] for position in order])


def many(
    name: str,
    rows: Sequence[Row],
    *,
    names: tuple[str, ...] = (),
    first: Sequence[Cell] = (),
    is_timed: bool = False,
) -> list[Statement]:
    """One statement per chunk of rows; the cells of `first` go before those of the rows."""
    ahead = cells([first]) if first else []
    return [
        Statement(_filled(name, len(found) // size, size, names), ahead + found, is_timed)
        for size, found in chunks(rows)
    ]


def run_part(connection: sqlite3.Connection, part: Part, now_ms: int = 0) -> int:
    """Answers how many rows were changed."""
    # A cursor's own count is not kept for statements that begin with a WITH.
    before = connection.total_changes
    for statement in part.statements:
        timed = [now_ms, *statement.cells] if statement.is_timed else statement.cells
        connection.execute(statement.sql, timed)
    return connection.total_changes - before


def run_guarded(connection: sqlite3.Connection, parts: Iterable[Part], now_ms: int = 0) -> bool:
    """Run the parts, one after another, until one has not changed what it should have."""
    return all(part.changes in (None, run_part(connection, part, now_ms)) for part in parts)


def run_all(connection: sqlite3.Connection, parts: Iterable[Part], now_ms: int = 0) -> None:
    """Run parts of which it is known in this transaction that all is as it was seen."""
    if not run_guarded(connection, parts, now_ms):
        raise sqlite3.IntegrityError("guards that held did not hold")
