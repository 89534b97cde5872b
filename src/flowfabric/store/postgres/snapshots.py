"""Old snapshots: who keeps the server from cleaning up behind this store, and the cure."""

from __future__ import annotations

from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.statements import Statements
from flowfabric.store.upkeep import Hindrance

_CLEANS_NOTHING = (
    "the server cannot clean up rows that this store has changed or deleted since then"
)


async def hindrances(
    connection: Connection, sql: Statements, older_than_ms: int
) -> list[Hindrance]:
    arguments = {"older_than_ms": older_than_ms}
    records = await sql.named("snapshots").fetch(connection, arguments)
    return [_told(record) for record in records]


def _told(record: Record) -> Hindrance:
    name: str = record["name"]
    quoted = name.replace("'", "''")
    since = f"for {record['age_ms'] // 1000} s: {_CLEANS_NOTHING}"
    match record["kind"]:
        case "prepared":
            return Hindrance(
                f"prepared transaction {name}",
                f"has been prepared {since}; COMMIT PREPARED '{quoted}', or ROLLBACK PREPARED",
            )
        case "slot":
            return Hindrance(
                f"replication slot {name}",
                f"holds an old snapshot {since}; let its reader catch up, or "
                f"SELECT pg_drop_replication_slot('{quoted}')",
            )
        case _:
            return Hindrance(
                f"pid {name}",
                f"a transaction of {record['about']} has been open {since}; end it, or "
                f"SELECT pg_terminate_backend({name})",
            )
