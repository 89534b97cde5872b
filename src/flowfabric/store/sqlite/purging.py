"""Statements that find what may go, and remove it with all that is its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
_left = msgspec.json.Decoder(list[int])
_counts = msgspec.json.Decoder(list[tuple[int, int]])

Numbered = tuple[int, ExecutionId]

# Heads go last: they tell whose edges and groups the others are.
_IN_ORDER = (
    *("purge_log", "purge_payload", "purge_attempt", "purge_tag"),
    *("purge_edge", "purge_group", "purge_execution"),
)


def departing(connection: sqlite3.Connection, now_ms: int, limit: int) -> Departing:
    alone = one_text(connection, "execution_departing", now_ms, limit)
    flows = text_or_rows(connection, "flow_departing", now_ms, limit, columns=ALL_OF_FLOW)
    return Departing(_departures.decode(alone), Reader().flows(flows))


class _Flow(NamedTuple):
    """A flow that goes, or of which something stays for the next time, and its members that go."""

    id: str
    members: list[Numbered]
    is_left: bool


def purge(connection: sqlite3.Connection, wanted: Purge) -> Purged:
    found = _alone.decode(one_text(connection, "purge_seen", _seen(wanted.executions)))
    kept = {id: until_ms for _, id, until_ms in found if until_ms > wanted.now_ms}
    alone = [(n, id) for n, id, _ in found if id not in kept]
    flows = list(_flows(connection, wanted))
    members = [member for flow in flows for member in flow.members]
    stay = _empty(connection, [*alone, *members], wanted.entries)
    if stay:
        alone = [each for each in alone if each[0] not in stay]
        members = [each for each in members if each[0] not in stay]
        flows = [flow._replace(is_left=flow.is_left or _has(flow, stay)) for flow in flows]
    _remove(connection, [*alone, *members])
    gone = [flow.id for flow in flows if not flow.is_left]
    if flows:
        run(connection, "purge_line", ids_json(gone))
        run(connection, "purge_flow", ids_json(gone))
        run(connection, "purge_flow_left", ids_json(flow.id for flow in flows if flow.is_left))
    return Purged([*(id for _, id in alone), *gone], kept, len(members), len(stay))


def _flows(connection: sqlite3.Connection, wanted: Purge) -> Iterator[_Flow]:
    if not wanted.flows:
        return
    for id in _ids.decode(one_text(connection, "purge_flows_seen", _seen(wanted.flows))):
        some = _members.decode(one_text(connection, "purge_members", id, wanted.members + 1))
        yield _Flow(id, some[: wanted.members], len(some) > wanted.members)


def _has(flow: _Flow, numbers: set[int]) -> bool:
    return any(n in numbers for n, _ in flow.members)


def _empty(connection: sqlite3.Connection, rows: Sequence[Numbered], limit: int) -> set[int]:
    """Remove entries of these executions; answers which of them have some left, and so stay."""
    if not rows:
        return set()
    numbers = _numbers(rows)
    # One more than may go: if it is there, its execution is the first to stay.
    counts = dict(_counts.decode(one_text(connection, "purge_entry_count", numbers, limit + 1)))
    if not counts:
        return set()
    is_full = sum(counts.values()) > limit
    last = [n for n, _ in rows if n in counts][-1]
    whole = [n for n in counts if n != last or not is_full]
    run(connection, "purge_entry", encode(whole).decode())
    if not is_full:
        return set()
    run(connection, "purge_entry_some", last, counts[last] - 1)
    left = one_text(connection, "purge_entry_left", numbers)
    run(connection, "purge_execution_left", left)
    return set(_left.decode(left))


def _numbers(rows: Sequence[Numbered]) -> str:
    return encode([n for n, _ in rows]).decode()


def _remove(connection: sqlite3.Connection, rows: Sequence[Numbered]) -> None:
    if not rows:
        return
    numbers = _numbers(rows)
    run(connection, "purge_floor", numbers)
    run(connection, "purge_key", ids_json(id for _, id in rows))
    for name in _IN_ORDER:
        run(connection, name, numbers)


def _seen(departures: Sequence[Departure] | Sequence[FlowDeparture]) -> str:
    return encode(departures).decode()
