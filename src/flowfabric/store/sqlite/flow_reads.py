"""Statements that read parts of flows: few for any number of sights, all in one look."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

import msgspec

from flowfabric.core.flow.model import Edge, Flow, FlowState, Group, Line, Unreadable
from flowfabric.core.flow.views import FlowQuery, Members, Sight, View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Malformed
from flowfabric.store.damage import unreadable_flow
from flowfabric.store.sqlite.flow_rows import (
    ALL_OF_EDGE,
    ALL_OF_FLOW,
    ALL_OF_GROUP,
    ALL_OF_LINE,
    Reader,
)
from flowfabric.store.sqlite.reads import current_rows
from flowfabric.store.sqlite.rows import STATES, Rows, encode, ids_json
from flowfabric.store.sqlite.spoilt import text_or_rows
from flowfabric.store.sqlite.statements import one_text, run

_ids = msgspec.json.Decoder(list[ExecutionId])
_counts = msgspec.json.Decoder(list[tuple[str, str, int]])
_Key = tuple[str, str, str]
# By when lines must be due and how many are wanted; None for all.
_Lines = tuple[int, int] | None
_FLOW_STATES = encode(list(FlowState)).decode()


def next_turn(connection: sqlite3.Connection, now_ms: int) -> int | None:
    at_ms: int | None = run(connection, "flow_next", now_ms).fetchone()[0]
    return at_ms


class _Look:
    """What was read for several sights at once."""

    def __init__(self, connection: sqlite3.Connection, sights: Sequence[Sight]) -> None:
        self._connection = connection
        self.reader = Reader()
        self.flows: dict[str, Flow] = {
            flow.id: flow
            for flow in self.reader.flows(
                text_or_rows(
                    connection,
                    "flow_load",
                    ids_json(sight.flow for sight in sights),
                    columns=ALL_OF_FLOW,
                )
            )
        }
        self.edges: dict[str, dict[_Key, Edge]] = {}
        self.groups: dict[str, list[Group]] = {}
        self.lines: dict[tuple[str, _Lines], list[Line]] = {}
        self.heads: dict[str, Execution | Malformed] = {}
        self.tallies: dict[str, dict[str, int]] = {}

    def found(self, name: str, ids: Iterable[str | tuple[str, str]], columns: str) -> str | Rows:
        return text_or_rows(self._connection, name, ids_json(ids), columns=columns)

    def add_edges(self, edges: Iterable[Edge]) -> None:
        for edge in edges:
            self.edges.setdefault(edge.flow, {})[edge.upstream, edge.downstream, edge.group] = edge

    def edges_of(self, flow: str) -> list[Edge]:
        found = self.edges.get(flow, {})
        return [found[key] for key in sorted(found)] if len(found) > 1 else list(found.values())


def find(connection: sqlite3.Connection, query: FlowQuery) -> list[Flow]:
    states = encode(query.states).decode() if query.states else None
    wanted = (query.after, query.namespace, query.name, states, query.limit, _FLOW_STATES)
    reader = Reader()
    name = "flow_find_unsettled" if query.unsettled else "flow_find"
    found = reader.flows(text_or_rows(connection, name, *wanted, columns=ALL_OF_FLOW))
    for lost in chain.from_iterable(reader.unreadable.values()):
        raise unreadable_flow(lost.name, lost.problem)
    return sorted(found, key=attrgetter("id"))


def graph(connection: sqlite3.Connection, sights: Sequence[Sight]) -> list[View]:
    connection.execute("BEGIN")
    try:
        return _graph(connection, sights)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _graph(connection: sqlite3.Connection, sights: Sequence[Sight]) -> list[View]:
    look = _Look(connection, sights)
    _read_edges(connection, look, sights)
    pages = [
        [] if sight.members is None else _page(connection, sight.flow, sight.members)
        for sight in sights
    ]
    heads = [_heads(look, sight, page) for sight, page in zip(sights, pages, strict=True)]
    groups = dict.fromkeys((s.flow, id) for s in sights for id in _grouped(look, s))
    if groups:
        for group in look.reader.groups(look.found("group_load", groups, ALL_OF_GROUP)):
            look.groups.setdefault(group.flow, []).append(group)
    wanted = dict.fromkeys(id for ids in heads for id in ids)
    if wanted:
        look.heads = current_rows(connection, wanted)
    _read_lines(connection, look, sights)
    counted = [sight.flow for sight in sights if sight.tally]
    if counted:
        tally = one_text(connection, "flow_tally", ids_json(counted))
        for flow, state, count in _counts.decode(tally):
            look.tallies.setdefault(flow, {})[state] = count
    return [
        _view(look, sight, page, ids) for sight, page, ids in zip(sights, pages, heads, strict=True)
    ]


def _grouped(look: _Look, sight: Sight) -> list[ExecutionId]:
    return [*sight.groups, *sight.entering, *_downstreams(look, sight)]


def _downstreams(look: _Look, sight: Sight) -> list[ExecutionId]:
    leaving = set(sight.leaving)
    return [edge.downstream for edge in look.edges_of(sight.flow) if edge.upstream in leaving]


def _heads(look: _Look, sight: Sight, page: Sequence[ExecutionId]) -> list[ExecutionId]:
    found = dict.fromkeys((*sight.heads, *_downstreams(look, sight), *page))
    if sight.ends:
        entering = set(sight.entering)
        edges = look.edges_of(sight.flow)
        found |= dict.fromkeys(e.upstream for e in edges if e.downstream in entering)
    return list(found)


def _read_edges(connection: sqlite3.Connection, look: _Look, sights: Sequence[Sight]) -> None:
    for limit in {sight.edges for sight in sights if sight.leaving}:
        ids = ids_json((s.flow, id) for s in sights if s.edges == limit for id in s.leaving)
        few = Reader()
        told = text_or_rows(connection, "edge_leaving_few", ids, limit, columns=ALL_OF_EDGE)
        edges = few.edges(told)
        if len(edges) + sum(map(len, few.unreadable.values())) >= limit:
            told = text_or_rows(connection, "edge_leaving", ids, limit, columns=ALL_OF_EDGE)
            edges = look.reader.edges(told)
        else:
            for flow, lost in few.unreadable.items():
                look.reader.unreadable.setdefault(flow, []).extend(lost)
        look.add_edges(edges)
    entering = [(sight.flow, id) for sight in sights for id in sight.entering]
    if entering:
        look.add_edges(look.reader.edges(look.found("edge_entering", entering, ALL_OF_EDGE)))
    whole = [sight.flow for sight in sights if sight.whole]
    if whole:
        look.add_edges(look.reader.edges(look.found("edge_whole", whole, ALL_OF_EDGE)))


def _read_lines(connection: sqlite3.Connection, look: _Look, sights: Sequence[Sight]) -> None:
    """Flows of which the same lines are wanted are read together."""
    asks: dict[_Lines, list[str]] = {}
    for sight in sights:
        if sight.lines or sight.due_lines:
            asks.setdefault(_lines_of(sight), []).append(sight.flow)
    for ask, flows in asks.items():
        if ask is None:
            found = look.found("line_load", flows, ALL_OF_LINE)
        else:
            found = text_or_rows(connection, "line_due", ids_json(flows), *ask, columns=ALL_OF_LINE)
        for line in look.reader.lines(found):
            look.lines.setdefault((line.flow, ask), []).append(line)


def _lines_of(sight: Sight) -> _Lines:
    return None if sight.lines else (sight.now_ms, sight.due_lines)


def _page(connection: sqlite3.Connection, flow: str, page: Members) -> list[ExecutionId]:
    states = encode(page.states).decode() if page.states else None
    wanted = (flow, page.after, states, page.limit, STATES)
    return _ids.decode(one_text(connection, "member_page", *wanted))


def _view(
    look: _Look, sight: Sight, members: list[ExecutionId], ids: Sequence[ExecutionId]
) -> View:
    if sight.flow not in look.flows:
        return View(flow=None, unreadable=look.reader.unreadable.get(sight.flow, []))
    rows = [look.heads[id] for id in ids if id in look.heads]
    lost = [
        Unreadable("execution", row.id, row.problem) for row in rows if isinstance(row, Malformed)
    ]
    return View(
        flow=look.flows[sight.flow],
        edges=look.edges_of(sight.flow),
        groups=look.groups.get(sight.flow, []),
        heads={row.id: row for row in rows if isinstance(row, Execution)},
        members=members,
        lines=look.lines.get((sight.flow, _lines_of(sight)), []),
        tally=look.tallies.get(sight.flow, {}) if sight.tally else {},
        unreadable=[*look.reader.unreadable.get(sight.flow, []), *lost],
    )
