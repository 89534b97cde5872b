"""The limit of a SQLite file: multi-row statements of the standard client, one transaction each."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from flowfabric.cli.bench.cycles import TTL_MS, Cycles

Cell = str | int | bytes

_EXECUTIONS = """INSERT INTO execution (
    n, id, namespace, lane, kind, route, creator, created_ms, policy, state, reason, priority,
    updated_ms
) VALUES {rows}"""
_PAYLOADS = "INSERT INTO payload (n, body) VALUES {rows}"
_LINES = "INSERT INTO log (n, at_ms, kind, state, attempt, epoch, detail) VALUES {rows}"
_CLAIM = """UPDATE execution SET
    rev = rev + 1, state = 'active', reason = 'none', attempt_state = 'running_attempt',
    epoch = epoch + 1, lease_token = :token, lease_until_ms = :until_ms, renewed_ms = NULL,
    worker = 'bench', attempt = next_attempt, attempt_kind = next_kind,
    attempt_started_ms = :now_ms, started_ms = :now_ms, lost = 'none', due_ms = :until_ms,
    updated_ms = :now_ms
WHERE n BETWEEN :first AND :last"""
_COMPLETE = """UPDATE execution SET
    rev = rev + 1, state = 'completed', reason = 'none', attempt_state = 'attempt_terminal',
    lease_until_ms = NULL, attempt_until_ms = NULL, worker = '', due_ms = NULL, ended_ms = :now_ms,
    updated_ms = :now_ms
WHERE n BETWEEN :first AND :last"""
_ATTEMPTS = """INSERT INTO attempt (
    n, attempt, kind, lifecycle, worker, epoch, started_ms, ended_ms, detail, category, result
) VALUES {rows}"""


class Batch(msgspec.Struct, frozen=True):
    """The rows of a hundred cycles, flat, as they are bound."""

    numbers: range
    executions: list[Cell]
    payloads: list[Cell]
    submitted: list[Cell]
    claimed: list[Cell]
    attempts: list[Cell]
    completed: list[Cell]


async def measure(url: str, cycles: Sequence[Cycles]) -> float:
    """How many seconds it takes on a store that is there and empty."""
    connection = _connect(url)
    try:
        return _measure(connection, [_batch(each) for each in cycles])
    finally:
        connection.close()


def _connect(url: str) -> sqlite3.Connection:
    parts = urlsplit(url)
    connection = sqlite3.connect(Path(unquote(parts.path[1:])), isolation_level=None)
    is_normal = "NORMAL" in parts.query.upper()
    connection.execute("PRAGMA synchronous = NORMAL" if is_normal else "PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -65536")
    return connection


def _measure(connection: sqlite3.Connection, batches: Sequence[Batch]) -> float:
    began = time.perf_counter()
    for batch in batches:
        _submit(connection, batch)
        _claim(connection, batch)
        _complete(connection, batch)
    return time.perf_counter() - began


def _batch(cycles: Cycles) -> Batch:
    numbers = range(cycles.first + 1, cycles.first + 1 + len(cycles.ids))
    return Batch(numbers, *_rows(numbers, cycles.ids, cycles.now_ms))


def _rows(numbers: range, ids: Sequence[str], now_ms: int) -> Iterator[list[Cell]]:
    asked: tuple[Cell, ...] = ("bench", "default", "noop", "default noop", "", now_ms, "")
    state: tuple[Cell, ...] = ("waiting", "waiting_for_worker", 0, now_ms)
    ended: tuple[Cell, ...] = ("bench", 1, now_ms, now_ms, "", "")
    claimed = '{"worker":"bench","kind":"initial"}'
    yield _flat((n, id, *asked, *state) for n, id in zip(numbers, ids, strict=True))
    yield _flat((n, b'{"number":%d}' % n) for n in numbers)
    yield _flat((n, now_ms, "submitted", "waiting", -1, 0, "{}") for n in numbers)
    yield _flat((n, now_ms, "claimed", "active", 0, 1, claimed) for n in numbers)
    yield _flat((n, 0, "initial", "ended_success", *ended, b"%d" % n) for n in numbers)
    yield _flat((n, now_ms, "completed", "completed", 0, 1, "{}") for n in numbers)


def _flat(rows: Iterator[tuple[Cell, ...]]) -> list[Cell]:
    return [cell for row in rows for cell in row]


def _submit(connection: sqlite3.Connection, batch: Batch) -> None:
    connection.execute("BEGIN IMMEDIATE")
    _write(connection, _EXECUTIONS, batch.executions, batch.numbers)
    _write(connection, _PAYLOADS, batch.payloads, batch.numbers)
    _write(connection, _LINES, batch.submitted, batch.numbers)
    connection.execute("COMMIT")


def _claim(connection: sqlite3.Connection, batch: Batch) -> None:
    now_ms = time.time_ns() // 1_000_000
    lease: dict[str, Cell] = {"token": secrets.token_hex(16), "until_ms": now_ms + TTL_MS}
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_CLAIM, lease | _about(batch, now_ms))
    _write(connection, _LINES, batch.claimed, batch.numbers)
    connection.execute("COMMIT")


def _complete(connection: sqlite3.Connection, batch: Batch) -> None:
    now_ms = time.time_ns() // 1_000_000
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_COMPLETE, _about(batch, now_ms))
    _write(connection, _ATTEMPTS, batch.attempts, batch.numbers)
    _write(connection, _LINES, batch.completed, batch.numbers)
    connection.execute("COMMIT")


def _about(batch: Batch, now_ms: int) -> dict[str, Cell]:
    return {"now_ms": now_ms, "first": batch.numbers[0], "last": batch.numbers[-1]}


def _write(connection: sqlite3.Connection, sql: str, cells: list[Cell], numbers: range) -> None:
    row = "(" + ",".join("?" * (len(cells) // len(numbers))) + ")"
    connection.execute(sql.replace("{rows}", ",".join([row] * len(numbers))), cells)
