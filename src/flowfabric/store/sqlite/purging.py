"""Statements that find what may go, and remove it with all that is its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.core.retention import Departing, Departure, FlowDeparture, Purge, Purged
from flowfabric.store.sqlite.flow_rows import ALL_OF_FLOW, Reader
from flowfabric.store.sqlite.rows import encode, ids_json
from flowfabric.store.sqlite.spoilt import text_or_rows
from flowfabric.store.sqlite.statements import one_text, run

_departures = msgspec.json.Decoder(list[Departure])
_alone = msgspec.json.Decoder(list[tuple[int, ExecutionId, int]])
_members = msgspec.json.Decoder(list[tuple[int, ExecutionId]])
_ids = msgspec.json.Decoder(list[str])

# Heads go last: they tell whose edges and groups the others are.
_IN_ORDER = (
    *("purge_log", "purge_payload", "purge_attempt", "purge_tag"),
    *("purge_edge", "purge_group", "purge_execution"),
)


def departing(connection: sqlite3.Connection, now_ms: int, limit: int) -> Departing:
    alone = one_text(connection, "execution_departing", now_ms, limit)
    flows = text_or_rows(connection, "flow_departing", now_ms, limit, columns=ALL_OF_FLOW)
    return Departing(_departures.decode(alone), Reader().flows(flows))


def purge(connection: sqlite3.Connection, wanted: Purge) -> Purged:
    found = _alone.decode(one_text(connection, "purge_seen", _seen(wanted.executions)))
    kept = {id: until_ms for _, id, until_ms in found if until_ms > wanted.now_ms}
    alone = [(n, id) for n, id, _ in found if id not in kept]
    gone, left, members = _flows(connection, wanted)
    _remove(connection, [*alone, *members])
    if gone or left:
        run(connection, "purge_line", ids_json(gone))
        run(connection, "purge_flow", ids_json(gone))
        run(connection, "purge_flow_left", ids_json(left))
    return Purged([*(id for _, id in alone), *gone], kept, len(members))


def _flows(
    connection: sqlite3.Connection, wanted: Purge
) -> tuple[list[str], list[str], list[tuple[int, ExecutionId]]]:
    """Flows that go, flows of which something is left, and the members that go with them."""
    if not wanted.flows:
        return [], [], []
    gone: list[str] = []
    left: list[str] = []
    members: list[tuple[int, ExecutionId]] = []
    for id in _ids.decode(one_text(connection, "purge_flows_seen", _seen(wanted.flows))):
        some = _members.decode(one_text(connection, "purge_members", id, wanted.members + 1))
        members += some[: wanted.members]
        (left if len(some) > wanted.members else gone).append(id)
    return gone, left, members


def _remove(connection: sqlite3.Connection, rows: Sequence[tuple[int, ExecutionId]]) -> None:
    if not rows:
        return
    numbers = encode([n for n, _ in rows]).decode()
    run(connection, "purge_floor", numbers)
    run(connection, "purge_key", ids_json(id for _, id in rows))
    for name in _IN_ORDER:
        run(connection, name, numbers)


def _seen(departures: Sequence[Departure] | Sequence[FlowDeparture]) -> str:
    return encode(departures).decode()
