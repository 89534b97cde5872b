"""Opening the file: where it may be, how connections are set up, whose it is.

The first start writes the schema, the partition counts and a fresh incarnation in one transaction;
every later start checks them. A file that is not ours is never touched.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import msgspec

from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import InvalidInput, StoreMismatch, StoreUnavailable
from flowfabric.store.queries import migrations
from flowfabric.store.sqlite.counting import CountingConnection
from flowfabric.store.sqlite.statements import one_text, run
from flowfabric.store.sqlite.watch import refuse_version
from flowfabric.store.upkeep import LOG_ALARM_BYTES

APPLICATION_ID = 0x46464250
SQLITE_FLOOR = (3, 35, 0)
CACHED_STATEMENTS = 512
CACHE_KIB = 65_536
# Four times the default: a third less time in commits, for a log of sixteen megabytes.
CHECKPOINT_PAGES = 4_000

_NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "ncpfs",
    }
)


class Setup(NamedTuple):
    """What the file says about itself."""

    counts: PartitionCounts
    incarnation: str
    version: int


def connect(path: str, synchronous: str) -> CountingConnection:
    """A connection that never waits inside SQLite and never opens a transaction by itself."""
    connection = sqlite3.connect(
        path,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
        factory=CountingConnection,
    )
    connection.notice_compiling()
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_ALARM_BYTES}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def check_place(path: str) -> None:
    """Refuse, before anything is created, a place where the file could not work."""
    if sqlite3.sqlite_version_info < SQLITE_FLOOR:
        raise StoreMismatch(
            f"SQLite {sqlite3.sqlite_version} is too old",
            hint=f"use a Python with SQLite {'.'.join(map(str, SQLITE_FLOOR))} or newer",
        )
    if Path(path).name == ":memory:":
        raise _unshared(path)
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise InvalidInput(f"there is no folder {folder}", field="url", hint="create it first")
    kind = file_system_of(folder, _mount_table())
    if kind in _NETWORK_FILE_SYSTEMS:
        raise InvalidInput(
            f"{folder} is on a network file system ({kind})",
            field="url",
            hint="put the file on a local disk; to share work between machines use Postgres",
        )


def _mount_table() -> str:
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def file_system_of(folder: Path, mounts: str) -> str:
    """The kind of file system that a folder is on; empty where the system does not say."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        point = fields[1].replace("\\040", " ") if len(fields) > 2 else ""
        inside = str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
        if point and inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def make_private(path: str) -> None:
    """A new file that only its owner can read; SQLite makes those beside it alike.

    One that is there is not even opened: closing it would end the locks of this process on it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return


def claim_file(path: str) -> None:
    """Switch the file to the write-ahead log, unless it belongs to somebody else."""
    try:
        make_private(path)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot create {path}: {error.strerror}", hint="check the permissions of its folder"
        ) from error
    connection = connect(path, "FULL")
    try:
        # In one look: another process may be writing the schema right now.
        connection.execute("BEGIN")
        schema_version(connection)
        connection.execute("COMMIT")
        mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        _forget_statistics(connection)
    finally:
        connection.close()
    if mode != "wal":
        raise _unshared(path)


def _unshared(path: str) -> InvalidInput:
    return InvalidInput(
        f"{path!r} cannot be shared between connections",
        field="url",
        hint="name a file on a local disk, or use memory://",
    )


def prepare(connection: sqlite3.Connection, wanted: PartitionCounts | None) -> Setup:
    """Bring the schema up to date, or refuse; runs inside one writing transaction."""
    version = schema_version(connection)
    steps = migrations("sqlite")
    refuse_version(version)
    for step in steps[version:]:
        _run_script(connection, step)
    if version == 0:
        _first_start(connection, wanted or PartitionCounts())
    connection.execute(f"PRAGMA user_version = {len(steps)}")
    _keep_statistics_out(connection)
    return _checked_setup(connection, wanted)


def _forget_statistics(connection: sqlite3.Connection) -> None:
    """Let statements be planned without what somebody's ANALYZE found at some moment.

    Statements are made for the indexes that they use. Statistics of a store that was small, or
    whose flows were, would lead them astray when it grows. Connections that are made later never
    see them.
    """
    for table in _statistics(connection):
        if connection.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone()[0]:  # noqa: S608
            connection.execute(f"DELETE FROM {table}")  # noqa: S608


def _keep_statistics_out(connection: sqlite3.Connection) -> None:
    """Where the table of statistics is there already, an ANALYZE changes no schema, and so no
    connection that is open looks at what it found."""
    if not _statistics(connection):
        connection.execute("ANALYZE meta")
        connection.execute("DELETE FROM sqlite_stat1")
        connection.execute("ANALYZE sqlite_schema")


def _statistics(connection: sqlite3.Connection) -> list[str]:
    names = "SELECT name FROM sqlite_schema WHERE name IN ('sqlite_stat1', 'sqlite_stat4')"
    return [name for (name,) in connection.execute(names).fetchall()]


def schema_version(connection: sqlite3.Connection) -> int:
    """How many migrations the file has seen; 0 for an empty one. Another program's is refused."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if owner != APPLICATION_ID and (owner or version or tables):
        raise StoreMismatch("the file belongs to another program", hint="choose another path")
    return version if owner == APPLICATION_ID else 0


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    """Statement by statement: `executescript` would commit the transaction it runs in."""
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)


def _first_start(connection: sqlite3.Connection, counts: PartitionCounts) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    facts = {**asdict(counts), "incarnation": secrets.token_hex(8)}
    for name, value in facts.items():
        run(connection, "meta_set", name, str(value))


def _checked_setup(connection: sqlite3.Connection, wanted: PartitionCounts | None) -> Setup:
    text = one_text(connection, "meta_load")
    facts = msgspec.json.decode(text, type=dict[str, str])
    names = asdict(PartitionCounts())
    stored = PartitionCounts(**{name: int(facts[name]) for name in names})
    if wanted is not None and wanted != stored:
        raise StoreMismatch(
            f"the file was set up with partitions {stored}, not {wanted}",
            field="partitions",
            hint="omit the counts, or use a new file: the first start fixes them",
        )
    return Setup(stored, facts["incarnation"], schema_version(connection))
