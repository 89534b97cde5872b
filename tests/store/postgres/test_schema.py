"""The schema: made once however many begin, refused when it does not fit, gone when dropped."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import msgspec
import pytest

from flowfabric.core.ids import PartitionCounts
from flowfabric.core.model import Attempt, Execution, Feed, Query
from flowfabric.errors import InvalidInput, StoreMismatch
from flowfabric.store.columns import ATTEMPT_COLUMNS, COLUMNS, INSERT_COLUMNS
from flowfabric.store.postgres import PostgresStore, schema
from flowfabric.store.postgres.flow_rows import EDGE, FLOW, GROUP, LINE
from flowfabric.store.postgres.rows import sql_type
from flowfabric.testing import VirtualClock
from flowfabric.testing.build import order
from flowfabric.testing.conformance.steps import head, put, take
from tests.conftest import discard
from tests.servers import store_url
from tests.store.postgres.desk import Desk

COLUMN_QUERY = """SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped"""


async def columns(desk: Desk, table: str) -> dict[str, str]:
    raw = await desk.raw()
    return {row["attname"]: row["format_type"] for row in await raw.fetch(COLUMN_QUERY, table)}


async def test_ten_that_begin_at_once_make_one_store(desk: Desk) -> None:
    stores = [desk.store() for _ in range(10)]
    counts = await asyncio.gather(*(store.migrate() for store in stores))
    assert set(counts) == {PartitionCounts()}
    raw = await desk.raw()
    assert await raw.fetchval("SELECT count(*) FROM migration") == len(schema.known_migrations())
    assert await raw.fetchval("SELECT count(*) FROM meta WHERE name = 'incarnation'") == 1


CHILD = """
import asyncio, sys
from flowfabric.store import open_store
async def main():
    store = open_store(sys.argv[1])
    print(await store.migrate())
    await store.close()
sys.stdin.readline()
asyncio.run(main())
"""


async def test_ten_processes_that_begin_at_once_make_one_store(desk: Desk) -> None:
    url = f"{desk.server_url}?schema={desk.schema}"
    pipe = asyncio.subprocess.PIPE
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, url, stdin=pipe, stdout=pipe, stderr=pipe
        )
        for _ in range(10)
    ]
    answers = await asyncio.gather(*(child.communicate(b"go\n") for child in children))
    assert answers == [(f"{PartitionCounts()}\n".encode(), b"")] * 10


async def test_the_tables_have_the_columns_of_the_records(desk: Desk, store: PostgresStore) -> None:
    beside = {"n": "bigint", "payload": "bytea"}
    assert await columns(desk, "execution") == {c: sql_type(c) for c in COLUMNS} | beside
    expected = {c: sql_type(c) for c in ATTEMPT_COLUMNS} | {"n": "bigint"}
    assert await columns(desk, "attempt") == expected
    assert {"execution", *ATTEMPT_COLUMNS} == set(Attempt.__struct_fields__)
    flows = {"flow": FLOW, "edge": EDGE, "edge_group": GROUP, "line": LINE}
    assert {table: await columns(desk, table) for table in flows} == flows


async def test_a_new_row_gets_the_defaults_of_the_record(
    store: PostgresStore, clock: VirtualClock
) -> None:
    """What an insert does not name must start as the core thinks it does."""
    row = (await put(store, clock, order(0)))[0]
    fields = {field.name: field for field in msgspec.structs.fields(Execution)}
    for name in set(COLUMNS) - set(INSERT_COLUMNS):
        assert getattr(row, name) == fields[name].default, name


async def test_a_newer_schema_is_refused(desk: Desk, store: PostgresStore) -> None:
    raw = await desk.raw()
    await raw.execute("INSERT INTO migration VALUES (9, '0009_later', 'x')")
    with pytest.raises(StoreMismatch) as refused:
        await desk.opened()
    assert f"version {len(schema.known_migrations()) + 1}" in str(refused.value)
    assert refused.value.hint == "upgrade FlowFabric on this machine"


async def test_a_schema_made_by_another_text_is_refused(desk: Desk, store: PostgresStore) -> None:
    raw = await desk.raw()
    await raw.execute("UPDATE migration SET checksum = 'x' WHERE version = 1")
    with pytest.raises(StoreMismatch, match="another build: 0001_initial differs"):
        await desk.opened()


async def test_other_partition_counts_are_refused(desk: Desk) -> None:
    counts = PartitionCounts(flow=8)
    assert await desk.store(counts=counts).migrate() == counts
    assert await desk.store().migrate() == counts
    with pytest.raises(StoreMismatch) as refused:
        await desk.store(counts=PartitionCounts(flow=16)).migrate()
    assert refused.value.field == "partitions"


async def test_tables_of_another_program_are_not_touched(desk: Desk) -> None:
    raw = await desk.raw()
    await raw.execute(f'CREATE SCHEMA "{desk.schema}"')
    await raw.execute("CREATE TABLE lane (theirs text)")
    with pytest.raises(StoreMismatch) as refused:
        await desk.opened()
    assert "another program" in str(refused.value)
    tables = "SELECT array_agg(tablename) FROM pg_tables WHERE schemaname = $1"
    assert await raw.fetchval(tables, desk.schema) == ["lane"]


async def test_upkeep_of_a_store_that_was_never_set_up(desk: Desk) -> None:
    store = desk.store()
    names = [step.name for step in schema.known_migrations()]
    assert (await store.unmigrated(), await store.sizes()) == (names, [])
    await store.drop()
    assert await store.unmigrated() == names


async def test_sizes_are_of_every_table(desk: Desk, store: PostgresStore) -> None:
    await put(store, desk.clock, order(0, tags={"a.b": "c"}), order(1))
    await take(store, desk.clock)
    assert await store.unmigrated() == []
    sizes = {size.name: size for size in await store.sizes()}
    assert set(sizes) == set(schema.TABLES)
    rows = {name: sizes[name].rows for name in ("execution", "tag", "log", "lane", "attempt")}
    assert rows == {"execution": 2, "tag": 1, "log": 3, "lane": 1, "attempt": 0}
    assert all(size.bytes > 0 for size in sizes.values())


async def test_dropping_leaves_nothing(desk: Desk, store: PostgresStore) -> None:
    await put(store, desk.clock, order(0))
    await store.drop()
    raw = await desk.raw()
    assert await raw.fetchval("SELECT to_regnamespace($1) IS NULL", desk.schema)
    await store.drop()
    await store.migrate()
    assert await store.find(Query()) == []


async def test_dropping_keeps_what_is_not_ours(desk: Desk) -> None:
    raw = await desk.raw()
    await raw.execute(f'CREATE SCHEMA "{desk.schema}"')
    await raw.execute("CREATE TABLE theirs (a bigint)")
    await (await desk.opened()).drop()
    tables = "SELECT array_agg(tablename) FROM pg_tables WHERE schemaname = $1"
    assert await raw.fetchval(tables, desk.schema) == ["theirs"]


@pytest.mark.parametrize("name", ["My-Schema", "select", "_x9", "a" * 63])
async def test_a_schema_may_have_a_difficult_name(
    server_url: str, clock: VirtualClock, name: str
) -> None:
    desk = Desk(server_url, name, clock)
    store = await desk.opened()
    await put(store, clock, order(0))
    assert len(await take(store, clock)) == 1
    await store.drop()
    await desk.close()


@pytest.mark.parametrize(
    "name", ["", "a b", 'a"b', "a;b", "a'b", "9a", "pg_mine", "a" * 64, "größe", "a.b", "-a"]
)
def test_what_cannot_name_a_schema_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        PostgresStore(f"postgresql://host/db?schema={name}")
    assert refused.value.field == "schema"


@pytest.fixture
async def poor_user(desk: Desk) -> AsyncIterator[str]:
    """Somebody who may log in and no more."""
    raw: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(desk.server_url)
    name = f"poor_{secrets.token_hex(4)}"
    await raw.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'poor'")
    await raw.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    yield name
    await raw.execute(f"DROP OWNED BY {name}")
    await raw.execute(f"DROP ROLE {name}")
    await raw.close()


async def test_who_may_not_create_tables_is_told_what_to_grant(desk: Desk, poor_user: str) -> None:
    with pytest.raises(StoreMismatch) as refused:
        await desk.store(user=f"{poor_user}:poor").migrate()
    assert "permission denied" in str(refused.value)
    assert "grant" in refused.value.hint


async def test_who_may_not_create_tables_can_use_those_that_are_there(
    desk: Desk, store: PostgresStore, poor_user: str
) -> None:
    raw = await desk.raw()
    await raw.execute(f'GRANT USAGE ON SCHEMA "{desk.schema}" TO {poor_user}')
    await raw.execute(
        f'GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA "{desk.schema}" TO {poor_user}'
    )
    poor = desk.store(user=f"{poor_user}:poor")
    await poor.migrate()
    row = (await put(poor, desk.clock, order(0)))[0]
    assert len(await take(poor, desk.clock)) == 1
    assert (await head(store, row.id)).worker != ""
    assert len(await poor.tail(Feed())) == 2
    await poor.close()


async def test_a_test_leaves_its_schema_to_the_next_one(
    clock: VirtualClock, tmp_path: Path
) -> None:
    """Without that every test makes and drops one, and the suite takes twice as long."""
    names: list[str] = []
    for number in range(2):
        url = store_url("postgres", tmp_path / f"{number}")
        store = PostgresStore(url, clock=clock)
        await store.migrate()
        await put(store, clock)
        await discard(store)
        names.append(store.address.schema)
    assert names[0] == names[1]


async def upgraded(desk: Desk) -> None:
    """As a newer program does it: tables change, and one more migration was run."""
    raw = await desk.raw()
    version = len(schema.known_migrations()) + 1
    await raw.execute("ALTER TABLE lane RENAME COLUMN rev TO revision")
    await raw.execute("INSERT INTO migration VALUES ($1, 'newer', 'checksum')", version)


async def test_a_process_that_is_open_while_the_schema_is_upgraded_is_told_so(
    desk: Desk, clock: VirtualClock
) -> None:
    """A write that would succeed, one that would not, and a read."""
    store = desk.store()
    await store.migrate()
    await put(store, clock, order(0))
    await store.lanes("", 10)
    await upgraded(desk)
    verbs = (
        lambda: put(store, clock, order(1)),
        lambda: take(store, clock),
        lambda: store.shifts([], clock.now_ms()),
        lambda: store.lanes("", 10),
    )
    for verb in verbs:
        with pytest.raises(StoreMismatch, match="version") as refused:
            await verb()
        assert refused.value.hint == "upgrade FlowFabric on this machine"
    raw = await desk.raw()
    assert await raw.fetchval("SELECT count(*) FROM execution") == 1
