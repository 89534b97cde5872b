"""The one place that imports asyncpg: a connection that counts, and the errors it raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
from asyncpg import exceptions as errors

from flowfabric.store.trips import Trips

if TYPE_CHECKING:
    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection

Record = asyncpg.Record
PostgresError = asyncpg.PostgresError
InterfaceError = asyncpg.InterfaceError

__all__ = ["Connection", "InterfaceError", "PostgresError", "Record", "connect", "errors"]


class Connection(_Base):
    """Every wait for the server is counted, except that a statement is prepared when a connection
    first sees it, which is one more."""

    trips: Trips | None = None

    async def ask(self, text: str, *arguments: object) -> list[Record]:
        self._count()
        return await self.fetch(text, *arguments)

    async def run(self, text: str) -> None:
        self._count()
        await self.execute(text)

    def _count(self) -> None:
        if self.trips is not None:
            self.trips.add()


async def connect(
    dsn: str, trips: Trips | None, *, seconds: float, cached: int, settings: dict[str, str]
) -> Connection:
    """A connection whose commands may take as long as the caller lets them."""
    connection: Connection = await asyncpg.connect(
        dsn,
        timeout=seconds,
        statement_cache_size=cached,
        max_cached_statement_lifetime=0,
        max_cacheable_statement_size=0,
        server_settings=settings,
        connection_class=Connection,
    )
    connection.trips = trips
    return connection
