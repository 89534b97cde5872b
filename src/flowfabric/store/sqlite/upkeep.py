"""Upkeep of the file: what it holds, a copy of it while others write, and its end.

Every function here looks with a connection of its own and never creates the file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from flowfabric.errors import InvalidInput, Refused, StoreUnavailable
from flowfabric.store.queries import migration_names
from flowfabric.store.sqlite.file import make_private, schema_version
from flowfabric.store.sqlite.patience import patiently, unavailable
from flowfabric.store.sqlite.statements import run
from flowfabric.store.sqlite.wake import Place
from flowfabric.store.sqlite.watch import refuse_version
from flowfabric.store.upkeep import LOG_ALARM_BYTES, Damage, Hindrance, Size

LOG_NAME = "write-ahead log"
REST_NAME = "free and unassigned"
_TABLE_BYTES = """SELECT s.tbl_name, sum(d.pgsize) FROM dbstat d
    JOIN sqlite_schema s ON s.name = d.name WHERE d.aggregate = TRUE GROUP BY s.tbl_name"""
DAMAGE_MAX = 100
# By table, how many rows have lost what they belong to, or their own name.
_STRAY = {
    "execution": "SELECT count(*) FROM execution WHERE typeof(id) <> 'text'",
    "flow": "SELECT count(*) FROM flow WHERE typeof(id) <> 'text'",
    **{
        table: f"SELECT count(*) FROM {table} WHERE n NOT IN (SELECT n FROM execution)"  # noqa: S608
        for table in ("payload", "attempt", "tag", "entry", "log")
    },
    **{
        table: f"SELECT count(*) FROM {table} WHERE flow NOT IN (SELECT id FROM flow)"  # noqa: S608
        for table in ("edge", "edge_group", "line")
    },
    "document_word": """SELECT count(*) FROM document_word WHERE (kind, namespace, name) NOT IN (
        SELECT kind, namespace, name FROM document)""",
}
# The words by which documents are found against those that the documents say; what cannot be read
# says nothing.
_READABLE_WORDS = "iif(typeof(d.words) = 'text' AND json_valid(d.words), d.words, '[]')"
_WORDS = {
    "rows match no word of their document": """SELECT count(*)
        FROM document_word AS x JOIN document AS d USING (kind, namespace, name)
        WHERE typeof(d.words) = 'text' AND json_valid(d.words)
          AND x.word NOT IN (SELECT value FROM json_each(d.words))""",
    "words of documents have no row": f"""SELECT count(*)
        FROM document AS d CROSS JOIN json_each({_READABLE_WORDS}) AS w WHERE NOT EXISTS (
            SELECT 1 FROM document_word AS x WHERE x.kind = d.kind
            AND x.namespace = d.namespace AND x.name = d.name AND x.word = w.value)""",  # noqa: S608
}
_BESIDE = ("-wal", "-shm", "-journal")


def pending(path: str) -> list[str]:
    names = migration_names("sqlite")
    if not Path(path).exists():
        return names
    with _looking(path) as connection:
        version = schema_version(connection)
    refuse_version(version)
    return names[version:]


def sizes(path: str) -> list[Size]:
    """Per table with its indexes, then what no table has, then the log that waits to be merged."""
    if not Path(path).exists():
        return []
    with _looking(path) as connection:
        if schema_version(connection) == 0:
            return []
        taken = _bytes_of_tables(connection)
        tables = [
            Size(name, _rows(connection, name), taken.get(name, 0)) for name in _tables(connection)
        ]
    whole = _length(path)
    log = _length(path + "-wal")
    rest = max(whole - sum(size.bytes for size in tables), 0)
    return [*tables, Size(REST_NAME, 0, rest), Size(LOG_NAME, 0, log)]


def checkpoint(path: str) -> int:
    if not Path(path).exists():
        return 0
    with _looking(path) as connection:
        _, frames, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        page = connection.execute("PRAGMA page_size").fetchone()[0]
    left: int = max(frames - moved, 0) * page
    return left


def hindrances(path: str) -> list[Hindrance]:
    """A log that cannot be emptied grows for as long as somebody reads an old state of the file."""
    left = checkpoint(path)
    if left < LOG_ALARM_BYTES:
        return []
    sentence = (
        f"holds {left // 1_000_000} MB that cannot be moved into the file, because a program reads "
        "an old state of it; end the program that has had the file open for long (fuser, lsof)"
    )
    return [Hindrance(f"{path}-wal", sentence)]


def inspect(path: str) -> list[Damage]:
    """What SQLite finds in its pages and indexes, and rows that belong to nobody."""
    with _looking(path) as connection:
        told = [text for (text,) in connection.execute(f"PRAGMA integrity_check({DAMAGE_MAX})")]
        damage = [Damage("the file", text) for text in told if text != "ok"]
        asked = [
            (table, "rows have lost the record that they belong to", stray)
            for table, stray in _STRAY.items()
        ]
        asked += [("document_word", what, question) for what, question in _WORDS.items()]
        for table, what, question in asked:
            count: int = connection.execute(question).fetchone()[0]
            if count:
                damage.append(Damage(f"table {table}", f"{count} {what}"))
    return damage


def backup(path: str, target: Path) -> None:
    if not Path(path).exists():
        raise InvalidInput(f"{path} does not exist", field="store", hint="check the path")
    _refuse_taken(target)
    unfinished = target.with_name(f"{target.name}.{secrets.token_hex(4)}.unfinished")
    try:
        make_private(str(unfinished))
        _copy(path, unfinished)
        _put_in_place(unfinished, target)
    except sqlite3.DatabaseError as error:
        raise unavailable(error) from error
    except OSError as error:
        raise StoreUnavailable(f"cannot write the copy: {error.strerror}") from error
    finally:
        for name in ("", *_BESIDE):
            Path(f"{unfinished}{name}").unlink(missing_ok=True)


def drop(path: str) -> None:
    """A file that a process has open is left alone: it would go on writing into nothing."""
    if not Path(path).exists():
        return
    with _looking(path) as connection:
        if schema_version(connection) == 0:
            return
        try:
            # Only somebody who is alone with the file may leave the write-ahead log.
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError as error:
            raise Refused(
                "another process has the file open", hint="stop the workers first, then drop"
            ) from error
    place = Place(path)
    for name in place.names():
        place.remove(name)
    for name in ("", *_BESIDE):
        Path(path + name).unlink(missing_ok=True)


@contextmanager
def _looking(path: str) -> Iterator[sqlite3.Connection]:
    # Not read-only: such a look would leave the files of the write-ahead log behind.
    address = f"file:{quote(str(Path(path).absolute()))}?mode=rw"
    try:
        connection = sqlite3.connect(address, timeout=0, isolation_level=None, uri=True)
        with contextlib.closing(connection):
            patiently(lambda: connection.execute("SELECT count(*) FROM sqlite_schema").fetchone())
            yield connection
    except sqlite3.DatabaseError as error:
        raise unavailable(error) from error


def _tables(connection: sqlite3.Connection) -> list[str]:
    sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return [name for (name,) in connection.execute(f"{sql} ORDER BY name")]


def _rows(connection: sqlite3.Connection, table: str) -> int:
    count: int = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]  # noqa: S608
    return count


def _bytes_of_tables(connection: sqlite3.Connection) -> dict[str, int]:
    """Empty where SQLite was built without what it takes to know."""
    try:
        return dict(connection.execute(_TABLE_BYTES).fetchall())
    except sqlite3.OperationalError:
        return {}


def _length(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def _refuse_taken(target: Path) -> None:
    if os.path.lexists(target):
        raise InvalidInput(f"{target} exists", field="target", hint="choose another name")
    if not target.absolute().parent.is_dir():
        folder = target.absolute().parent
        raise InvalidInput(f"there is no folder {folder}", field="target", hint="create it first")


def _copy(path: str, target: Path) -> None:
    """All pages in one step: one moment of the file, which keeps no writer waiting."""
    with _looking(path) as source, contextlib.closing(sqlite3.connect(target)) as copy:
        if schema_version(source) == 0:
            raise InvalidInput(
                f"{path} was never set up", field="store", hint="run `ff db migrate`"
            )
        source.backup(copy)
        with copy:
            run(copy, "meta_replace", "incarnation", secrets.token_hex(8))


def _put_in_place(unfinished: Path, target: Path) -> None:
    with unfinished.open("rb") as copy:
        os.fsync(copy.fileno())
    try:
        # Unlike a rename, this cannot replace what somebody put there meanwhile.
        os.link(unfinished, target)
    except FileExistsError:
        _refuse_taken(target)
        raise
    except OSError:
        _refuse_taken(target)
        unfinished.rename(target)
