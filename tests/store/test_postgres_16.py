"""The statements on Postgres 16: the parts of the suite that take every statement once."""

from __future__ import annotations

from importlib import import_module

import asyncpg
import pytest

from flowfabric.store.postgres import PostgresStore

PARTS = ("opening", "inserting", "keys", "claiming", "applying", "committing", "loading", "log")


@pytest.fixture
def store_kind() -> str:
    return "postgres-16"


def _collect() -> None:
    for part in PARTS:
        module = import_module(f"flowfabric.testing.conformance.{part}")
        globals().update({name: each for name, each in vars(module).items() if name[:5] == "test_"})


_collect()


async def test_it_is_a_postgres_16(store: PostgresStore) -> None:
    raw = await asyncpg.connect(store.address.dsn)
    version = raw.get_server_version().major
    await raw.close()
    assert version == 16
