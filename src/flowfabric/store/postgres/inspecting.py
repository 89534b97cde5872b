"""What the server can say about damage: pages that failed their checksum, rows without owner."""

from __future__ import annotations

from flowfabric.store.postgres.driver import Connection
from flowfabric.store.postgres.statements import Statements
from flowfabric.store.upkeep import Damage


async def inspect(connection: Connection, sql: Statements) -> list[Damage]:
    records = await sql.named("inspect").fetch(connection, {})
    return [
        Damage(record["subject"], f"{record['count']} {record['what']}")
        for record in records
        if record["count"]
    ]
