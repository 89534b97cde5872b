"""The store on Valkey or Redis, one server or a cluster."""

from flowfabric.store.valkey.store import ValkeyStore

__all__ = ["ValkeyStore"]
