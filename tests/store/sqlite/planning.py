"""Every statement of SQLite filled as the store fills it, and its plan in few words. No tests."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from flowfabric.store.columns import ATTEMPT_COLUMNS, MEMBER_COLUMNS
from flowfabric.store.sqlite import file
from flowfabric.store.sqlite.flow_rows import (
    ALL_OF_EDGE,
    ALL_OF_FLOW,
    ALL_OF_GROUP,
    ALL_OF_LINE,
    EDGE_NAMES,
    FLOW_NAMES,
    GROUP_NAMES,
    LINE_NAMES,
)
from flowfabric.store.sqlite.rows import SIZES
from flowfabric.store.sqlite.statements import ALL_COLUMNS, SQL, _filled

# By the first word of a statement's name what `{columns}` stands for.
_COLUMNS = {
    "execution": ALL_COLUMNS,
    "flow": ALL_OF_FLOW,
    "edge": ALL_OF_EDGE,
    "group": ALL_OF_GROUP,
    "line": ALL_OF_LINE,
}
_PATCH = ("state", "due_ms")
_FLOW_PATCH = ("completed", "busy_until_ms")
# By statement the columns that it is filled with, and how many cells one of its rows has.
_ROWS: dict[str, tuple[tuple[str, ...], int]] = {
    "execution_insert": (MEMBER_COLUMNS, len(MEMBER_COLUMNS)),
    "payload_insert": ((), 2),
    "execution_patch_held": (_PATCH, 6),
    "execution_patch_held_alike": (_PATCH, 4),
    "execution_patch_seen": (_PATCH, 4),
    "execution_patch_seen_alike": (_PATCH, 2),
    "attempt_upsert": (ATTEMPT_COLUMNS, 1 + len(ATTEMPT_COLUMNS)),
    "tag_upsert": ((), 3),
    "idempotency_upsert": ((), 5),
    "log_append": ((), 3),
    "flow_insert": (FLOW_NAMES, len(FLOW_NAMES)),
    "flow_patch": (_FLOW_PATCH, 4),
    "flow_present": ((), 1),
    "line_upsert": (LINE_NAMES, len(LINE_NAMES)),
    "line_delete": ((), 3),
    "edge_insert": (EDGE_NAMES, len(EDGE_NAMES)),
    "edge_resolve": ((), 9),
    "document_put": ((), 7),
    "document_delete": ((), 3),
    "document_word_delete": ((), 3),
    "document_word_insert": ((), 4),
    "group_upsert": (GROUP_NAMES, len(GROUP_NAMES)),
    "entry_append": ((), 8),
    "entry_insert": ((), 5),
}
_STEP = re.compile(r"(SEARCH|SCAN) (\w+)(?: USING (.*?))?(?: LEFT-JOIN)?$")
_BY = re.compile(r"(?:COVERING )?(?:INDEX )?(.*)")

Statistics = list[tuple[str, str, str]]


def texts(name: str) -> Iterator[str]:
    """The statement for one row and for as many as it ever has; most have no rows."""
    text = SQL[name]
    if "{rows}" in text:
        names, width = _ROWS[name]
        for count in (SIZES[0], SIZES[-1]):
            yield _filled(name, width, count, names)
    elif "{columns}" in text:
        yield text.format(columns=_COLUMNS[name.partition("_")[0]])
    else:
        yield text


def plan_of(connection: sqlite3.Connection, text: str) -> tuple[str, ...]:
    """How each table is gone through, and whether anything is sorted; each step once."""
    plain = re.sub(r"\?\d+", "?", text)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {plain}", [None] * plain.count("?")).fetchall()
    steps = [row[3] for row in rows]
    made = {step.split()[1] for step in steps if step.startswith(("MATERIALIZE", "CO-ROUTINE"))}
    aliases = {alias: table for table, alias in re.findall(r"(\w+) AS (\w+)", text)}
    told = {_told(step, _tables(connection), aliases) for step in steps} - {""}
    # What a statement made up itself is gone through from end to end, whatever its name.
    return tuple(sorted(told - {f"walks {aliases.get(name, name)}" for name in made}))


def _tables(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    return {name for (name,) in rows}


def _told(step: str, tables: set[str], aliases: dict[str, str]) -> str:
    # Older versions name a table and its alias.
    step = re.sub(r"TABLE (\w+ AS )?(?=\w)", "", step) if " TABLE " in step[:12] else step
    if "TEMP B-TREE" in step:
        return "sorts"
    found = _STEP.match(step)
    if found is None or "VIRTUAL TABLE" in step:
        return ""
    table = aliases.get(found[2], found[2])
    if table not in tables:
        return ""
    if found[3] is None:
        return f"walks {table}"
    by = _BY.match(found[3])
    way = "" if by is None else by[1]
    return f"{table} by {way}" if found[1] == "SEARCH" else f"walks {table} by {way}"


def new_file(path: Path) -> sqlite3.Connection:
    """A store's file as a store opens it; what its own connections plan by."""
    file.claim_file(str(path))
    connection = file.connect(str(path), "NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    file.prepare(connection, None)
    connection.execute("COMMIT")
    return connection


def write_statistics(path: Path, statistics: Statistics) -> None:
    """As another program's ANALYZE would."""
    other = sqlite3.connect(path)
    with other:
        other.execute("ANALYZE")
        other.execute("DELETE FROM sqlite_stat1")
        other.executemany("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", statistics)
    other.close()


def indexes(connection: sqlite3.Connection) -> dict[str, tuple[str, int]]:
    """By the name that statistics use: the table, and how many columns the index has."""
    found: dict[str, tuple[str, int]] = {}
    rows = connection.execute("SELECT name, tbl_name FROM sqlite_schema WHERE type = 'index'")
    for name, table in rows.fetchall():
        columns = connection.execute("SELECT count(*) FROM pragma_index_info(?)", [name])
        found[name] = table, columns.fetchone()[0]
    for table in _tables(connection) - {"sqlite_stat1", "sqlite_sequence"}:
        keys = connection.execute("SELECT count(*) FROM pragma_table_info(?) WHERE pk", [table])
        found.setdefault(table, (table, keys.fetchone()[0]))
    return found


def all_statistics(connection: sqlite3.Connection) -> dict[str, Statistics]:
    """Stores of every size, and for each index one in which it alone seems good or seems bad."""
    known = indexes(connection)

    def of(rows: int, each: int, *, but: str = "", that: int = 0) -> Statistics:
        return [
            (table, name, " ".join(map(str, [rows, *[that if name == but else each] * (n - 1), 1])))
            for name, (table, n) in known.items()
        ]

    found = {
        "one row": of(1, 1),
        "small": of(5, 5),
        "small and spread": of(5, 1),
        "big": of(1_000_000, 1_000),
        "skewed": of(1_000_000, 1_000_000),
        "spread": of(1_000_000, 1),
    }
    for name in known:
        found[f"only {name} is good"] = of(1_000_000, 1_000_000, but=name, that=1)
        found[f"only {name} is bad"] = of(1_000_000, 1, but=name, that=1_000_000)
    return found
