"""The embedded store: one file, several processes, nothing to install or start."""

from flowfabric.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
