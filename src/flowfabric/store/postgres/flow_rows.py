"""Records of flows to and from rows: names and kinds of columns, cells, and reading what can be
read.

Answers come as JSON arrays of rows whose columns stand in the order of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from flowfabric.core.flow.changes import Resolution
from flowfabric.core.flow.model import Edge, Flow, Group, Line, Unreadable
from flowfabric.core.model import Execution, Value
from flowfabric.store.columns import MEMBER_COLUMNS
from flowfabric.store.damage import names_of, problem_of
from flowfabric.store.postgres.rows import Cell, Row, insert_cells, sql_type

T = TypeVar("T", bound=msgspec.Struct)

# Two fields have names that are words of SQL.
_RENAMED = {"group": "grp", "join": "joins"}
_KINDS: dict[object, str] = {bool: "boolean", int: "bigint", int | None: "bigint"}


def _columns(record: type[msgspec.Struct]) -> dict[str, str]:
    return {
        _RENAMED.get(field.name, field.name): _KINDS.get(field.type, "text")
        for field in msgspec.structs.fields(record)
    }


# Names of columns and what they are declared as; the migration says the same.
FLOW = _columns(Flow)
EDGE = _columns(Edge)
GROUP = _columns(Group)
LINE = _columns(Line)
MEMBER = {**{name: sql_type(name) for name in MEMBER_COLUMNS}, "payload": "bytea"}
RESOLUTION = {
    name: EDGE[name]
    for name in (
        *("downstream", "grp", "upstream"),
        *("state", "generation", "attempt", "outcome", "resolved_ms"),
    )
}
DONE = {name: LINE[name] for name in ("flow", "at_ms", "id")}


def listed(columns: Iterable[str], alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in columns)


def cells_of(record: Flow | Edge | Group | Line | Resolution) -> Row:
    """In the order of its fields, which is the order of the names above."""
    values: list[Cell] = msgspec.to_builtins(record)
    return tuple(values)


def rows_of(records: Sequence[Flow | Edge | Group | Line | Resolution]) -> list[Row]:
    """The same of many."""
    rows: list[Row] = msgspec.to_builtins(records)
    return rows


def member_cells(head: Execution) -> Row:
    row: Row = insert_cells(head)
    return (*row, head.flow, head.deps_open)


# Which columns name a row that cannot be read.
_NAMED: Mapping[str, slice] = {
    "flow": slice(0, 1),
    "edge": slice(1, 4),
    "group": slice(1, 3),
    "line": slice(2, 3),
    "execution": slice(0, 1),
}
_raw = msgspec.json.Decoder(list[list[Value | float]])


class Reader:
    """Decodes rows; those that cannot be read are put aside by name."""

    def __init__(self) -> None:
        self.unreadable: list[Unreadable] = []

    def flows(self, text: str) -> list[Flow]:
        return self._read("flow", text, _flows.decode, Flow)

    def edges(self, text: str) -> list[Edge]:
        return self._read("edge", text, _edges.decode, Edge)

    def groups(self, text: str) -> list[Group]:
        return self._read("group", text, _groups.decode, Group)

    def lines(self, text: str) -> list[Line]:
        return self._read("line", text, _lines.decode, Line)

    def heads(self, text: str) -> list[Execution]:
        return self._read("execution", text, _heads.decode, Execution)

    def _read(
        self, kind: str, text: str, decode: Callable[[str], list[T]], record: type[T]
    ) -> list[T]:
        try:
            return decode(text)
        except msgspec.ValidationError:
            rows = _raw.decode(text)
        found: list[T] = []
        for row in rows:
            try:
                found.append(msgspec.convert(row, record))
            except msgspec.ValidationError as error:
                name = " ".join(str(value) for value in row[_NAMED[kind]])
                problem = problem_of(error, names_of(record))
                self.unreadable.append(Unreadable(kind, name, problem))
        return found


_flows = msgspec.json.Decoder(list[Flow])
_edges = msgspec.json.Decoder(list[Edge])
_groups = msgspec.json.Decoder(list[Group])
_lines = msgspec.json.Decoder(list[Line])
_heads = msgspec.json.Decoder(list[Execution])
