"""Where each store keeps each kind of record, and how one cell is written past the store.

A database refuses what its schema forbids: that is no damage, and `write` answers False. Nobody
writes beside the memory store; there a record that would not decode is marked as such.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

import asyncpg
import msgspec

from flowfabric.core.documents import Document, scope_of
from flowfabric.core.flow.model import Edge, Flow, Group, Line
from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.core.model import Attempt, Event, Execution, Lane, Shift
from flowfabric.store import Store
from flowfabric.store.damage import names_of, problem_of
from flowfabric.store.memory import MemoryStore
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command
from flowfabric.store.valkey.codec import uuid_of
from tests.corrupter import RawMemory, RawValkey, row_of
from tests.store.valkey.raw import with_column

Cell = str | bytes | None
Record = Execution | Flow | Edge | Group | Line


class Payload(msgspec.Struct, frozen=True):
    """The input of an execution."""

    id: ExecutionId
    body: bytes = b""


class Tag(msgspec.Struct, frozen=True):
    id: ExecutionId
    key: str
    value: str = ""


class Key(msgspec.Struct, frozen=True):
    """An idempotency key and whose it is."""

    namespace: str
    key: str
    id: ExecutionId
    digest: str = ""
    until_ms: int = 0


class Word(msgspec.Struct, frozen=True):
    """A word by which a document is found; on Valkey it is an entry of an index."""

    document: Document
    word: str


Beside = Payload | Attempt | Tag | Key | Lane | Shift | Event | Document
Spot = Record | Beside | Word

# What names a record is how it is found; the model calls some columns otherwise than the tables.
COLUMNS: dict[type[msgspec.Struct], tuple[str, ...]] = {
    Execution: names_of(Execution),
    Payload: ("body",),
    Attempt: tuple(name for name in names_of(Attempt) if name != "execution"),
    Tag: ("key", "value"),
    Key: ("id", "digest", "until_ms"),
    Flow: names_of(Flow),
    Edge: names_of(Edge),
    Group: names_of(Group),
    Line: names_of(Line),
    Lane: ("state", "rev"),
    Shift: ("owner", "until_ms", "report"),
    Document: ("rev", "due_ms", "words", "body"),
    Event: ("at_ms", "kind", "state", "attempt", "epoch", "detail"),
}
_RENAMED = {"group": "grp", "join": "joins"}


class Raw(Protocol):
    async def write(self, spot: Spot, column: str, cell: Cell) -> bool: ...

    async def remove(self, spot: Spot) -> bool: ...


@asynccontextmanager
async def raw_client(store: Store) -> AsyncIterator[Raw]:
    match store:
        case MemoryStore():
            yield _Memory(store)
        case SqliteStore():
            with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as raw:
                yield _Sqlite(raw)
        case PostgresStore():
            connection = await asyncpg.connect(store.address.dsn)
            try:
                yield _Postgres(connection, store.address.schema)
            finally:
                await connection.close()
        case ValkeyStore():
            yield _Valkey(store)
        case _:
            raise TypeError(f"nobody has said how to damage a {type(store).__name__}")


class _Row(NamedTuple):
    """A table, and the columns that name a row of it; `n` is asked for by the id."""

    table: str
    named: Mapping[str, str | int]


def _row(spot: Spot) -> _Row:
    match spot:
        case Payload():
            return _Row("payload", {"n": spot.id})
        case Attempt():
            return _Row("attempt", {"n": spot.execution, "attempt": spot.attempt})
        case Tag():
            return _Row("tag", {"n": spot.id, "key": spot.key})
        case Key():
            return _Row("idempotency", {"namespace": spot.namespace, "key": spot.key})
        case Lane() | Shift():
            return _Row(type(spot).__name__.lower(), {"name": spot.name})
        case Document():
            named = {"kind": spot.kind, "namespace": spot.namespace, "name": spot.name}
            return _Row("document", named)
        case Word():
            return _Row("document_word", {**_row(spot.document).named, "word": spot.word})
        case Event():
            return _Row("log", {"n": spot.execution, "kind": spot.kind})
        case _:
            return _Row(*row_of(spot))


class _Memory:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._plain = RawMemory(store)

    async def write(self, spot: Spot, column: str, cell: Cell) -> bool:
        if not isinstance(spot, Execution | Flow | Edge | Group | Line | Document):
            return False
        cells = {**msgspec.structs.asdict(spot), column: cell}
        try:
            msgspec.convert(list(cells.values()), type(spot), strict=False)
        except msgspec.ValidationError as error:
            marked = spot.id if isinstance(spot, Execution) else spot
            self._store.corrupt(marked, problem_of(error, names_of(type(spot))))
            return True
        return False

    async def remove(self, spot: Spot) -> bool:
        if isinstance(spot, Payload):
            del self._store._payloads[spot.id]
        elif isinstance(spot, Attempt):
            del self._store._attempts[spot.execution][spot.attempt]
        elif isinstance(spot, Edge | Group | Line):
            await self._plain.remove(spot)
        else:
            return False
        return True


class _Sqlite:
    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    async def write(self, spot: Spot, column: str, cell: Cell) -> bool:
        table, _ = _row(spot)
        name = _RENAMED.get(column, column)
        return self._run(f"UPDATE {table} SET {name} = ?", spot, cell)  # noqa: S608 - our names

    async def remove(self, spot: Spot) -> bool:
        return self._run(f"DELETE FROM {_row(spot).table}", spot)  # noqa: S608 - our own names

    def _run(self, statement: str, spot: Spot, *first: Cell) -> bool:
        named = _row(spot).named
        where = " AND ".join(
            "n = (SELECT n FROM execution WHERE id = ?)" if name == "n" else f"{name} = ?"
            for name in named
        )
        try:
            done = self._raw.execute(f"{statement} WHERE {where}", (*first, *named.values()))
        except sqlite3.IntegrityError:
            return False
        assert done.rowcount == 1, spot
        return True


class _Postgres:
    def __init__(self, raw: asyncpg.Connection, schema: str) -> None:
        self._raw = raw
        self._schema = schema

    async def write(self, spot: Spot, column: str, cell: Cell) -> bool:
        table, _ = _row(spot)
        if isinstance(cell, bytes):
            return False
        name = _RENAMED.get(column, column)
        if isinstance(spot, Payload):
            return False
        # A literal has no type of its own: the server reads it as the column wants it.
        literal = "NULL" if cell is None else f"'{cell}'"
        return await self._run(f'UPDATE "{self._schema}".{table} SET {name} = {literal}', spot)  # noqa: S608

    async def remove(self, spot: Spot) -> bool:
        if isinstance(spot, Payload):
            return False
        return await self._run(f'DELETE FROM "{self._schema}".{_row(spot).table}', spot)  # noqa: S608

    async def _run(self, statement: str, spot: Spot) -> bool:
        named = _row(spot).named
        by_id = f'n = (SELECT n FROM "{self._schema}".execution WHERE id = $%d)'  # noqa: S608
        where = " AND ".join(
            by_id % place if name == "n" else f"{name} = ${place}"
            for place, name in enumerate(named, 1)
        )
        try:
            done = await self._raw.execute(f"{statement} WHERE {where}", *named.values())
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError):
            return False
        assert done.endswith(" 1"), (spot, done)
        return True


class _Valkey:
    """Hashes have texts for values; heads and attempts are MessagePack, edges and groups JSON."""

    def __init__(self, store: ValkeyStore) -> None:
        self._store = store
        self._plain = RawValkey(store)

    async def write(self, spot: Spot, column: str, cell: Cell) -> bool:
        match spot:
            case Execution():
                if column == "id":
                    return False
                await self._edit(self._key(spot.id, "x"), column, cell)
            case Payload():
                await self._edit(self._key(spot.id, "x"), "payload", cell)
            case Attempt():
                if column == "attempt":
                    return False
                key = f"{self._key(spot.execution, 'attempt')}:{spot.attempt}"
                kept = await self._bytes("GET", key)
                cells = msgspec.msgpack.decode(kept, type=dict[str, object])
                await self._call("SET", key, msgspec.msgpack.encode({**cells, column: cell}))
            case Flow():
                if cell is None or column == "id":
                    return False
                await self._call("HSET", self._plain._place(spot)[0], column, cell)
            case Edge() | Group() | Line():
                return await self._edit_json(spot, column, cell)
            case Tag():
                if column == "key" or not isinstance(cell, bytes):
                    return False
                await self._call("HSET", self._key(spot.id, "tags"), spot.key, cell)
            case Lane():
                state, rev = (cell, b"1") if column == "state" else (b"active", cell)
                return await self._join("lanes", spot.name, state, rev)
            case Shift():
                parts: dict[str, Cell] = {"owner": b"x", "until_ms": b"0", "report": b"{}"}
                return await self._join("duties", spot.name, *{**parts, column: cell}.values())
            case Document():
                if cell is None:
                    return False
                await self._call("HSET", self._document(spot), column, cell)
            case Key() | Event() | Word():
                return False
        return True

    async def _edit(self, key: str, column: str, cell: Cell) -> None:
        kept = await self._bytes("GET", key)
        await self._call("SET", key, with_column(kept, column, cell))

    async def _edit_json(self, spot: Edge | Group | Line, column: str, cell: Cell) -> bool:
        if isinstance(cell, bytes) or column in _NAMING[type(spot)]:
            return False
        key, field = self._plain._place(spot)
        if isinstance(spot, Edge) and column in _ENDED:
            field = field.replace("edge:", "end:", 1)
        known = await self._call("HGET", key, field)
        cells = json.loads(known) if isinstance(known, bytes) and known else {}
        await self._call("HSET", key, field, json.dumps({**cells, column: cell}))
        return True

    async def _join(self, scope: str, name: str, *cells: Cell) -> bool:
        words = [cell.encode() if isinstance(cell, str) else cell or b"" for cell in cells]
        await self._call("HSET", f"{self._store.keys.shared(scope)}:all", name, b" ".join(words))
        return True

    async def remove(self, spot: Spot) -> bool:
        match spot:
            case Execution():
                await self._call("DEL", self._key(spot.id, "x"))
            case Payload():
                await self._call("DEL", self._key(spot.id, "payload"))
            case Attempt():
                await self._call("DEL", f"{self._key(spot.execution, 'attempt')}:{spot.attempt}")
            case Flow() | Edge() | Group() | Line():
                await self._plain.remove(spot)
            case _:
                return False
        return True

    def _document(self, spot: Document) -> str:
        number = scope_of(spot.kind, spot.namespace, self._store._known_counts().flow)
        kind, space = spot.kind, spot.namespace
        shelf = f"{len(kind.encode())}:{kind}:{len(space.encode())}:{space}"
        return f"{self._store.keys.partition(number)}:doc:{shelf}:{spot.name}"

    def _key(self, id: ExecutionId, what: str) -> str:
        return f"{self._store.keys.partition(partition_of(id))}:{what}:{uuid_of(id)}"

    async def _bytes(self, *words: str) -> bytes:
        kept = await self._call(*words)
        assert isinstance(kept, bytes), words
        return kept

    async def _call(self, *words: str | bytes) -> object:
        return await self._store.caller.one(command(str(words[1]), *words))


_ENDED = ("state", "generation", "attempt", "outcome", "resolved_ms")
_NAMING: dict[type[msgspec.Struct], tuple[str, ...]] = {
    Edge: ("flow", "upstream", "downstream", "group"),
    Group: ("flow", "downstream", "name"),
    Line: ("flow", "at_ms", "id"),
}
