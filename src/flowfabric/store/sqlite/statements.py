"""Running the named statements: filled for a number of rows, bound, one trip for many records."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import lru_cache

from flowfabric.store.columns import COLUMNS
from flowfabric.store.queries import statements
from flowfabric.store.sqlite.rows import Cell, Row, cells, chunks, row_marks

SQL = statements("sqlite")
ALL_COLUMNS = ", ".join(f"e.{name}" for name in COLUMNS)

_NUMBERED = re.compile(r"\?(\d+)")


@lru_cache(maxsize=256)
def _plain(name: str, columns: str) -> tuple[str, tuple[int, ...]]:
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
    text, order = _plain(name, columns)
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


def run_many(
    connection: sqlite3.Connection,
    name: str,
    rows: Sequence[Row],
    *,
    names: tuple[str, ...] = (),
    first: Sequence[Cell] = (),
) -> int:
    """One statement per chunk of rows; answers how many rows were changed."""
    if not rows:
        return 0
    # A cursor's own count is not kept for statements that begin with a WITH.
    before = connection.total_changes
    ahead = cells([first])
    for size, found in chunks(rows):
        sql = _filled(name, len(found) // size, size, names)
        connection.execute(sql, ahead + found)
    return connection.total_changes - before
