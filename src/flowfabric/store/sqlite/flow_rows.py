"""Records of flows from rows: names of columns, and reading what can be read.

A record is a row as it is: its fields are in the order of the names here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from flowfabric.core.flow.model import (
    EDGE_COLUMNS,
    FLOW_COLUMNS,
    GROUP_COLUMNS,
    LINE_COLUMNS,
    Edge,
    Flow,
    Group,
    Line,
    Unreadable,
)
from flowfabric.store.damage import names_of, problem_of
from flowfabric.store.sqlite.rows import Rows

T = TypeVar("T", bound=msgspec.Struct)

# Two fields have names that are words of SQL.
_RENAMED = {"group": "grp", "join": "joins"}

FLOW_NAMES = FLOW_COLUMNS
LINE_NAMES = LINE_COLUMNS
EDGE_NAMES = tuple(_RENAMED.get(name, name) for name in EDGE_COLUMNS)
GROUP_NAMES = tuple(_RENAMED.get(name, name) for name in GROUP_COLUMNS)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"e.{name}" for name in names)


ALL_OF_FLOW = _listed(FLOW_NAMES)
ALL_OF_LINE = _listed(LINE_NAMES)
ALL_OF_EDGE = _listed(EDGE_NAMES)
ALL_OF_GROUP = _listed(GROUP_NAMES)

_raw = msgspec.json.Decoder(list[Sequence[object]])


class Reader:
    """Decodes rows; those that cannot be read are put aside by flow and name."""

    def __init__(self) -> None:
        self.unreadable: dict[str, list[Unreadable]] = {}

    def flows(self, found: str | Rows) -> list[Flow]:
        return self._read(found, _flows, Flow, lambda row: f"flow {row[0]}")

    def lines(self, found: str | Rows) -> list[Line]:
        return self._read(found, _lines, Line, lambda row: f"line {row[2]}")

    def edges(self, found: str | Rows) -> list[Edge]:
        return self._read(found, _edges, Edge, lambda row: f"edge {row[1]} {row[2]} {row[3]}")

    def groups(self, found: str | Rows) -> list[Group]:
        return self._read(found, _groups, Group, lambda row: f"group {row[1]} {row[2]}")

    def _read(
        self,
        told: str | Rows,
        decoder: msgspec.json.Decoder[list[T]],
        kind: type[T],
        name: Callable[[Sequence[object]], str],
    ) -> list[T]:
        rows: Rows
        if isinstance(told, str):
            try:
                return decoder.decode(told)
            except msgspec.DecodeError:
                rows = _raw.decode(told)
        else:
            rows = told
        found: list[T] = []
        for row in rows:
            try:
                found.append(msgspec.convert(row, kind, strict=False))
            except msgspec.ValidationError as error:
                table, _, rest = name(row).partition(" ")
                lost = Unreadable(table, rest, problem_of(error, names_of(kind)))
                self.unreadable.setdefault(str(row[0]), []).append(lost)
        return found


_flows = msgspec.json.Decoder(list[Flow], strict=False)
_lines = msgspec.json.Decoder(list[Line], strict=False)
_edges = msgspec.json.Decoder(list[Edge], strict=False)
_groups = msgspec.json.Decoder(list[Group], strict=False)
