"""Whether the open file is still the one that its name leads to, and still of our version.

SQLite keeps writing into a file that was deleted or replaced, and nobody who opens the name again
sees any of it. So the names are compared with what was opened before anything is answered; once
they differ, every verb is refused until the store is opened again.
"""

from __future__ import annotations

import os
import sqlite3
from typing import NamedTuple

from flowfabric.errors import StoreMismatch
from flowfabric.store.queries import migration_names

BESIDE = ("-wal", "-shm")
HINT = "stop every process that uses it, put the right file back with its -wal, then start again"


class _Opened(NamedTuple):
    """A name and the file that it led to."""

    path: str
    device: int
    inode: int
    bytes_least: int


def refuse_version(version: int) -> None:
    """Refuse a file that a newer program has set up."""
    known = len(migration_names("sqlite"))
    if version > known:
        raise StoreMismatch(
            f"the file has schema version {version}, this FlowFabric knows {known}",
            hint="upgrade FlowFabric on this machine",
        )


class Watch:
    """The files of one open store. Nothing is compared before `begin`."""

    def __init__(self, path: str) -> None:
        # A database has a first page from its first moment on; the others may be emptied.
        self._file = _opened(path, bytes_least=1)
        self._files: list[_Opened] = []
        self._version = 0
        self._problem = ""

    def begin(self, version: int) -> None:
        """The schema is set up, so all files are there."""
        # SQLite follows links before it adds the endings.
        real = os.path.realpath(self._file.path)
        self._files = [self._file, *(_opened(real + ending) for ending in BESIDE)]
        self._version = version
        self.check_files()

    def check_files(self) -> None:
        """Refuse when a name leads nowhere, or to another file than the open one."""
        if not self._problem:
            for path, device, inode, bytes_least in self._files:
                try:
                    found = os.stat(path)  # noqa: PTH116 - for every transaction
                except OSError as error:
                    self._problem = f"{path} cannot be found: {error.strerror}"
                    break
                if found.st_ino != inode or found.st_dev != device:
                    self._problem = f"{path} was replaced by another file"
                    break
                if found.st_size < bytes_least:
                    self._problem = f"{path} was emptied"
                    break
            else:
                return
        raise StoreMismatch(f"{self._problem} while it was in use", hint=HINT)

    def check_version(self, connection: sqlite3.Connection) -> None:
        """Refuse when another process has changed the schema since it was opened."""
        if not self._version:
            return
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != self._version:
            refuse_version(version)
            raise StoreMismatch(
                f"the file had schema version {self._version} when it was opened, now {version}",
                hint="start this process again",
            )


def _opened(path: str, *, bytes_least: int = 0) -> _Opened:
    try:
        found = os.stat(path)  # noqa: PTH116 - for every transaction
    except OSError as error:
        raise StoreMismatch(f"{path} cannot be found: {error.strerror}", hint=HINT) from error
    return _Opened(path, found.st_dev, found.st_ino, bytes_least)
