"""All keys of a Valkey store as text, and back: one line of JSON for each. No test lives here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flowfabric.store import Store
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command

# How a key of each type is read, and the command that writes it again.
_READ: dict[str, tuple[str, ...]] = {
    "hash": ("HGETALL",),
    "list": ("LRANGE", "0", "-1"),
    "set": ("SMEMBERS",),
    "stream": ("XRANGE", "-", "+"),
    "string": ("GET",),
    "zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
}
_WRITE = {"hash": "HSET", "list": "RPUSH", "set": "SADD", "string": "SET"}

Cell = bytes | str


async def save(store: Store) -> str:
    assert isinstance(store, ValkeyStore)
    lines = []
    for key in sorted(await _ask(store, "KEYS", f"{store.keys.prefix}:*")):
        kind = str(await _ask(store, "TYPE", key))
        verb, *more = _READ[kind]
        held = await _ask(store, verb, key, *more)
        bare = key.removeprefix(store.keys.prefix.encode())
        lines.append(json.dumps([kind, *_texts([bare]), list(_texts(held))]))
    return "\n".join([*lines, ""])


async def restore(store: Store, text: str) -> None:
    assert isinstance(store, ValkeyStore)
    await store.network.reach()
    for line in text.splitlines():
        kind, bare, held = json.loads(line)
        key = store.keys.prefix.encode() + _bytes(bare)
        for request in _requests(kind, key, held):
            await _ask(store, *request)


def _requests(kind: str, key: bytes, held: Any) -> Iterator[list[Cell]]:
    if kind == "stream":
        for id, fields in held:
            yield ["XADD", key, _bytes(id), *map(_bytes, fields)]
    elif kind == "zset":
        for name, score in zip(held[::2], held[1::2], strict=True):
            yield ["ZADD", key, _bytes(score), _bytes(name)]
    else:
        yield [_WRITE[kind], key, *map(_bytes, held)]


async def _ask(store: ValkeyStore, *cells: Cell) -> Any:
    reply = await store.caller.one(command("any", *cells))
    return reply.decode() if isinstance(reply, bytes) and cells[0] == "TYPE" else reply


def _texts(held: Any) -> Iterator[Any]:
    """Bytes of any kind as text that JSON can hold."""
    for cell in held if isinstance(held, list) else [held]:
        yield list(_texts(cell)) if isinstance(cell, list) else cell.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
