"""Where keys live: the slot of a scope, and which server of a cluster serves it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from flowfabric.core.ids import crc16
from flowfabric.errors import StoreUnavailable
from flowfabric.store.valkey.address import Place
from flowfabric.store.valkey.link import Reply

SLOTS = 16_384


@lru_cache(maxsize=4096)
def slot_of(scope: str) -> int:
    """The slot of everything that begins with this scope: only what is in its braces counts."""
    start = scope.index("{") + 1
    return crc16(scope[start : scope.index("}", start)].encode()) % SLOTS


class Slots:
    """Who serves what; made anew when the cluster says that it has changed."""

    def __init__(self, ranges: Sequence[tuple[int, int, Place]]) -> None:
        self._servers: list[Place | None] = [None] * SLOTS
        for first, last, place in ranges:
            self._servers[first : last + 1] = [place] * (last + 1 - first)
        self.places: tuple[Place, ...] = tuple(dict.fromkeys(place for *_, place in ranges))

    def place(self, scope: str) -> Place:
        found = self._servers[slot_of(scope)]
        if found is None:
            raise unserved(self)
        return found

    def missing(self) -> list[int]:
        return [slot for slot, place in enumerate(self._servers) if place is None]


def unserved(slots: Slots) -> StoreUnavailable:
    missing = slots.missing()
    return StoreUnavailable(
        f"the cluster does not serve {len(missing)} of {SLOTS} slots, from {missing[0]} on",
        hint="give every slot a node (CLUSTER ADDSLOTSRANGE), or bring the lost node back",
        code="cluster",
    )


def read_slots(reply: Reply, asked: Place) -> Slots:
    """What CLUSTER SLOTS answers; a node that does not know its own name is the one we asked."""
    ranges: list[tuple[int, int, Place]] = []
    for entry in reply if isinstance(reply, list) else []:
        if isinstance(entry, list) and isinstance(entry[2], list):
            first, last, (host, port, *_) = entry[0], entry[1], entry[2]
            name = host.decode() if isinstance(host, bytes) and host else asked.host
            ranges.append((_int(first), _int(last), Place(name, _int(port))))
    return Slots(ranges)


def _int(reply: Reply) -> int:
    return reply if isinstance(reply, int) else 0
