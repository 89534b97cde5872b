"""Raw clients: write single cells and remove single records past the store, as nobody should.

One for each store, with that store's own client. The memory store has nobody beside it who could
write; there a record that would not decode is marked as such. No test lives here.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from typing import Protocol, assert_never

import asyncpg
import msgspec

from flowfabric.core.flow.model import Edge, Flow, Group, Line
from flowfabric.core.ids import FlowId, flow_partition, partition_of
from flowfabric.core.model import Execution
from flowfabric.store import Store
from flowfabric.store.damage import names_of, problem_of
from flowfabric.store.memory import MemoryStore
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.testing.flows import COUNTS
from tests.store.valkey.raw import with_column

Record = Execution | Flow | Edge | Group | Line

_RENAMED = {"group": "grp", "join": "joins"}
_TIMERS = {"due_ms": ":due", "purge_ms": ":purge"}
_ENDED = ("state", "generation", "attempt", "outcome", "resolved_ms")


class Raw(Protocol):
    """Writes a text or nothing into a column of a record, or removes the record."""

    async def write(self, record: Record, column: str, text: str) -> None: ...

    async def clear(self, record: Record, column: str) -> None: ...

    async def remove(self, record: Record) -> None: ...


def raw_client(store: Store) -> Raw:
    match store:
        case MemoryStore():
            return RawMemory(store)
        case SqliteStore():
            return RawSqlite(store)
        case PostgresStore():
            return RawPostgres(store)
        case ValkeyStore():
            return RawValkey(store)
        case _:
            raise TypeError(f"nobody has said how to corrupt a {type(store).__name__}")


def row_of(record: Record) -> tuple[str, dict[str, str]]:
    """The table of a record, and the columns that name it."""
    match record:
        case Execution():
            return "execution", {"id": record.id}
        case Flow():
            return "flow", {"id": record.id}
        case Edge():
            names = {"upstream": record.upstream, "downstream": record.downstream}
            return "edge", {**names, "grp": record.group}
        case Group():
            return "edge_group", {"downstream": record.downstream, "name": record.name}
        case Line():
            return "line", {"flow": record.flow, "id": record.id}
        case _:
            assert_never(record)


class RawMemory:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def write(self, record: Record, column: str, text: str) -> None:
        spoilt = record.id if isinstance(record, Execution) else record
        try:
            new = _with(record, column, text)
        except msgspec.ValidationError as error:
            self._store.corrupt(spoilt, problem_of(error, names_of(type(record))))
            return
        self._store.corrupt(spoilt, "")
        await self.remove(record)
        self._put(new)

    async def clear(self, record: Record, column: str) -> None:
        self._put(msgspec.structs.replace(record, **{column: None}))

    def _put(self, record: Record) -> None:
        book = self._store._flows
        match record:
            case Execution():
                self._store._rows[record.id] = record
                if record.flow:
                    book._members.setdefault(record.flow, {})[record.id] = None
            case Flow():
                book._flows[record.id] = record
            case Edge():
                book._put(record)
            case Group():
                book._groups.setdefault(record.downstream, {})[record.name] = record
            case Line():
                book.add_lines([record])
            case _:
                assert_never(record)

    async def remove(self, record: Record) -> None:
        book = self._store._flows
        match record:
            case Execution():
                del self._store._rows[record.id]
                book._members.get(record.flow, {}).pop(record.id, None)
            case Flow():
                del book._flows[record.id]
            case Edge():
                del book._entering[record.downstream][record.key]
                del book._leaving[record.upstream][record.key]
            case Group():
                del book._groups[record.downstream][record.name]
            case Line():
                del book._lines[record.flow][record.at_ms, record.id]
            case _:
                assert_never(record)


def _with(record: Record, column: str, text: str) -> Record:
    """The record as it would be read with this text; a text that does not fit is refused."""
    cells = {**msgspec.structs.asdict(record), column: text}
    return msgspec.convert(list(cells.values()), type(record), strict=False)


class RawSqlite:
    def __init__(self, store: SqliteStore) -> None:
        self._path = store.path

    async def write(self, record: Record, column: str, text: str) -> None:
        table, named = row_of(record)
        name = _RENAMED.get(column, column)
        self._run(f"UPDATE {table} SET {name} = ?", named, text)  # noqa: S608 - our own names

    async def clear(self, record: Record, column: str) -> None:
        table, named = row_of(record)
        self._run(f"UPDATE {table} SET {column} = NULL", named)  # noqa: S608 - our own names

    async def remove(self, record: Record) -> None:
        table, named = row_of(record)
        self._run(f"DELETE FROM {table}", named)  # noqa: S608 - our own names

    def _run(self, statement: str, named: Mapping[str, str], *first: str) -> None:
        where = " AND ".join(f"{name} = ?" for name in named)
        with sqlite3.connect(self._path) as raw:
            done = raw.execute(f"{statement} WHERE {where}", (*first, *named.values()))
        raw.close()
        assert done.rowcount == 1


class RawPostgres:
    def __init__(self, store: PostgresStore) -> None:
        self._address = store.address

    async def write(self, record: Record, column: str, text: str) -> None:
        table, named = row_of(record)
        name = _RENAMED.get(column, column)
        # A literal has no type of its own: the server reads it as the column wants it.
        literal = "'" + text.replace("'", "''") + "'"
        update = f'UPDATE "{self._address.schema}".{table} SET {name} = {literal}'  # noqa: S608
        await self._run(update, named)

    async def clear(self, record: Record, column: str) -> None:
        table, named = row_of(record)
        update = f'UPDATE "{self._address.schema}".{table} SET {column} = NULL'  # noqa: S608
        await self._run(update, named)

    async def remove(self, record: Record) -> None:
        table, named = row_of(record)
        await self._run(f'DELETE FROM "{self._address.schema}".{table}', named)  # noqa: S608

    async def _run(self, statement: str, named: Mapping[str, str]) -> None:
        where = " AND ".join(f"{name} = ${place}" for place, name in enumerate(named, 1))
        raw = await asyncpg.connect(self._address.dsn)
        try:
            done = await raw.execute(f"{statement} WHERE {where}", *named.values())
        finally:
            await raw.close()
        assert done.endswith(" 1")


def _value(record: Record, column: str, text: str) -> object:
    """The text as what the column holds, if it can be that."""
    try:
        return getattr(_with(record, column, text), column)
    except msgspec.ValidationError:
        return text


class RawValkey:
    def __init__(self, store: ValkeyStore) -> None:
        self._store = store

    async def write(self, record: Record, column: str, text: str) -> None:
        key, field = self._place(record)
        if isinstance(record, Execution) and column == "id":
            await self._rename_member(record, text)
        elif isinstance(record, Execution):
            await self._write_head(record, column, _value(record, column, text))
        elif isinstance(record, Flow) and column == "id":
            await self._rename(record, text)
        elif isinstance(record, Flow):
            await self._call("HSET", key, column, text)
            await self._index(record, column, text)
        elif isinstance(record, Edge) and column == "downstream":
            await self._misdirect(record, text)
        elif isinstance(record, Line) and column == "flow":
            await self._misplace(record, text)
        else:
            if isinstance(record, Edge) and column in _ENDED:
                field = field.replace("edge:", "end:", 1)
            known = await self._call("HGET", key, field)
            cells = json.loads(known) if isinstance(known, bytes) and known else {}
            cells[column] = _value(record, column, text)
            await self._call("HSET", key, field, json.dumps(cells))

    async def _index(self, flow: Flow, column: str, text: str) -> None:
        """As a database does it by itself."""
        if column == "settled":
            verb = ("ZREM",) if text == "1" else ("ZADD", "0")
            await self._call(verb[0], f"{self._base(flow)}:unsettled", *verb[1:], flow.id)

    async def clear(self, record: Record, column: str) -> None:
        key, field = self._place(record)
        assert not field
        if isinstance(record, Execution):
            await self._write_head(record, column, None)
        else:
            await self._call("HDEL", key, column)

    async def _write_head(self, row: Execution, column: str, value: object) -> None:
        """With its copies in indexes, which a database keeps by itself."""
        key, base, uuid = self._place(row)[0], self._base(row), uuid_of(row.id)
        kept = await self._call("GET", key)
        assert isinstance(kept, bytes)
        await self._call("SET", key, with_column(kept, column, value))
        if column in _TIMERS:
            verb = ("ZREM",) if value is None else ("ZADD", str(value))
            await self._call(verb[0], base + _TIMERS[column], *verb[1:], uuid)
        if column == "state" and row.flow:
            await self._recount(f"{base}:tally:{row.flow}", row.state, str(value))
        if column == "state":
            queue = f"{base}:ready:{len(row.namespace)}:{row.namespace}:{row.route}"
            await self._call("ZREM", queue, uuid)

    async def _recount(self, key: str, before: str, after: str) -> None:
        known = await self._call("GET", key)
        assert isinstance(known, bytes)
        counts = Counter(msgspec.msgpack.decode(known, type=dict[str, int]))
        counts.update({after: 1})
        counts.subtract({before: 1})
        await self._call("SET", key, msgspec.msgpack.encode(dict(+counts)))

    async def _rename_member(self, row: Execution, id: str) -> None:
        base, uuid = self._base(row), uuid_of(row.id)
        await self._call("RENAME", f"{base}:x:{uuid}", f"{base}:x:{id}")
        await self._call("ZREM", f"{base}:members:{row.flow}", uuid)
        await self._call("ZADD", f"{base}:members:{row.flow}", "0", id)

    async def _rename(self, flow: Flow, id: str) -> None:
        base = self._base(flow)
        await self._call("RENAME", f"{base}:flow:{flow.id}", f"{base}:flow:{id}")
        for index in ("flow_ids", "unsettled"):
            await self._call("ZREM", f"{base}:{index}", flow.id)
            await self._call("ZADD", f"{base}:{index}", "0", id)

    async def _misdirect(self, edge: Edge, text: str) -> None:
        """The index of what leaves the upstream names somebody else."""
        leaving, upstream = f"{self._base(edge)}:leaving:{edge.flow}", uuid_of(edge.upstream)
        await self._call("ZREM", leaving, f"{upstream}:{uuid_of(edge.downstream)}:{edge.group}")
        await self._call("ZADD", leaving, "0", f"{upstream}:{text}:{edge.group}")

    async def _misplace(self, line: Line, text: str) -> None:
        """The line is kept under another name."""
        name, base = f"{line.at_ms}:{line.id}", self._base(line)
        known = await self._call("HGET", f"{base}:line:{line.flow}", name)
        assert isinstance(known, bytes)
        await self._call("ZREM", f"{base}:lines:{line.flow}", name)
        await self._call("HDEL", f"{base}:line:{line.flow}", name)
        await self._call("HSET", f"{base}:line:{text}", name, known.decode())
        await self._call("ZADD", f"{base}:lines:{text}", str(line.at_ms), name)

    async def remove(self, record: Record) -> None:
        key, field = self._place(record)
        if isinstance(record, Line):
            await self._call("ZREM", f"{self._base(record)}:lines:{record.flow}", field)
        if field:
            await self._call("HDEL", key, field)
        else:
            await self._call("DEL", key)

    def _place(self, record: Record) -> tuple[str, str]:
        """Its key, and its field there if the key holds more than one."""
        base = self._base(record)
        match record:
            case Execution():
                return f"{base}:x:{uuid_of(record.id)}", ""
            case Flow():
                return f"{base}:flow:{record.id}", ""
            case Edge():
                field = f"edge:{uuid_of(record.upstream)}:{record.group}"
                return f"{base}:edges:{uuid_of(record.downstream)}", field
            case Group():
                return f"{base}:groups:{uuid_of(record.downstream)}", record.name
            case Line():
                return f"{base}:line:{record.flow}", f"{record.at_ms}:{record.id}"
            case _:
                assert_never(record)

    def _base(self, record: Record) -> str:
        match record:
            case Execution():
                return self._store.keys.partition(partition_of(record.id))
            case Edge() | Group():
                return self._store.keys.partition(partition_of(record.downstream))
            case Line():
                return self._store.keys.partition(flow_partition(FlowId(record.flow), COUNTS))
            case Flow():
                return self._store.keys.partition(flow_partition(record.id, COUNTS))
            case _:
                assert_never(record)

    async def _call(self, *words: str | bytes) -> object:
        return await self._store.caller.one(command(str(words[1]), *words))
