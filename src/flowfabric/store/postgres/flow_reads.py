"""Looking at parts of flows: one statement for any number of sights, so all are of one moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.views import FlowQuery, Sight, View
from flowfabric.core.ids import ExecutionId
from flowfabric.store.damage import unreadable_flow
from flowfabric.store.postgres.driver import Connection
from flowfabric.store.postgres.flow_rows import Reader
from flowfabric.store.postgres.flow_statements import FlowStatements
from flowfabric.store.postgres.rows import Row, columns_of
from flowfabric.store.postgres.statements import Argument

_in_order = attrgetter("upstream", "downstream", "group")
_ids = msgspec.json.Decoder(list[ExecutionId])
_tally = msgspec.json.Decoder(dict[str, int])

# The arguments of each part, without the number of the sight in front.
_NAMES = {
    "leaving": ("leaving", ("id", "most")),
    "entering": ("entering", ("id",)),
    "ends": ("end", ("id",)),
    "whole": ("whole", ("flow",)),
    "pages": ("page", ("flow", "after", "states", "limit")),
    "groups": ("group", ("id",)),
    "heads": ("head", ("id",)),
    "lines": ("lined", ("flow", "due_ms", "most")),
    "tally": ("tally", ("flow",)),
}


async def next_turn(connection: Connection, sql: FlowStatements, now_ms: int) -> int | None:
    rows = await sql.named("flow_next").fetch(connection, {"now_ms": now_ms})
    at_ms: int | None = rows[0]["at_ms"]
    return at_ms


async def find(connection: Connection, sql: FlowStatements, query: FlowQuery) -> list[Flow]:
    arguments: dict[str, Argument] = {
        "after": query.after,
        "namespace": query.namespace,
        "name": query.name,
        "states": [state.value for state in query.states] or None,
        "limit": query.limit,
    }
    reader = Reader()
    rows = await sql.find(unsettled=query.unsettled).fetch(connection, arguments)
    found = reader.flows(rows[0]["flows"] or "[]")
    for lost in reader.unreadable:
        raise unreadable_flow(lost.name, lost.problem)
    return found


async def graph(connection: Connection, sql: FlowStatements, sights: Sequence[Sight]) -> list[View]:
    rows: dict[str, list[Row]] = {part: [] for part in _NAMES}
    for which, sight in enumerate(sights, 1):
        for part, found in _asked(sight).items():
            rows[part].extend((which, *row) for row in found)
    arguments: dict[str, Argument] = {"flows": [sight.flow for sight in sights]}
    for part, (prefix, names) in _NAMES.items():
        cells = columns_of(rows[part], len(names) + 1)
        given = zip(("which", *names), cells, strict=True)
        arguments |= {f"{prefix}_{name}": column for name, column in given}
    statement = sql.graph(frozenset(part for part, found in rows.items() if found))
    answers: dict[int, dict[str, str]] = {}
    for kind, which, text in await statement.fetch(connection, arguments):
        answers.setdefault(which, {})[kind] = text
    return [_view(answers.get(which, {})) for which in range(1, len(sights) + 1)]


def _asked(sight: Sight) -> dict[str, Iterable[Row]]:
    """One row for each thing asked for, by part."""
    page = sight.members
    entering = [(id,) for id in dict.fromkeys(sight.entering)]
    return {
        "leaving": [(id, sight.edges) for id in dict.fromkeys(sight.leaving)],
        "entering": entering,
        "ends": entering if sight.ends else (),
        "whole": [(sight.flow,)] if sight.whole else (),
        "pages": [(sight.flow, page.after, " ".join(page.states), page.limit)] if page else (),
        "groups": [(id,) for id in sight.groups],
        "heads": [(id,) for id in sight.heads],
        "lines": _asked_lines(sight),
        "tally": [(sight.flow,)] if sight.tally else (),
    }


def _asked_lines(sight: Sight) -> Sequence[Row]:
    """Until when a line must be due, and how many; nothing for all of them."""
    if sight.lines:
        return [(sight.flow, None, None)]
    return [(sight.flow, sight.now_ms, sight.due_lines)] if sight.due_lines else ()


def _view(found: dict[str, str]) -> View:
    reader = Reader()
    flows = reader.flows(found.get("flow", "[]"))
    if not flows:
        return View(flow=None, unreadable=reader.unreadable)
    edges = {edge.key: edge for edge in reader.edges(found.get("edge", "[]"))}
    groups = reader.groups(found.get("group", "[]"))
    heads = reader.heads(found.get("execution", "[]"))
    return View(
        flow=flows[0],
        edges=sorted(edges.values(), key=_in_order),
        groups=sorted(groups, key=attrgetter("downstream", "name")),
        heads={head.id: head for head in heads},
        members=_ids.decode(found.get("member", "[]")),
        lines=reader.lines(found.get("line", "[]")),
        tally=_tally.decode(found.get("tally", "{}")),
        unreadable=reader.unreadable,
    )
