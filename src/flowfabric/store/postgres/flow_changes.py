"""Changesets: all of a call in one statement, each written as a whole or refused by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from flowfabric.core.flow.changes import Resolution
from flowfabric.core.flow.model import Edge, Line
from flowfabric.core.transition import Changeset, Seen, Transition
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.changes import NO_ATTEMPT, detail
from flowfabric.store.postgres.driver import Connection
from flowfabric.store.postgres.flow_rows import cells_of, member_cells
from flowfabric.store.postgres.flow_statements import BITS, KEPT, PARTS, Shape, moved_columns
from flowfabric.store.postgres.rows import Cell, Row, attempt_cells, columns_of, encode
from flowfabric.store.postgres.statements import Argument

_LineKey = tuple[str, int, str]
# For a column that a patch does not name: no text is this, and what stands for it is not written.
_UNSAID = "\0"


async def commit_each(connection: Connection, call: Call, batch: Sequence[Changeset]) -> list[bool]:
    """Answers in the order given. No changeset is about lanes."""
    shape, given = _parts(batch)
    arguments: dict[str, Argument] = {
        **call.arguments,
        **given,
        "owners": [id for changes in batch for id in changes.owners],
        "total": len(batch),
    }
    statement = call.sql.commit(shape)
    records = answered(await statement.fetch(connection, arguments), call)
    refused = set(records[0]["refused"])
    return [which not in refused for which in range(1, len(batch) + 1)]


class _Rows:
    """Rows by part, each with the number of its changeset in front; `moved` are the columns that
    patches of executions name."""

    def __init__(self, moved: Collection[str]) -> None:
        self.moved = [name for name in BITS if name in moved]
        self.by_part: dict[str, list[Row]] = {}

    def add(self, part: str, which: int, rows: Iterable[Row]) -> None:
        found = [(which, *row) for row in rows]
        if found:
            self.by_part.setdefault(part, []).extend(found)


def _parts(batch: Sequence[Changeset]) -> tuple[Shape, dict[str, Argument]]:
    """What the statement must hold, and its arguments: one array per column of each part."""
    moves = [transition for changes in batch for transition in changes.transitions]
    moved = frozenset(name for move in moves for name in move.patch)
    rows = _Rows(moved)
    for which, changes in enumerate(batch, 1):
        _add(rows, which, changes)
    given: dict[str, Argument] = {}
    parts = set(rows.by_part)
    if any(move.attempt is not None for move in moves):
        parts.add("attempts")
    if any(move.tags for move in moves):
        parts.add("tags")
    noted = {note.execution for changes in batch for note in changes.notes}
    if noted and not noted.isdisjoint(move.id for move in moves):
        parts.add("own")
    for part, found in rows.by_part.items():
        names = ("which", *PARTS[part])
        if part == "moves":
            names = ("which", *PARTS[part], *moved_columns(moved), *KEPT)
        for name, column in zip(names, columns_of(found, len(names)), strict=True):
            given |= _given(f"{part}_{name}", column)
    if "members" in parts:
        members = [member for changes in batch for member in changes.members]
        labels = {member.execution.id: member.tags for member in members if member.tags}
        given["labels"] = encode(labels).decode()
    always = frozenset(name for name in moved if all(name in move.patch for move in moves))
    raised = frozenset(n for changes in batch for flow in changes.flows for n in flow.patch)
    return Shape(frozenset(parts), moved, always, raised), given


def _given(name: str, column: Sequence[Cell]) -> dict[str, Argument]:
    """A column as an array, and what stands for the rows behind its end: the driver takes long to
    write arrays. The numbers of changesets are always said: they tell how many rows there are."""
    if name.endswith("_which"):
        return {name: column}
    if _UNSAID in column:
        said = next((value for value in column if value != _UNSAID), None)
        column = [said if value == _UNSAID else value for value in column]
    last = column[-1]
    length = 0 if column.count(last) == len(column) else _length(column)
    if last is not None and None in column[:length]:
        return {name: column, f"{name}_same": None}
    return {name: column[:length], f"{name}_same": last}


def _length(column: Sequence[Cell]) -> int:
    """Of what is left when all that equals the last is taken off the end."""
    length, last = len(column), column[-1]
    while column[length - 1] == last:
        length -= 1
    return length


def _add(rows: _Rows, which: int, changes: Changeset) -> None:
    rows.add("moves", which, (_move(move, rows.moved) for move in changes.transitions))
    rows.add("new_flows", which, map(cells_of, changes.new_flows))
    patches = ((flow.id, flow.rev, encode(flow.patch).decode()) for flow in changes.flows)
    rows.add("flows", which, patches)
    members = ((*member_cells(m.execution), m.payload) for m in changes.members)
    rows.add("members", which, members)
    edges, resolved = _edges(changes)
    rows.add("edges", which, map(cells_of, edges))
    rows.add("resolved", which, map(cells_of, resolved))
    groups = {group.key: group for group in changes.groups}
    rows.add("groups", which, map(cells_of, groups.values()))
    ended = (t.line for t in changes.transitions if t.line is not None)
    lines = {_key(line): line for line in (*ended, *changes.lines)}
    rows.add("lines", which, map(cells_of, lines.values()))
    rows.add("done", which, dict.fromkeys(map(_key, changes.done)))
    notes = ((note.execution, note.kind, encode(note.detail).decode()) for note in changes.notes)
    rows.add("notes", which, notes)


def _move(transition: Transition, moved: Sequence[str]) -> Row:
    patch = transition.patch
    guard, log, tags = transition.guard, transition.log, transition.tags
    held: Row = (None, *guard.compared)
    if isinstance(guard, Seen):
        held = (guard.rev, None, None, None)
    return (
        transition.id,
        *held,
        sum(BITS[name] for name in patch),
        encode(tags).decode() if tags else None,
        log.kind if log else None,
        detail(log) if log else None,
        *msgspec.to_builtins([patch.get(name, _UNSAID) for name in moved]),
        *(attempt_cells(transition.attempt) if transition.attempt else NO_ATTEMPT),
    )


def _edges(changes: Changeset) -> tuple[Iterable[Edge], Iterable[Resolution]]:
    """New edges, and what became of others: parts of one statement do not see each other."""
    edges = {edge.key: edge for edge in changes.edges}
    resolved = {resolution.key: resolution for resolution in changes.resolved}
    for key in edges.keys() & resolved.keys():
        edges[key] = resolved.pop(key).of(edges[key])
    return edges.values(), resolved.values()


def _key(line: Line) -> _LineKey:
    return (line.flow, line.at_ms, line.id)
