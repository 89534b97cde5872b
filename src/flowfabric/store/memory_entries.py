"""The entries of the memory store: by execution and generation, topic and key.

Nothing here locks or decides; the store calls it under its lock, after the guards held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flowfabric.core.entries import Entry, Kept, Topic
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution
from flowfabric.store.upkeep import Size

# Generation, topic and key: as the other stores, all that an execution has is in this order.
_Place = tuple[int, str, str]


class EntryBook:
    def __init__(self) -> None:
        self._kept: dict[ExecutionId, dict[_Place, Kept]] = {}

    def write(self, row: Execution, entries: Iterable[Entry]) -> list[Kept]:
        """Keep those whose keys are new; answers what was there under the others."""
        mine = self._kept.setdefault(row.id, {})
        there: list[Kept] = []
        for each in entries:
            place = (row.generation, each.topic, each.key)
            if place in mine:
                there.append(mine[place])
                continue
            mine[place] = Kept(each.topic, each.key, each.body, row.generation, row.epoch, each.n)
        return there

    def read(self, row: Execution | None, ask: Topic) -> list[Kept]:
        if row is None:
            return []
        generation = row.generation if ask.generation is None else ask.generation
        found = [
            kept
            for (number, topic, key), kept in self._kept.get(row.id, {}).items()
            if (number, topic) == (generation, ask.topic) and _bytes(key) > _bytes(ask.after)
        ]
        return sorted(found, key=lambda kept: _bytes(kept.key))[: ask.limit]

    def remove(self, ids: Sequence[ExecutionId], limit: int) -> list[ExecutionId]:
        """Remove what these have, up to a limit; answers those of which something may be left."""
        left: list[ExecutionId] = []
        for id in ids:
            mine = self._kept.get(id, {})
            some = sorted(mine)[:limit]
            limit -= len(some)
            for place in some:
                del mine[place]
            if mine:
                left.append(id)
            else:
                self._kept.pop(id, None)
        return left

    def spoil(self, id: ExecutionId, topic: str, key: str, problem: str) -> None:
        """Nobody can read this entry any more."""
        mine = self._kept[id]
        for place, kept in mine.items():
            if place[1:] == (topic, key):
                mine[place] = msgspec.structs.replace(kept, body=b"", problem=problem)

    def sizes(self) -> list[Size]:
        kept = [each for mine in self._kept.values() for each in mine.values()]
        return [Size("entry", len(kept), sum(len(each.body) for each in kept))]


def _bytes(text: str) -> bytes:
    return text.encode()
