"""Turns of dispatchers: one statement picks flows, leases them, and answers their lines."""

from __future__ import annotations

from flowfabric.core.flow.model import Unreadable
from flowfabric.core.flow.views import Pending, Turn
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.flow_rows import Reader
from flowfabric.store.postgres.statements import Argument


async def pending(connection: Connection, call: Call, turn: Turn) -> list[Pending | Unreadable]:
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
    return [_read(record) for record in records if record["id"] is not None]


def _read(record: Record) -> Pending | Unreadable:
    reader = Reader()
    flows = reader.flows(f"[{record['flow']}]")
    if not flows:
        return reader.unreadable[0]
    return Pending(flows[0], reader.lines(record["lines"] or "[]"), reader.unreadable)
