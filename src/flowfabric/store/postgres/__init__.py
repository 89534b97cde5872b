"""The Postgres store: asyncpg, one statement per verb."""

from flowfabric.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
