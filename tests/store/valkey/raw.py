"""Plain commands beside a store, as an operator's client would send them. No test lives here."""

from __future__ import annotations

from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command
from flowfabric.store.valkey.codec import uuid_of
from flowfabric.store.valkey.link import Cell, Reply, pack


async def ask(store: ValkeyStore, key: str, *words: Cell) -> Reply:
    """A command, sent to the server of a key."""
    return await store.caller.one(command(key, *words))


async def ask_all(store: ValkeyStore, *words: Cell) -> list[Reply]:
    """A command, sent to every server."""
    replies: list[Reply] = []
    for place in store.network.places():
        link = await store.network.link(place)
        replies.extend(await link.ask([pack(*words)]))
    return replies


async def keys(store: ValkeyStore, pattern: str = "*") -> set[str]:
    """Every key that fits, on every server."""
    found: set[str] = set()
    for reply in await ask_all(store, "KEYS", pattern):
        assert isinstance(reply, list)
        found |= {key.decode() for key in reply if isinstance(key, bytes)}
    return found


def head_key(store: ValkeyStore, id: ExecutionId) -> str:
    return f"{store.keys.partition(partition_of(id))}:x:{uuid_of(id)}"
