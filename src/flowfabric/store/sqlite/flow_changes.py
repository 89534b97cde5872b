"""Statements that write flows, run inside the writer's transaction after the guards held."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from flowfabric.core.flow.model import Line, Unreadable
from flowfabric.core.flow.views import Pending, Turn
from flowfabric.core.transition import Changeset
from flowfabric.store.sqlite.flow_rows import (
    ALL_OF_FLOW,
    ALL_OF_LINE,
    EDGE_NAMES,
    FLOW_NAMES,
    GROUP_NAMES,
    LINE_NAMES,
    Reader,
)
from flowfabric.store.sqlite.rows import Row, ids_json
from flowfabric.store.sqlite.statements import one_text, run, run_many

_ids = msgspec.json.Decoder(list[str])
_revs = msgspec.json.Decoder(dict[str, int])


def seen_revs(connection: sqlite3.Connection, batch: Sequence[Changeset]) -> dict[str, int]:
    """The revisions of every flow that these changesets name and that is there."""
    ids = [id for changes in batch for id in changes.owners]
    if not ids:
        return {}
    return _revs.decode(one_text(connection, "flow_revs", ids_json(ids)))


def holds(changes: Changeset, revs: dict[str, int], existing: set[str]) -> bool:
    return (
        all(flow.id not in revs for flow in changes.new_flows)
        and all(revs.get(flow.id) == flow.rev for flow in changes.flows)
        and all(member.execution.id not in existing for member in changes.members)
    )


def write_owners(connection: sqlite3.Connection, batch: Sequence[Changeset]) -> bool:
    """New flows, and patches of those that are as they were seen; False if one is not."""
    flows = [flow for changes in batch for flow in changes.new_flows]
    if run_many(connection, "flow_insert", flows, names=FLOW_NAMES) < len(flows):
        return False
    patches = [flow for changes in batch for flow in changes.flows]
    shapes: dict[tuple[str, ...], list[Row]] = {}
    for flow in patches:
        row = (flow.id, flow.rev, *flow.patch.values())
        shapes.setdefault(tuple(flow.patch), []).append(row)
    raised = sum(
        run_many(connection, "flow_patch", rows, names=names) for names, rows in shapes.items()
    )
    return raised == len(patches)


def write(connection: sqlite3.Connection, batch: Sequence[Changeset]) -> None:
    """What flows own; the flows themselves and their members are written."""
    edges = [edge for changes in batch for edge in changes.edges]
    run_many(connection, "edge_insert", edges, names=EDGE_NAMES)
    resolved = [resolution for changes in batch for resolution in changes.resolved]
    run_many(connection, "edge_resolve", resolved)
    groups = [group for changes in batch for group in changes.groups]
    run_many(connection, "group_upsert", groups, names=GROUP_NAMES)
    add_lines(connection, [line for changes in batch for line in changes.lines])
    done = [(line.flow, line.at_ms, line.id) for changes in batch for line in changes.done]
    run_many(connection, "line_delete", done)


def add_lines(connection: sqlite3.Connection, lines: Sequence[Line]) -> None:
    run_many(connection, "line_upsert", lines, names=LINE_NAMES)


def take(connection: sqlite3.Connection, turn: Turn) -> list[Pending | Unreadable]:
    """Lease flows that have something to do, and read them with their oldest lines."""
    ids = _free(connection, turn)[: turn.limit]
    if not ids:
        return []
    wanted = ids_json(ids)
    run(connection, "flow_take", wanted, turn.until_ms)
    reader = Reader()
    flows = reader.flows(one_text(connection, "flow_load", wanted, columns=ALL_OF_FLOW))
    text = one_text(connection, "line_due", wanted, turn.now_ms, turn.lines, columns=ALL_OF_LINE)
    by_flow: dict[str, list[Line]] = {id: [] for id in ids}
    for line in reader.lines(text):
        by_flow[line.flow].append(line)
    known = {str(flow.id): flow for flow in flows}
    lost = reader.unreadable
    return [
        Pending(known[id], lines, lost.get(id, [])) if id in known else lost[id][0]
        for id, lines in by_flow.items()
    ]


def _free(connection: sqlite3.Connection, turn: Turn) -> list[str]:
    now_ms, limit = turn.now_ms, turn.limit
    if turn.only:
        wanted = ids_json(turn.only)
        return _ids.decode(one_text(connection, "flow_with_lines_among", wanted, now_ms))
    found = _ids.decode(one_text(connection, "flow_with_lines", turn.after, now_ms, limit))
    if len(found) < limit and turn.after:
        found += _ids.decode(one_text(connection, "flow_with_lines", "", now_ms, limit))
    found += _ids.decode(one_text(connection, "flow_due", turn.after, now_ms, limit))
    return sorted(set(found), key=lambda id: (id <= turn.after, id))
