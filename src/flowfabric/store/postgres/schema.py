"""The schema: made and upgraded by numbered migrations, checked at every start, dropped whole.

Whoever starts first migrates, in one transaction under a lock that the others wait for. A store
that is up to date is only looked at, so a user without the right to create tables can use it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import NamedTuple

from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import StoreMismatch
from flowfabric.store.postgres.address import Address, quoted
from flowfabric.store.postgres.connections import transaction
from flowfabric.store.postgres.driver import Connection, errors
from flowfabric.store.postgres.rows import Cell
from flowfabric.store.postgres.statements import Argument, Statements
from flowfabric.store.queries import migration_names, migrations
from flowfabric.store.upkeep import Size

TABLES = (
    *("meta", "execution", "attempt", "tag", "idempotency", "lane", "log", "migration"),
    *("flow", "edge", "edge_group", "line", "shift", "entry", "document", "document_word"),
)
COUNTED_MAX = 1_000_000


class Migration(NamedTuple):
    """One step; the checksum is of its text as it is in the package."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return sha256(self.text.encode()).hexdigest()


def known_migrations() -> list[Migration]:
    named = zip(migration_names("postgres"), migrations("postgres"), strict=True)
    return [Migration(version, name, text) for version, (name, text) in enumerate(named, 1)]


async def prepare(
    connection: Connection, sql: Statements, address: Address, wanted: PartitionCounts | None
) -> PartitionCounts:
    """Bring the schema up to date, or refuse."""
    if await pending(connection, sql, address):
        try:
            async with transaction(connection):
                await _lock(connection, address)
                await _migrate(connection, sql, address, wanted or PartitionCounts())
        except errors.DuplicateTableError as error:
            raise StoreMismatch(
                f"schema {address.schema!r} has tables of another program: {error}",
                hint="choose another schema in the URL: ?schema=name",
            ) from error
    return await _checked(connection, sql, address, wanted)


async def pending(connection: Connection, sql: Statements, address: Address) -> list[str]:
    """The names of the migrations that were not run yet; refuses what it cannot follow."""
    known = known_migrations()
    ran = await _ran(connection, sql, address)
    if len(ran) > len(known):
        raise StoreMismatch(
            f"schema {address.schema!r} has version {len(ran)}, "
            f"but this FlowFabric supports {len(known)}",
            hint="upgrade FlowFabric on this machine",
        )
    for step, (name, checksum) in zip(known, ran, strict=False):
        if step.checksum != checksum:
            raise StoreMismatch(
                f"schema {address.schema!r} was made by another build: {name} differs",
                hint="use the FlowFabric that made it, or choose another with ?schema=name",
            )
    return [step.name for step in known[len(ran) :]]


async def _ran(
    connection: Connection, sql: Statements, address: Address
) -> Sequence[tuple[str, str]]:
    table = f"{quoted(address.schema)}.migration"
    if await value(connection, "SELECT to_regclass($1) IS NULL", table):
        return []
    records = await sql.named("migration_load").fetch(connection, {})
    return [(record["name"], record["checksum"]) for record in records]


async def value(connection: Connection, text: str, *arguments: str) -> Cell:
    """The one cell of the one row."""
    found: Cell = (await connection.ask(text, *arguments))[0][0]
    return found


async def _lock(connection: Connection, address: Address) -> None:
    text = f"flowfabric:{address.schema}"
    await value(connection, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", text)


async def _migrate(
    connection: Connection, sql: Statements, address: Address, counts: PartitionCounts
) -> None:
    schema = quoted(address.schema)
    made = await value(connection, "SELECT to_regnamespace($1) IS NULL", schema)
    if made:
        await connection.run(f"CREATE SCHEMA {schema}")
    await connection.run(sql.named("migration_table").text)
    ran = await _ran(connection, sql, address)
    for step in known_migrations()[len(ran) :]:
        await connection.run(step.text.format(schema=schema))
        ran_step: dict[str, Argument] = {
            "version": step.version,
            "name": step.name,
            "checksum": step.checksum,
        }
        await sql.named("migration_add").fetch(connection, ran_step)
    if not ran:
        facts = {
            **asdict(counts),
            "incarnation": secrets.token_hex(8),
            "system": await value(
                connection, "SELECT system_identifier::text FROM pg_control_system()"
            ),
            "made_schema": int(bool(made)),
        }
        values = [str(value) for value in facts.values()]
        await sql.named("meta_set").fetch(connection, {"names": list(facts), "values": values})


async def _checked(
    connection: Connection, sql: Statements, address: Address, wanted: PartitionCounts | None
) -> PartitionCounts:
    records = await sql.named("meta_load").fetch(connection, {})
    facts: dict[str, str] = {record["name"]: record["value"] for record in records}
    if facts["system"] != facts["system_now"]:
        await _move_in(connection, sql, address)
    stored = PartitionCounts(**{name: int(facts[name]) for name in asdict(PartitionCounts())})
    if wanted is not None and wanted != stored:
        raise StoreMismatch(
            f"schema {address.schema!r} was set up with partitions {stored}, not {wanted}",
            field="partitions",
            hint="omit the counts, or use a new schema: the first start fixes them",
        )
    return stored


async def _move_in(connection: Connection, sql: Statements, address: Address) -> None:
    """A dump restored on another server: its lines carry numbers of transactions that this server
    has not given out yet, and would be hidden until it has. Cursors of the old server end here."""
    async with transaction(connection):
        await _lock(connection, address)
        await sql.named("log_renumber").fetch(connection, {})
        await sql.named("floor_reset").fetch(connection, {})
        await sql.named("meta_moved").fetch(connection, {})


async def sizes(connection: Connection, sql: Statements, address: Address) -> list[Size]:
    """How many rows each table has, and its bytes with all that belongs to it.

    A table that the server says is large is not counted again: its own estimate will do.
    """
    if not await _ran(connection, sql, address):
        return []
    found: list[Size] = []
    for record in await sql.named("sizes").fetch(connection, {"schema_name": address.schema}):
        name, rows, size = record
        if name in TABLES:
            if rows < COUNTED_MAX:
                table = f"{quoted(address.schema)}.{quoted(name)}"
                counted = await value(connection, f"SELECT count(*) FROM {table}")  # noqa: S608
                rows = int(counted or 0)
            found.append(Size(name, rows, size))
    return found


async def drop(connection: Connection, sql: Statements, address: Address) -> None:
    """Remove every table of ours, and the schema if we made it and nothing else is in it."""
    schema = quoted(address.schema)
    async with transaction(connection):
        await _lock(connection, address)
        if not await _ran(connection, sql, address):
            return
        made = await value(
            connection,
            f"SELECT value = '1' FROM {schema}.meta WHERE name = 'made_schema'",  # noqa: S608
        )
        tables = ", ".join(f"{schema}.{table}" for table in TABLES)
        await connection.run(f"DROP TABLE IF EXISTS {tables}")
        await connection.run(f"DROP FUNCTION {schema}.raced()")
        used = await value(
            connection,
            "SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($1))"
            " OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = to_regnamespace($1))",
            schema,
        )
        if made and not used:
            await connection.run(f"DROP SCHEMA {schema}")
