"""Why the SQLite store sends one statement per batch: the shapes, measured side by side.

A thread does cycles (insert, claim and read, complete, three log lines) by the hundred, once
while the main thread waits and once while it runs Python code, as an event loop under load does.
Each step of a statement gives up the interpreter's lock and has to get it back; a shape that steps
once per row pays for that with every row.

Needs only the standard library; a second set of columns appears if apsw is installed.

    python benchmarks/sqlite_shapes.py
    python benchmarks/sqlite_shapes.py --seconds 3 --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

BATCH = 100
NOW_MS = 1_000_000

Row = tuple[object, ...]


class Cursor(Protocol):
    def fetchall(self) -> list[Row]: ...


class Connection(Protocol):
    """What the two drivers have in common."""

    def execute(self, sql: str, bindings: Sequence[object] = ..., /) -> Cursor: ...
    def executemany(self, sql: str, rows: Sequence[Row], /) -> object: ...
    def close(self) -> None: ...


SCHEMA = (
    """CREATE TABLE execution (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, lane TEXT NOT NULL, kind TEXT NOT NULL,
        state TEXT NOT NULL, priority INTEGER NOT NULL, created_ms INTEGER NOT NULL,
        epoch INTEGER NOT NULL DEFAULT 0, token TEXT, due_ms INTEGER, ended_ms INTEGER, result BLOB
    )""",
    """CREATE INDEX ready ON execution (lane, priority DESC, created_ms, id)
        WHERE state = 'waiting'""",
    "CREATE INDEX due ON execution (due_ms, id) WHERE due_ms IS NOT NULL",
    "CREATE TABLE log (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, kind TEXT, at_ms INTEGER)",
)

PER_ROW = (
    """INSERT INTO execution (id, lane, kind, state, priority, created_ms)
        VALUES (?, ?, ?, 'waiting', 0, ?)""",
    """UPDATE execution SET state = 'active', epoch = epoch + 1, token = ?, due_ms = ?
        WHERE id = ? AND state = 'waiting'""",
    """UPDATE execution SET state = 'completed', due_ms = NULL, ended_ms = ?, result = ?
        WHERE id = ? AND token = ?""",
    "INSERT INTO log (id, kind, at_ms) VALUES (?, ?, ?)",
)
MULTI_ROW = (
    """INSERT INTO execution (id, lane, kind, state, priority, created_ms)
        SELECT column1, column2, column3, 'waiting', 0, column4 FROM (VALUES {rows})""",
    """WITH new (token, due_ms, id) AS (VALUES {rows})
        UPDATE execution SET state = 'active', epoch = epoch + 1, token = new.token,
            due_ms = new.due_ms
        FROM new WHERE execution.id = new.id AND state = 'waiting'""",
    """WITH new (ended_ms, result, id, token) AS (VALUES {rows})
        UPDATE execution SET state = 'completed', due_ms = NULL, ended_ms = new.ended_ms,
            result = new.result
        FROM new WHERE execution.id = new.id AND execution.token = new.token""",
    "INSERT INTO log (id, kind, at_ms) VALUES {rows}",
)
JSON_EACH = (
    """INSERT INTO execution (id, lane, kind, state, priority, created_ms)
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
            json_extract(value, '$[2]'), 'waiting', 0, json_extract(value, '$[3]')
        FROM json_each(?)""",
    """WITH new (token, due_ms, id) AS (
            SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
                json_extract(value, '$[2]') FROM json_each(?)
        )
        UPDATE execution SET state = 'active', epoch = epoch + 1, token = new.token,
            due_ms = new.due_ms
        FROM new WHERE execution.id = new.id AND state = 'waiting'""",
    """WITH new (ended_ms, result, id, token) AS (
            SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
                json_extract(value, '$[2]'), json_extract(value, '$[3]') FROM json_each(?)
        )
        UPDATE execution SET state = 'completed', due_ms = NULL, ended_ms = new.ended_ms,
            result = new.result
        FROM new WHERE execution.id = new.id AND execution.token = new.token""",
    """INSERT INTO log (id, kind, at_ms)
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
            json_extract(value, '$[2]') FROM json_each(?)""",
)

READ_ROWS = "SELECT id, kind, epoch, token FROM execution WHERE n > ? ORDER BY n LIMIT ?"
READ_TEXT = """SELECT json_group_array(json_array(id, kind, epoch, token)) FROM (
    SELECT id, kind, epoch, token FROM execution WHERE n > ? ORDER BY n LIMIT ?
)"""

Write = Callable[[Connection, int, Sequence[Row]], None]
Read = Callable[[Connection, int], int]
Figures = dict[str, dict[str, dict[str, float]]]


def per_row(connection: Connection, verb: int, rows: Sequence[Row]) -> None:
    connection.executemany(PER_ROW[verb], rows)


def multi_row(connection: Connection, verb: int, rows: Sequence[Row]) -> None:
    marks = "(" + ",".join("?" * len(rows[0])) + ")"
    sql = MULTI_ROW[verb].replace("{rows}", ",".join([marks] * len(rows)))
    connection.execute(sql, [cell for row in rows for cell in row])


def json_each(connection: Connection, verb: int, rows: Sequence[Row]) -> None:
    connection.execute(JSON_EACH[verb], (json.dumps(rows),))


def read_rows(connection: Connection, first: int) -> int:
    return len(connection.execute(READ_ROWS, (first, BATCH)).fetchall())


def read_text(connection: Connection, first: int) -> int:
    ((text,),) = connection.execute(READ_TEXT, (first, BATCH)).fetchall()
    return len(json.loads(str(text)))


class Shape(NamedTuple):
    write: Write
    read: Read


SHAPES = {
    "per row": Shape(per_row, read_rows),
    "multi-row": Shape(multi_row, read_text),
    "json_each": Shape(json_each, read_text),
}


def cycle(connection: Connection, shape: Shape, first: int) -> None:
    """A hundred executions from nothing to completed, in three transactions."""
    ids = [f"{{fp:1}}:{number:032x}" for number in range(first, first + BATCH)]
    steps: list[tuple[str, list[Row]]] = [
        ("submitted", [(id, "default", "noop", NOW_MS) for id in ids]),
        ("claimed", [("token", NOW_MS, id) for id in ids]),
        ("completed", [(NOW_MS, "1", id, "token") for id in ids]),
    ]
    for verb, (kind, rows) in enumerate(steps):
        connection.execute("BEGIN IMMEDIATE")
        shape.write(connection, verb, rows)
        shape.write(connection, len(steps), [(id, kind, NOW_MS) for id in ids])
        if kind == "claimed" and shape.read(connection, first) != BATCH:
            raise SystemExit("a claim did not find what was submitted")
        connection.execute("COMMIT")


class Writer(threading.Thread):
    """Writes cycles until the time is over; `rate` is cycles per second."""

    def __init__(self, driver: str, path: Path, shape: Shape, *, seconds: float) -> None:
        super().__init__()
        self._driver = driver
        self._path = path
        self._shape = shape
        self._seconds = seconds
        self.rate = 0.0

    def run(self) -> None:
        connection = connect(self._driver, self._path)
        done = 0
        began = time.perf_counter()
        while not done or time.perf_counter() - began < self._seconds:
            cycle(connection, self._shape, done)
            done += BATCH
        self.rate = done / (time.perf_counter() - began)
        connection.close()


def connect(driver: str, path: Path) -> Connection:
    connection: Connection
    if driver == "apsw":
        connection = import_module("apsw").Connection(str(path))
    else:
        connection = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", *SCHEMA):
        connection.execute(statement)
    return connection


def measure(driver: str, shape: Shape, *, is_busy: bool, seconds: float) -> float:
    with tempfile.TemporaryDirectory(prefix="sqlite-shapes-") as folder:
        writer = Writer(driver, Path(folder, "shapes.db"), shape, seconds=seconds)
        writer.start()
        number = 0
        while is_busy and writer.is_alive():
            for _ in range(10_000):
                number += 1
        writer.join()
        return writer.rate


def measure_all(seconds: float) -> Figures:
    drivers = ["sqlite3", *(["apsw"] if find_spec("apsw") else [])]
    return {
        driver: {
            name: {
                "idle": round(measure(driver, shape, is_busy=False, seconds=seconds)),
                "busy": round(measure(driver, shape, is_busy=True, seconds=seconds)),
            }
            for name, shape in SHAPES.items()
        }
        for driver in drivers
    }


def machine() -> str:
    return (
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{platform.platform(terse=True)}, {os.cpu_count()} cores"
    )


def table(figures: Figures) -> str:
    lines = [f"{'cycles/s':<12}" + "".join(f"{d + ' idle':>16}{d + ' busy':>16}" for d in figures)]
    for name in SHAPES:
        cells = [figures[driver][name][load] for driver in figures for load in ("idle", "busy")]
        lines.append(f"{name:<12}" + "".join(f"{cell:>16,}" for cell in cells))
    return "\n".join([*lines, machine()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each cell")
    parser.add_argument("--json", action="store_true", help="one object on one line")
    options = parser.parse_args()
    figures = measure_all(options.seconds)
    text = json.dumps({"machine": machine(), "cycles_per_s": figures})
    sys.stdout.write((text if options.json else table(figures)) + "\n")


if __name__ == "__main__":
    main()
