"""Changesets: all of a call in one statement, each written as a whole or refused by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec

from flowfabric.core.flow.changes import FlowPatch, Note, Resolution
from flowfabric.core.flow.model import Edge, Group, Line
from flowfabric.core.transition import Changeset, Held, Transition
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.changes import NO_ATTEMPT, detail
from flowfabric.store.postgres.driver import Connection
from flowfabric.store.postgres.flow_rows import member_cells, rows_of
from flowfabric.store.postgres.flow_statements import PARTS, Moves, Shape
from flowfabric.store.postgres.rows import Cell, Row, attempt_cells, encode, entries_text
from flowfabric.store.postgres.statements import Argument

T = TypeVar("T")
Numbered = Sequence[tuple[int, Changeset]]


class _Rows(NamedTuple):
    """The rows of one part, and the number of the changeset that each is of."""

    which: Sequence[int]
    cells: Sequence[Row]


async def commit_each(connection: Connection, call: Call, batch: Sequence[Changeset]) -> list[bool]:
    """Answers in the order given. No changeset is about lanes."""
    shape, given = _parts(batch)
    arguments: dict[str, Argument] = {
        **call.arguments,
        **given,
        "owners": [
            *[flow.id for changes in batch for flow in changes.new_flows],
            *[flow.id for changes in batch for flow in changes.flows],
        ],
        "total": len(batch),
    }
    statement = call.sql.commit(shape)
    records = answered(await statement.fetch(connection, arguments), call)
    refused = set(records[0]["refused"])
    return [which not in refused for which in range(1, len(batch) + 1)]


def _parts(batch: Sequence[Changeset]) -> tuple[Shape, dict[str, Argument]]:
    """What the statement must hold, and its arguments: one array per column of each part."""
    numbered = list(enumerate(batch, 1))
    rows = {part: found for part, found in _by_part(numbered).items() if found.which}
    moves = dict(_moves(numbered))
    raised = frozenset(name for changes in batch for flow in changes.flows for name in flow.patch)
    parts = set(rows)
    if moves and "notes" in rows and _are_noted_and_moved(batch):
        parts.add("own")
    if all(changes.new_flows for changes in batch):
        parts.add("founding")
    shape = Shape(frozenset(parts), tuple(moves), raised)
    given: dict[str, Argument] = {}
    for part, found in rows.items():
        _give(given, part, PARTS[part], found)
    for part, kind in shape.numbered.items():
        _give(given, part, kind.given, moves[kind])
    if "members" in rows:
        members = [member for changes in batch for member in changes.members if member.tags]
        labels = {member.execution.id: member.tags for member in members}
        given["labels"] = encode(labels).decode()
    return shape, given


def _are_noted_and_moved(batch: Sequence[Changeset]) -> bool:
    noted = {note.execution for changes in batch for note in changes.notes}
    return any(move.id in noted for changes in batch for move in changes.transitions)


def _give(given: dict[str, Argument], part: str, names: Mapping[str, str], rows: _Rows) -> None:
    """Add the arguments of a part. Of a column, those equal ones that end it are not told one by
    one, for the driver takes long to write arrays; the numbers tell how many rows there are."""
    given[f"{part}_which"] = rows.which
    for name, column in zip(names, zip(*rows.cells, strict=True), strict=True):
        told, same = _shortened(column)
        given[f"{part}_{name}"] = told
        given[f"{part}_{name}_same"] = same


def _shortened(column: tuple[Cell, ...]) -> tuple[tuple[Cell, ...], Cell]:
    """A column without its end, and what stands for all of that. Nothing can stand for an end if
    it would stand for what is empty before it, too."""
    last = column[-1]
    if column.count(last) == len(column):
        return (), last
    length = len(column)
    while column[length - 1] == last:
        length -= 1
    told = column[:length]
    return (column, None) if last is not None and None in told else (told, last)


def _by_part(numbered: Numbered) -> dict[str, _Rows]:
    return {
        "new_flows": _rows(numbered, attrgetter("new_flows"), rows_of),
        "flows": _rows(numbered, _seen_flows, _flow_cells),
        "present": _rows(numbered, _present_flows, _id_cells),
        "members": _members(numbered),
        "edges": _rows(numbered, _edges, rows_of),
        "resolved": _rows(numbered, _resolved, rows_of),
        "groups": _rows(numbered, _groups, rows_of),
        "lines": _rows(numbered, _lines, rows_of),
        "done": _rows(numbered, attrgetter("done"), _keys),
        "notes": _rows(numbered, attrgetter("notes"), _note_cells),
    }


def _rows(
    numbered: Numbered,
    records_of: Callable[[Changeset], Iterable[T]],
    cells_of: Callable[[Sequence[T]], Sequence[Row]],
) -> _Rows:
    which: list[int] = []
    found: list[T] = []
    for number, changes in numbered:
        for record in records_of(changes):
            which.append(number)
            found.append(record)
    return _Rows(which, cells_of(found) if found else ())


def _moves(numbered: Numbered) -> Iterator[tuple[Moves, _Rows]]:
    """Transitions, those that are alike together; always in the same order, so that there are few
    different statements."""
    alike: dict[tuple[bool, tuple[str, ...]], list[tuple[int, int, Transition]]] = {}
    for which, changes in numbered:
        for position, move in enumerate(changes.transitions):
            kind = isinstance(move.guard, Held), tuple(move.patch)
            alike.setdefault(kind, []).append((which, position, move))
    for (held, columns), found in sorted(alike.items()):
        moves = Moves(
            held,
            columns,
            attempts=any(move.attempt is not None for _, _, move in found),
            tags=any(move.tags for _, _, move in found),
            entries=any(move.entries for _, _, move in found),
        )
        yield moves, _Rows([which for which, _, _ in found], list(_move_cells(moves, found)))


def _move_cells(kind: Moves, found: Sequence[tuple[int, int, Transition]]) -> Iterator[Row]:
    values = msgspec.to_builtins([tuple(move.patch.values()) for _, _, move in found])
    for (_, position, move), patch in zip(found, values, strict=True):
        log, attempt, tags = move.log, move.attempt, move.tags
        told = (log.kind, detail(log)) if log else (None, None)
        row: Row = (move.id, *move.guard.compared, position, *told, *patch)
        if kind.attempts:
            row += attempt_cells(attempt) if attempt else NO_ATTEMPT
        if kind.tags:
            row += (encode(tags).decode() if tags else None,)
        if kind.entries:
            row += (entries_text(move.entries),)
        yield row


def _seen_flows(changes: Changeset) -> Iterable[FlowPatch]:
    return [flow for flow in changes.flows if flow.rev is not None]


def _present_flows(changes: Changeset) -> Iterable[FlowPatch]:
    """Those that only have to be there."""
    return [flow for flow in changes.flows if flow.rev is None]


def _id_cells(flows: Sequence[FlowPatch]) -> list[Row]:
    return [(flow.id,) for flow in flows]


def _flow_cells(flows: Sequence[FlowPatch]) -> list[Row]:
    return [(flow.id, flow.rev, encode(flow.patch).decode()) for flow in flows]


def _members(numbered: Numbered) -> _Rows:
    """Those that wait for others come last: they have much in common, and are mostly more."""
    found = [(number, member) for number, changes in numbered for member in changes.members]
    found.sort(key=lambda each: each[1].execution.deps_open)
    cells = [(*member_cells(member.execution), member.payload) for _, member in found]
    return _Rows([number for number, _ in found], cells)


def _note_cells(notes: Sequence[Note]) -> list[Row]:
    return [(note.execution, note.kind, encode(note.detail).decode()) for note in notes]


def _edges(changes: Changeset) -> Iterable[Edge]:
    """New ones, as they are when all is written: parts of one statement do not see each other."""
    if not changes.edges or not changes.resolved:
        return changes.edges
    resolved = {resolution.key: resolution for resolution in changes.resolved}
    edges = {edge.key: edge for edge in changes.edges}
    return [resolved[key].of(edge) if key in resolved else edge for key, edge in edges.items()]


def _resolved(changes: Changeset) -> Iterable[Resolution]:
    """What became of edges that are not new."""
    if not changes.edges or not changes.resolved:
        return changes.resolved
    new = {edge.key for edge in changes.edges}
    return [resolution for resolution in changes.resolved if resolution.key not in new]


def _groups(changes: Changeset) -> Iterable[Group]:
    groups = changes.groups
    return {group.key: group for group in groups}.values() if len(groups) > 1 else groups


def _lines(changes: Changeset) -> Iterable[Line]:
    lines = [move.line for move in changes.transitions if move.line is not None]
    lines += changes.lines
    return {_key(line): line for line in lines}.values() if len(lines) > 1 else lines


def _keys(lines: Sequence[Line]) -> list[Row]:
    return [_key(line) for line in lines]


def _key(line: Line) -> tuple[str, int, str]:
    return (line.flow, line.at_ms, line.id)
