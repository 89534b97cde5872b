"""A schema of one's own: stores that share it, raw connections to it, and its end.

No test lives here.
"""

from __future__ import annotations

from typing import TypeAlias
from urllib.parse import urlsplit

import asyncpg

from flowfabric.core.ids import PartitionCounts
from flowfabric.store.postgres import PostgresStore
from flowfabric.testing import VirtualClock

WAITED_FOR = """SELECT EXISTS (SELECT FROM pg_stat_activity
    WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))"""

Raw: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class Desk:
    """Everything that was opened through it is closed with it, and the schema is dropped."""

    def __init__(self, server_url: str, schema: str, clock: VirtualClock) -> None:
        self.server_url = server_url
        self.schema = schema
        self.clock = clock
        self._stores: list[PostgresStore] = []
        self._raws: list[Raw] = []

    def store(
        self,
        options: str = "",
        *,
        counts: PartitionCounts | None = None,
        user: str | None = None,
        on_server_time: bool = False,
    ) -> PostgresStore:
        """A store of this schema that is not open yet."""
        url = f"{self.server_url}?schema={self.schema}{options}"
        if user is not None:
            parts = urlsplit(url)
            host = parts.netloc.rpartition("@")[2]
            url = parts._replace(netloc=f"{user}@{host}").geturl()
        clock = None if on_server_time else self.clock
        store = PostgresStore(url, clock=clock, counts=counts)
        self._stores.append(store)
        return store

    async def opened(self, options: str = "") -> PostgresStore:
        store = self.store(options)
        await store.migrate()
        return store

    async def raw(self) -> Raw:
        raw: Raw = await asyncpg.connect(self.server_url)
        self._raws.append(raw)
        await raw.execute(f'SET search_path = "{self.schema}"')
        return raw

    async def leave(self) -> None:
        """Close what was opened, and let the schema be."""
        for raw in self._raws:
            await raw.close()
        for store in self._stores:
            await store.close()

    async def close(self) -> None:
        await self.leave()
        last: Raw = await asyncpg.connect(self.server_url)
        await last.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')
        await last.close()


async def waited_for(raw: Raw) -> None:
    """Until somebody waits for a lock that this connection holds."""
    while not await raw.fetchval(WAITED_FOR):
        pass
