"""Statements that write flows, made ready as parts, and the one that takes a turn."""

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
from flowfabric.store.sqlite.spoilt import text_or_rows
from flowfabric.store.sqlite.statements import Part, many, one_text, run

_ids = msgspec.json.Decoder(list[str])
_revs = msgspec.json.Decoder(dict[str, int | None])


def seen_revs(connection: sqlite3.Connection, batch: Sequence[Changeset]) -> dict[str, int | None]:
    """The revisions of every flow that these changesets name and that is there."""
    ids = [id for changes in batch for id in changes.owners]
    if not ids:
        return {}
    return _revs.decode(one_text(connection, "flow_revs", ids_json(ids)))


def holds(changes: Changeset, revs: dict[str, int | None], existing: set[str]) -> bool:
    return (
        all(flow.id not in revs for flow in changes.new_flows)
        and all(_is_as_seen(revs.get(flow.id), flow.rev) for flow in changes.flows)
        and all(member.execution.id not in existing for member in changes.members)
    )


def _is_as_seen(rev: int | None, seen: int | None) -> bool:
    """One that was named without a revision only has to be there."""
    return rev is not None and seen in (None, rev)


def owner_parts(batch: Sequence[Changeset]) -> list[Part]:
    """New flows, whose ids must be free, patches of those that are as they were seen, and those
    that only have to be there."""
    flows = [flow for changes in batch for flow in changes.new_flows]
    shapes: dict[tuple[str, ...], list[Row]] = {}
    for flow in (flow for changes in batch for flow in changes.flows if flow.rev is not None):
        row = (flow.id, flow.rev, *flow.patch.values())
        shapes.setdefault(tuple(flow.patch), []).append(row)
    present = [(flow.id,) for changes in batch for flow in changes.flows if flow.rev is None]
    return [
        Part(many("flow_insert", flows, names=FLOW_NAMES), len(flows)),
        *(Part(many("flow_patch", rows, names=names), len(rows)) for names, rows in shapes.items()),
        Part(many("flow_present", present), len(present)),
    ]


def owned_part(batch: Sequence[Changeset]) -> Part:
    """What flows own; the flows themselves and their members are written before."""
    edges = [edge for changes in batch for edge in changes.edges]
    resolved = [
        (flow, *msgspec.structs.astuple(resolution))
        for changes in batch
        if changes.resolved
        for flow in changes.owners
        for resolution in changes.resolved
    ]
    groups = [group for changes in batch for group in changes.groups]
    lines = [line for changes in batch for line in changes.lines]
    done = [(line.flow, line.at_ms, line.id) for changes in batch for line in changes.done]
    return Part(
        [
            *many("edge_insert", edges, names=EDGE_NAMES),
            *many("edge_resolve", resolved),
            *many("group_upsert", groups, names=GROUP_NAMES),
            *many("line_upsert", lines, names=LINE_NAMES),
            *many("line_delete", done),
        ]
    )


def take(connection: sqlite3.Connection, turn: Turn) -> list[Pending | Unreadable]:
    """Lease flows that have something to do, and read them with their oldest lines."""
    ids = _free(connection, turn)[: turn.limit]
    if not ids:
        return []
    wanted = ids_json(ids)
    run(connection, "flow_take", wanted, turn.until_ms)
    reader = Reader()
    flows = reader.flows(text_or_rows(connection, "flow_load", wanted, columns=ALL_OF_FLOW))
    due = (wanted, turn.now_ms, turn.lines)
    lines = reader.lines(text_or_rows(connection, "line_due", *due, columns=ALL_OF_LINE))
    by_flow: dict[str, list[Line]] = {id: [] for id in ids}
    for line in lines:
        by_flow[line.flow].append(line)
    known = {str(flow.id): flow for flow in flows}
    lost = reader.unreadable
    return [
        Pending(known[id], mine, lost.get(id, [])) if id in known else lost[id][0]
        for id, mine in by_flow.items()
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
