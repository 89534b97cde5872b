"""Schemas of Postgres that one test leaves to the next: emptied, and with a life of their own.

To make and drop a schema takes the server many times as long as most tests do. One that is not as
it was made, or that somebody may still be writing to, is dropped instead. No test lives here.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import FlowFabricError
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.postgres.address import quoted
from flowfabric.store.postgres.driver import Connection
from flowfabric.store.postgres.schema import TABLES, known_migrations

KEPT = {"meta", "migration"}
FACTS = {name: str(number) for name, number in asdict(PartitionCounts()).items()}
BUSY = """SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'client backend'
    AND datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle')"""
LEFT = """SELECT name, value FROM {0}.meta WHERE name NOT IN ('incarnation', 'system')
    UNION ALL SELECT name, checksum FROM {0}.migration"""
# Where the log begins, before anything of it was removed.
FLOOR = "0-0"
AS_MADE = {
    **FACTS,
    "made_schema": "1",
    "log_floor": FLOOR,
    **{migration.name: migration.checksum for migration in known_migrations()},
}


class Schemas:
    """Which schema a test has, and which ones are free."""

    def __init__(self) -> None:
        self._free: defaultdict[str, list[str]] = defaultdict(list)
        self._taken: dict[tuple[str, Path], str] = {}

    def of(self, kind: str, path: Path, *, is_new: bool = False) -> str:
        """The same for the same path until it is given back; `is_new`, one that nobody had."""
        if (kind, path) not in self._taken:
            free = self._free[kind]
            self._taken[kind, path] = free.pop() if free and not is_new else _name(path)
        return self._taken[kind, path]

    async def give_back(self, store: PostgresStore) -> None:
        """Empty it for the next test, or drop it; the store is closed either way."""
        kind = self._forget(store.address.schema)
        if kind is not None and await _is_emptied(store):
            self._free[kind].append(store.address.schema)
            await store.close()
        else:
            await store.drop()

    def _forget(self, schema: str) -> str | None:
        """The kind of store that it was made for, unless it was given back before."""
        for (kind, path), taken in self._taken.items():
            if taken == schema:
                del self._taken[kind, path]
                return kind
        return None

    async def drop(self, kind: str, server_url: str) -> None:
        """All that are free, from a server that goes on without us."""
        for schema in self._free.pop(kind, []):
            await PostgresStore(f"{server_url}?schema={schema}").drop()


def _name(path: Path) -> str:
    return f"test_{sha256(f'{path}{secrets.token_hex(8)}'.encode()).hexdigest()[:24]}"


async def _is_emptied(store: PostgresStore) -> bool:
    schema = quoted(store.address.schema)
    emptied = [f"DELETE FROM {schema}.{table}" for table in TABLES if table not in KEPT]  # noqa: S608
    emptied.append(f"UPDATE {schema}.meta SET value = '{FLOOR}' WHERE name = 'log_floor'")  # noqa: S608
    renewed = f"UPDATE {schema}.meta SET value = $1 WHERE name = 'incarnation'"  # noqa: S608

    async def empty(connection: Connection) -> bool:
        if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", schema):
            return True
        if await connection.fetchval(BUSY):
            return False
        await connection.run("; ".join(emptied))
        await connection.ask(renewed, secrets.token_hex(8))
        left = await connection.ask(LEFT.format(schema))
        return {record["name"]: record["value"] for record in left} == AS_MADE

    try:
        return await (store._write(empty) if store._pool is not None else store._alone(empty))
    except FlowFabricError:
        return False


SCHEMAS = Schemas()
