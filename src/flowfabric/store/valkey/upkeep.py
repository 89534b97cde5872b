"""What somebody who keeps the store asks of it: what is missing, how large it is, its removal.

Keys are found by their prefix, server by server, some at a time, so that nobody waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from flowfabric.store.upkeep import Size
from flowfabric.store.valkey.address import Place
from flowfabric.store.valkey.codec import record, scanned
from flowfabric.store.valkey.library import (
    PROTOCOL,
    is_loaded,
    library_name,
    refuse_newer,
    refuse_protocol,
)
from flowfabric.store.valkey.link import Reply, ReplyError, pack
from flowfabric.store.valkey.network import Network
from flowfabric.store.valkey.trouble import unavailable
from flowfabric.store.valkey.writing import Keys

PAGE = 1_000
# Sizes of many keys of a kind are reckoned from as many of them.
SAMPLE = 500

KINDS = {
    "x": "execution",
    "payload": "payload",
    "attempt": "attempt",
    "tags": "tag",
    "key": "idempotency",
    "log": "log",
    "entry": "entry",
    "feed": "feed",
    "ids": "ids",
    "ready": "ready",
    "due": "due",
    "purge": "purge",
    "flow": "flow",
    "flow_ids": "flow_ids",
    "unsettled": "unsettled",
    "going": "going",
    "tally": "tally",
    "members": "member",
    "edges": "edge",
    "leaving": "leaving",
    "groups": "group",
    "line": "line",
    "lines": "lines",
    "later": "later",
    "flows": "flows",
    "doc": "document",
    "docs": "document_names",
    "word": "document_words",
    "doc_due": "document_due",
    "doc_indexes": "document_indexes",
    "": "partition",
}
SHARED = "shared"


class Keeping:
    """Upkeep of one prefix. Nothing here needs the store to be set up."""

    def __init__(self, network: Network, keys: Keys) -> None:
        self._network = network
        self._keys = keys

    async def unmigrated(self) -> list[str]:
        await self._network.reach()
        missing = [
            place
            for place in self._network.places()
            if not await is_loaded(await self._network.link(place), place)
        ]
        steps = [f"FUNCTION LOAD (flowfabric lib v{PROTOCOL})"] if missing else []
        found = await self._setup()
        if not found:
            return [*steps, "first start"]
        return [*steps, f"protocol {PROTOCOL}"] if int(found["protocol"]) < PROTOCOL else steps

    async def sizes(self) -> list[Size]:
        await self._network.reach()
        if not await self._setup():
            return []
        rows: Counter[str] = Counter()
        sampled: Counter[str] = Counter()
        taken: Counter[str] = Counter()
        for place in self._network.places():
            async for page in self._pages(place, f"{self._keys.prefix}:*"):
                rows.update(map(self._kind, page))
                some = [key for key in page if sampled[self._kind(key)] < SAMPLE]
                replies = await self._ask(place, [["MEMORY", "USAGE", key] for key in some])
                for key, reply in zip(some, replies, strict=True):
                    sampled[self._kind(key)] += 1
                    taken[self._kind(key)] += reply if isinstance(reply, int) else 0
        return [
            Size(kind, rows[kind], taken[kind] * rows[kind] // max(sampled[kind], 1))
            for kind in (*KINDS.values(), SHARED)
        ]

    async def drop(self) -> None:
        """The record of the first start goes last: what was interrupted can be repeated."""
        await self._network.reach()
        if not await self._setup(refuse_newer):
            return
        meta = self._keys.shared("meta")
        for place in self._network.places():
            async for page in self._pages(place, f"{self._keys.prefix}:*"):
                await self._ask(place, [["UNLINK", key] for key in page if key != meta])
        home = self._network.place(meta)
        await self._ask(home, [["UNLINK", meta]])
        if not [page async for page in self._pages(home, "*:{meta}") if page]:
            await self._forget_functions()

    async def _forget_functions(self) -> None:
        """No other prefix uses them here; another database's programs load them again."""
        for place in self._network.places():
            link = await self._network.link(place)
            if await is_loaded(link, place):
                await self._ask(place, [["FUNCTION", "DELETE", library_name()]])

    async def forget_hints(self) -> None:
        """They are told again, and found again by whoever looks at everything."""
        for place in self._network.places():
            async for page in self._pages(place, f"{self._keys.prefix}:{{hint:*"):
                await self._ask(place, [["UNLINK", key] for key in page])

    async def _setup(
        self, refuse: Callable[[dict[str, str], str], object] = refuse_protocol
    ) -> dict[str, str]:
        """How the store was set up, if we can serve it; nothing if it never was."""
        meta = self._keys.shared("meta")
        (reply,) = await self._ask(self._network.place(meta), [["HGETALL", meta]])
        found = record(reply)
        if found:
            refuse(found, self._keys.prefix)
        return found

    def _kind(self, key: str) -> str:
        family, _, rest = key.removeprefix(f"{self._keys.prefix}:{{").partition("}")
        if not family.startswith("fp:"):
            return SHARED
        return KINDS.get(rest.removeprefix(":").partition(":")[0], SHARED)

    async def _pages(self, place: Place, pattern: str) -> AsyncIterator[list[str]]:
        cursor = "0"
        while True:
            (reply,) = await self._ask(
                place, [["SCAN", cursor, "MATCH", pattern, "COUNT", str(PAGE)]]
            )
            cursor, keys = scanned(reply)
            yield keys
            if cursor == "0":
                return

    async def _ask(self, place: Place, requests: Sequence[Sequence[str]]) -> list[Reply]:
        if not requests:
            return []
        link = await self._network.link(place)
        replies = await link.ask([pack(*request) for request in requests])
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise unavailable(reply, place)
        return replies
