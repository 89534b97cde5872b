"""Transactions that others leave open are named, with what to do about them."""

from __future__ import annotations

from flowfabric.engine.diagnosis import Kind
from flowfabric.engine.doctor import HINDRANCE_GRACE_MS, Doctor
from flowfabric.store.clock import FollowingClock
from flowfabric.store.postgres import PostgresStore, snapshots
from flowfabric.store.postgres.driver import Connection
from flowfabric.testing import VirtualClock
from tests.store.postgres.desk import Desk, Raw

SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1"
NUMBERED = "BEGIN; SELECT pg_current_xact_id()"
BEGUN = "BEGIN; SELECT FROM pg_class LIMIT 1"


async def begun(desk: Desk, text: str) -> tuple[Raw, str]:
    raw = await desk.raw()
    await raw.execute("SET application_name = 'report'")
    await raw.execute(text)
    return raw, f"pid {raw.get_server_pid()}"


async def named(store: PostgresStore, older_than_ms: int) -> dict[str, str]:
    return {each.subject: each.sentence for each in await store.hindrances(older_than_ms)}


async def test_an_open_transaction_is_named_if_it_holds_a_snapshot_or_a_number(
    desk: Desk, store: PostgresStore
) -> None:
    reader, reading = await begun(desk, SNAPSHOT)
    _, writing = await begun(desk, NUMBERED)
    _, harmless = await begun(desk, BEGUN)
    found = await named(store, 0)
    assert {reading, writing} <= found.keys()
    assert harmless not in found
    assert "a transaction of report" in found[reading]
    assert f"pg_terminate_backend({reader.get_server_pid()})" in found[reading]
    await reader.execute("ROLLBACK")
    assert reading not in await named(store, 0)


async def test_a_transaction_that_has_just_begun_is_not_worth_a_word(
    desk: Desk, store: PostgresStore
) -> None:
    _, reading = await begun(desk, SNAPSHOT)
    assert reading not in await named(store, HINDRANCE_GRACE_MS)


async def test_the_doctor_warns_of_it_and_is_content_all_the_same(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    _, reading = await begun(desk, SNAPSHOT)
    found = await Doctor(store, FollowingClock(clock), hindrance_grace_ms=0).examine()
    assert (Kind.SLOWED, reading) in {(each.kind, each.subject) for each in found.findings}
    assert found.is_well


async def test_who_looks_for_hindrances_is_none(store: PostgresStore) -> None:
    async def look(connection: Connection) -> bool:
        found = await snapshots.hindrances(connection, store.sql, 0)
        return f"pid {connection.get_server_pid()}" in {each.subject for each in found}

    assert not await store._read(look)
