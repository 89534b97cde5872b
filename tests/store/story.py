"""A small store with something of everything in it, kept as it was made by each schema version.

`python -m tests.store.story KIND` writes `made/KIND-<version>` with the schema of today, and beside
it how that is laid out. Both are made once, when a version is released, and never again: they stand
for the stores out there. No test lives here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import asyncpg
import msgspec

from flowfabric.core.entries import Append, Appended, Entry
from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import Join, OnSatisfied
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.lifecycle import Failure, complete, fail
from flowfabric.core.states import LaneState
from flowfabric.core.transition import Changeset, Held, LaneChange
from flowfabric.engine.engine import Engine
from flowfabric.store import Store, open_store
from flowfabric.store.postgres import PostgresStore
from flowfabric.store.queries import migration_names, migrations, statements
from flowfabric.store.sqlite import SqliteStore
from flowfabric.store.valkey.library import OLDEST, PROTOCOL
from flowfabric.testing.build import order, policy
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import apply, head, put, take
from flowfabric.testing.flows import FLOW, member, plan
from flowfabric.testing.servers import postgres_server, valkey_server
from tests.store import layout
from tests.store.valkey import keys

MADE = Path(__file__).with_name("made")
# What each file was when it was made.
SUMS = MADE / "SHA256SUMS"
POSTGRES_TABLES = (
    *("meta", "execution", "attempt", "tag", "idempotency", "lane", "log"),
    *("flow", "edge", "edge_group", "line", "shift", "entry", "document"),
    "document_word",
)
DELAY_MS = 60_000
# The first version of each kind of store whose file has a flow in it.
FLOWS_SINCE = {"sqlite": 2, "postgres": 2, "valkey": 1}
# The first version that keeps entries.
ENTRIES_SINCE = {"sqlite": 6, "postgres": 6, "valkey": 3}
RACE = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)


async def tell(store: Store, clock: VirtualClock) -> None:
    """Executions that wait, are delayed, run, have ended, and will be tried again."""
    soon = clock.now_ms() + DELAY_MS
    await put(store, clock, order(0, key="key", digest="one", tags={"demo.tenant": "acme"}))
    await put(store, clock, order(1, delay_until_ms=soon), order(2, lane="busy", priority=5))
    await put(
        store, clock, *(order(n, policy=policy(retries=2), payload=b"\0\xff") for n in (3, 4))
    )
    clock.advance(10)
    (done,) = await take(store, clock, only=order(3).id)
    (broken,) = await take(store, clock, only=order(4).id)
    await take(store, clock, only=order(2).id, lanes=("busy",))
    await apply(store, clock, complete(done, clock.now_ms(), b"\0result\xff"))
    await apply(store, clock, fail(broken, clock.now_ms(), Failure("broke")))
    lanes = {lane.name: lane.rev for lane in await store.lanes("", 10)}
    pause = LaneChange("busy", lanes["busy"], LaneState.PAUSED)
    assert await store.commit(Changeset(lanes=[pause]), clock.now_ms())


async def tell_flow(store: Store, clock: VirtualClock) -> None:
    """A flow in the middle of everything: a race is decided and its loser is owed a cancel, a join
    has pending edges, and an end has not been dispatched yet."""
    clock.advance(10)
    engine = Engine(store, clock=clock)
    drawn = plan("abcdxyz", "a>x b>x c>y d>y y>z", policies={"x": RACE})
    assert (await engine.flows.submit(drawn)).created
    (winner,) = await take(store, clock, only=member("a"))
    await apply(store, clock, complete(winner, clock.now_ms(), b"\0a\xff"))
    # One round and no more, as if the dispatcher had died after it.
    jobs = await engine.dispatcher._take([FLOW])
    assert await engine.dispatcher._commit(jobs) == [True]
    (told,) = await take(store, clock, only=member("c"))
    await apply(store, clock, complete(told, clock.now_ms(), b"\0c\xff"))


async def flow_of(store: Store) -> View | None:
    """All there is of the flow of the story."""
    members = [member(name) for name in "abcdxyz"]
    sight = Sight(flow=FLOW, heads=members, groups=members, whole=True, lines=True)
    view = (await store.graph([sight]))[0]
    if view.flow is None:
        return None
    # How long a dispatcher keeps a flow is no part of the story.
    flow = msgspec.structs.replace(view.flow, busy_until_ms=0)
    return msgspec.structs.replace(view, flow=flow)


async def tell_all(store: Store, clock: VirtualClock, kind: str, number: int) -> None:
    """What a file of this version holds."""
    await tell(store, clock)
    if number >= FLOWS_SINCE[kind]:
        await tell_flow(store, clock)
    if number >= ENTRIES_SINCE[kind]:
        await tell_entries(store, clock)


async def tell_entries(store: Store, clock: VirtualClock) -> None:
    """What somebody who works on an execution left beside it."""
    row = await head(store, order(2).id)
    entries = (Entry("steps", "é", b"\0\xff", 1), Entry("notes", "a", b"", 2))
    held = Held(row.epoch, row.lease_token)
    assert await store.append([Append(row.id, held, entries)], clock.now_ms()) == [Appended(row.id)]


def number_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def versions(kind: str) -> list[str]:
    """The files of this kind of store, oldest first."""
    return sorted(path.name for path in MADE.glob(f"{kind}-*") if not path.suffix)


def is_served(kind: str, name: str) -> bool:
    """Whether a store of this version is upgraded; one that is not is refused."""
    return kind != "valkey" or number_of(name) >= OLDEST


async def open_sqlite(name: str, path: Path, clock: VirtualClock) -> Store:
    with sqlite3.connect(path) as raw:
        raw.executescript((MADE / name).read_text(encoding="utf-8"))
    raw.close()
    return open_store(f"sqlite:///{path}", clock=clock)


async def save_sqlite(store: Store) -> str:
    assert isinstance(store, SqliteStore)
    with contextlib.closing(sqlite3.connect(store.path)) as raw:
        pragmas = [
            f"PRAGMA {name} = {raw.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("journal_mode", "application_id", "user_version")
        ]
        return "\n".join([*pragmas, *raw.iterdump(), ""])


_RESTORE = """
INSERT INTO {schema}.{table} OVERRIDING SYSTEM VALUE
SELECT * FROM jsonb_populate_record(NULL::{schema}.{table}, $1::jsonb)
"""


_COUNT_ON = """
SELECT setval(pg_get_serial_sequence('{schema}.{table}', '{column}'), max({column}))
FROM {schema}.{table}
"""


async def open_postgres(name: str, url: str, clock: VirtualClock) -> Store:
    """The schema as its migrations make it, and the rows as they were."""
    store = PostgresStore(url, clock=clock)
    rows: dict[str, list[str]] = json.loads((MADE / name).read_text(encoding="utf-8"))
    steps = migrations("postgres")[: number_of(name)]
    schema = f'"{store.address.schema}"'
    raw = await asyncpg.connect(store.address.dsn)
    try:
        await raw.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}")
        await raw.execute(statements("postgres")["migration_table"].format(schema=schema))
        for step in steps:
            await raw.execute(step.format(schema=schema))
        # What its migrations wrote is among the rows that are kept.
        await raw.execute(f"DELETE FROM {schema}.meta")  # noqa: S608 - our own name
        for table, lines in rows.items():
            for line in lines:
                await raw.execute(_RESTORE.format(schema=schema, table=table), line)
        for table, column in (("execution", "n"), ("log", "seq")):
            await raw.execute(_COUNT_ON.format(schema=schema, table=table, column=column))
    finally:
        await raw.close()
    return store


async def save_postgres(store: Store) -> str:
    assert isinstance(store, PostgresStore)
    raw = await asyncpg.connect(store.address.dsn)
    schema = f'"{store.address.schema}"'
    rows = {
        table: [
            record[0]
            for record in await raw.fetch(f"SELECT to_jsonb(t) FROM {schema}.{table} AS t")  # noqa: S608 - our names
        ]
        for table in (*POSTGRES_TABLES, "migration")
    }
    await raw.close()
    return json.dumps(rows, indent=1) + "\n"


async def open_valkey(name: str, url: str, clock: VirtualClock) -> Store:
    store = open_store(url, clock=clock)
    await keys.restore(store, (MADE / name).read_text(encoding="utf-8"))
    return store


SAVE = {"sqlite": save_sqlite, "postgres": save_postgres, "valkey": keys.save}


def version(kind: str) -> int:
    """The schema version of today; on Valkey the protocol of its functions."""
    return PROTOCOL if kind == "valkey" else len(migration_names(kind))


async def retold(kind: str, store: Store, clock: VirtualClock) -> str:
    """The story in an open store of today, saved."""
    await tell_all(store, clock, kind, version(kind))
    return await SAVE[kind](store)


def layout_of(kind: str, saved: str) -> list[str]:
    """How a store that was saved today is laid out."""
    match kind:
        case "sqlite":
            built = layout.sqlite_layout(saved)
        case "postgres":
            built = layout.postgres_layout(saved)
        case _:
            built = [layout.front_of_today(), *layout.valkey_layout(saved)]
    return [*layout.records_of_today(), *built]


@contextlib.contextmanager
def private_url(kind: str) -> Iterator[str]:
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/store.db"
    else:
        with postgres_server() if kind == "postgres" else valkey_server() as server:
            yield server.url


async def make(kind: str) -> None:
    """Write the files of today's version. Those that are there are never written again."""
    clock = VirtualClock()
    path = MADE / f"{kind}-{version(kind)}"
    with private_url(kind) as url, path.open("x", encoding="utf-8") as file:
        store = open_store(url, clock=clock)
        await store.migrate()
        saved = await retold(kind, store, clock)
        await store.close()
        file.write(saved)
    described = path.with_name(f"{path.name}.layout")
    described.write_text("\n".join([*layout_of(kind, saved), ""]), encoding="utf-8")
    with SUMS.open("a", encoding="utf-8") as sums:
        for made in (path, described):
            sums.write(f"{sha256(made.read_bytes()).hexdigest()}  {made.name}\n")


if __name__ == "__main__":
    asyncio.run(make(sys.argv[1]))
