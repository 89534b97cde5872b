"""Turns of dispatchers: one statement picks flows, leases them, and answers their lines."""

from __future__ import annotations

from flowfabric.core.flow.views import Pending, Turn
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.flow_rows import Reader
from flowfabric.store.postgres.statements import Argument


async def pending(connection: Connection, call: Call, turn: Turn) -> list[Pending]:
    arguments: dict[str, Argument] = {
        **call.arguments,
        "limit": turn.limit,
        "until_ms": turn.until_ms,
        "lines": turn.lines,
        "after": turn.after,
        "only": list(dict.fromkeys(turn.only)),
    }
    statement = call.sql.take(named=bool(turn.only))
    records = answered(await statement.fetch(connection, arguments), call)
    return [
        found
        for record in records
        if record["id"] is not None and (found := _read(record)) is not None
    ]


def _read(record: Record) -> Pending | None:
    """None for a flow that cannot be read: it is kept from others until its lease ends."""
    reader = Reader()
    flows = reader.flows(f"[{record['flow']}]")
    return Pending(flows[0], reader.lines(record["lines"] or "[]")) if flows else None
