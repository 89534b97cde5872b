"""Plain commands beside a store, as an operator's client would send them. No test lives here."""

from __future__ import annotations

import struct

import msgspec

from flowfabric.core.ids import ExecutionId
from flowfabric.store.valkey import ValkeyStore
from flowfabric.store.valkey.calls import command
from flowfabric.store.valkey.link import Cell, Reply, pack

# The columns that a record begins with, then numbers.
_FRONT = ("state", "reason", "lease_token", "next_kind", "namespace", "route")
_NUMBERS = (
    *("rev", "epoch", "lease_until_ms", "due_ms", "attempt", "priority", "created_ms"),
    *("next_attempt", "attempt_left_ms", "deadline_ms", "started_ms", "purge_ms"),
)


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
    return msgspec.msgpack.decode(text[_front_length(text) - 3 :], type=dict[str, object])


def with_column(text: bytes, column: str, value: object) -> bytes:
    """The text of an execution with another value in a column."""
    told = value if isinstance(value, bytes) else str(value).encode()
    flow = told if column == "flow" else text[1 : text[0] + 1]
    texts: list[bytes] = []
    position = text[0] + 3
    for name in _FRONT:
        length = int.from_bytes(text[position : position + 2], "big")
        kept = text[position + 2 : position + 2 + length]
        position += 2 + length
        texts.append(told if name == column else kept)
    past = _front_length(text)
    numbers, count = bytearray(text[position : past - 3]), text[past - 2 : past]
    if column in _NUMBERS and isinstance(value, int | None):
        known = -1.0 if value is None else float(value)
        struct.pack_into(">d", numbers, 8 * _NUMBERS.index(column), known)
    front = b"".join(len(each).to_bytes(2, "big") + each for each in texts) + numbers
    array = b"\xdc" + (int.from_bytes(count, "big") * 2).to_bytes(2, "big")
    cells = msgspec.msgpack.decode(array + text[past:], type=list[msgspec.Raw])
    named = msgspec.msgpack.encode(column)
    pairs = [pair for pair in zip(cells[::2], cells[1::2], strict=True) if bytes(pair[0]) != named]
    body = b"".join(bytes(cell) for pair in pairs for cell in pair)
    map_of = b"\xde" + (len(pairs) + 1).to_bytes(2, "big")
    written = body + named + msgspec.msgpack.encode(value)
    beginning = bytes([len(flow)]) + flow + (len(front) + 2).to_bytes(2, "big")
    return beginning + front + map_of + written


def _front_length(text: bytes) -> int:
    """Up to the first column; the beginning of the map belongs to it."""
    front = text[0] + 1
    return front + int.from_bytes(text[front : front + 2], "big") + 3
