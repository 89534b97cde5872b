"""Finding what may go, and removing it with all that is its own: a statement each."""

from __future__ import annotations

from flowfabric.core.ids import ExecutionId
from flowfabric.core.retention import Departing, Departure, Purge, Purged
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.driver import Connection
from flowfabric.store.postgres.flow_rows import Reader
from flowfabric.store.postgres.flow_statements import FlowStatements


async def departing(
    connection: Connection, sql: FlowStatements, now_ms: int, limit: int
) -> Departing:
    records = await sql.departing().fetch(connection, {"now_ms": now_ms, "limit": limit})
    alone = [Departure(ExecutionId(id), rev) for id, rev, flow in records if flow is None]
    flows = ", ".join(flow for _, __, flow in records if flow is not None)
    return Departing(alone, Reader().flows(f"[{flows}]"))


async def purge(connection: Connection, call: Call, wanted: Purge) -> Purged:
    arguments = {
        **call.arguments,
        "ids": [each.id for each in wanted.executions],
        "revs": [each.rev for each in wanted.executions],
        "flows": [each.id for each in wanted.flows],
        "flow_revs": [each.rev for each in wanted.flows],
        "members": wanted.members,
        "entries": wanted.entries,
    }
    statement = call.sql.named("purge")
    record = answered(await statement.fetch(connection, arguments), call)[0]
    kept = dict(zip(record["kept"], record["kept_until_ms"], strict=True))
    return Purged(record["gone"], kept, record["members"], record["staying"])
