"""Whether the open file is still the one that its name leads to, and still of our version.

SQLite keeps writing into a file that was deleted or replaced, and nobody who opens the name again
sees any of it. So the names are compared with what was opened before anything is answered; once
they differ, every verb is refused until the store is opened again.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple, NoReturn

from flowfabric.errors import StoreMismatch
from flowfabric.store.queries import migration_names
from flowfabric.store.sqlite.counting import CountingConnection

BESIDE = ("-wal", "-shm")
# How far apart two changes of a folder have different times: most file systems take the time of
# the kernel's last tick, some count whole seconds.
FINE_NS = 50_000_000
COARSE_NS = 3_000_000_000
HINT = "stop every process that uses the file, restore it with its -wal, then start again"


class _Opened(NamedTuple):
    """A name and the file that it led to."""

    path: str
    device: int
    inode: int
    bytes_least: int


class _Folder(NamedTuple):
    """What changes when a name in it comes, goes, or leads to another file."""

    device: int
    inode: int
    changed_ns: int

    @property
    def settles_ns(self) -> int:
        """For how long another change may have the same time as this one."""
        return COARSE_NS if self.changed_ns % 1_000_000_000 == 0 else FINE_NS


def refuse_version(version: int) -> None:
    """Refuse a file that a newer program has set up."""
    if (problem := _newer(version)) is not None:
        raise problem


def _newer(version: int) -> StoreMismatch | None:
    known = len(migration_names("sqlite"))
    if version <= known:
        return None
    return StoreMismatch(
        f"the file has schema version {version}, but this FlowFabric supports {known}",
        hint="upgrade FlowFabric on this machine",
    )


class Watch:
    """The files of one open store. Nothing is compared before `begin`."""

    def __init__(self, path: str) -> None:
        # A database has a first page from its first moment on; the others may be emptied.
        self._file = _opened(path, bytes_least=1)
        self._files: list[_Opened] = []
        self._folders: list[str] = []
        self._seen: list[_Folder] = []
        self._seen_ns = 0
        self._settled: list[_Folder] = []
        self._version = 0
        self._problem: StoreMismatch | None = None
        # Another object after each look at which a folder may have changed.
        self.changed = object()

    @property
    def path(self) -> str:
        return self._file.path

    def begin(self, version: int) -> None:
        """The schema is set up, so all files are there."""
        # SQLite follows links before it adds the endings.
        real = os.path.realpath(self._file.path)
        self._files = [self._file, *(_opened(real + ending) for ending in BESIDE)]
        self._folders = sorted({os.path.dirname(name) for name in (self._file.path, real)})  # noqa: PTH120
        self._version = version
        self.compare_files()

    def check_files(self) -> None:
        """Refuse when a name leads nowhere, or to another file than the open one.

        In a folder that has not changed no name has, so one look is enough for all of them; each
        look lets the other threads run, and to get back in costs more than the look.
        """
        self._refuse()
        if not self._folders:
            return
        try:
            seen = [_folder(path) for path in self._folders]
        except OSError:
            seen = []
        if seen and seen == self._settled:
            return
        now_ns = time.monotonic_ns()
        if seen != self._seen:
            self._seen, self._seen_ns = seen, now_ns
        self.changed = object()
        self.compare_files()
        if seen and now_ns - self._seen_ns > max(folder.settles_ns for folder in seen):
            self._settled = seen

    def compare_files(self) -> None:
        """The same with a look at each: also for one that was emptied where it is."""
        self._refuse()
        for path, device, inode, bytes_least in self._files:
            try:
                found = os.stat(path)  # noqa: PTH116 - for every transaction
            except OSError as error:
                self._lost(f"{path} cannot be found: {error.strerror}")
            if found.st_ino != inode or found.st_dev != device:
                self._lost(f"{path} was replaced by another file")
            if found.st_size < bytes_least:
                self._lost(f"{path} was emptied")

    def _lost(self, what: str) -> NoReturn:
        self._problem = StoreMismatch(f"{what} while it was in use", hint=HINT)
        raise self._problem

    def _refuse(self) -> None:
        """Once something did not fit, nothing does until the store is opened again."""
        if self._problem is not None:
            raise StoreMismatch(self._problem.message, hint=self._problem.hint)

    def check_version(self, connection: CountingConnection) -> None:
        """Refuse when another process has changed the schema since it was opened."""
        self._refuse()
        compiling = connection.compiling
        if not self._version or (compiling is not None and not compiling.is_noticed):
            return
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == self._version:
            if compiling is not None:
                compiling.is_noticed = False
            return
        self._problem = _newer(version) or StoreMismatch(
            f"the file had schema version {self._version} when it was opened, now {version}",
            hint="restart this process",
        )
        raise self._problem


def _opened(path: str, *, bytes_least: int = 0) -> _Opened:
    try:
        found = os.stat(path)  # noqa: PTH116 - for every transaction
    except OSError as error:
        raise StoreMismatch(f"{path} cannot be found: {error.strerror}", hint=HINT) from error
    return _Opened(path, found.st_dev, found.st_ino, bytes_least)


def _folder(path: str) -> _Folder:
    found = os.stat(path)  # noqa: PTH116 - for every transaction
    return _Folder(found.st_dev, found.st_ino, found.st_mtime_ns)
