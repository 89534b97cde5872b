"""Waiting for other processes, and names for what can go wrong with a file.

SQLite's own busy handler lets some waiters starve for seconds; short random pauses of our own do
not. Nobody ever sees "database is locked" unless somebody holds the file for half a minute.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from flowfabric.errors import FlowFabricError, StoreMismatch, StoreUnavailable

T = TypeVar("T")

BUSY_PAUSE_SECONDS = (0.0002, 0.002)
BUSY_LIMIT_SECONDS = 30.0

_HINTS = {
    sqlite3.SQLITE_FULL: "free some disk space; no write was left half done",
    sqlite3.SQLITE_BUSY: "another process holds the file; end it or wait",
    sqlite3.SQLITE_READONLY: "check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "check the path and the permissions of its folder",
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_CORRUPT: "restore the file from a backup",
}


def patiently(run: Callable[[], T]) -> T:
    """Run it, again and again while another process is in the way."""
    end = time.monotonic() + BUSY_LIMIT_SECONDS
    while True:
        try:
            return run()
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > end:
                raise
            time.sleep(random.uniform(*BUSY_PAUSE_SECONDS))  # noqa: S311


def _is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: sqlite3.Error) -> int:
    # The attribute is missing on errors that the Python module raises itself.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def is_spoilt(error: sqlite3.Error) -> bool:
    """Whether an answer was spoilt by what is in the rows, not by the file.

    Bytes where text belongs, text that is no UTF-8, or more than fits into one text.
    """
    return _code(error) in (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG)


def translated(error: BaseException) -> BaseException:
    """Our own errors and programming errors as they are; trouble with the file by our names."""
    return unavailable(error) if isinstance(error, sqlite3.DatabaseError) else error


def unavailable(error: sqlite3.Error) -> FlowFabricError:
    if _code(error) == sqlite3.SQLITE_NOTADB:
        mismatch = StoreMismatch("the file is not a database", hint="choose another path")
        mismatch.__cause__ = error
        return mismatch
    failure = StoreUnavailable(f"SQLite: {error}", hint=_HINTS.get(_code(error), ""))
    failure.__cause__ = error
    return failure
