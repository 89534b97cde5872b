"""Plain commands beside a store, as an operator's client would send them. No test lives here."""

from __future__ import annotations

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command
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


async def columns(store: ValkeyStore, id: ExecutionId) -> dict[str, object]:
    """What is kept of an execution."""
    key = store.keys.execution(id)
    text = await ask(store, key, "GET", key)
    assert isinstance(text, bytes)
    return msgspec.msgpack.decode(text, type=dict[str, object])
