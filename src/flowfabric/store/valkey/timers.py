"""What is due: executions and documents, looked for where hints say that a timer has passed.

A hint names a partition, or a partition and a kind of documents in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import NamedTuple

from flowfabric.core.model import DueBatch
from flowfabric.store.valkey.answers import Change
from flowfabric.store.valkey.calls import Call, Caller, command, reading
from flowfabric.store.valkey.codec import DocumentTimer, Timer, documents_due_of, due_of, scored
from flowfabric.store.valkey.hinting import DUE, Hinting
from flowfabric.store.valkey.writing import Keys, Moment


class Ask(NamedTuple):
    """What is due then: so many rows, and so many documents of these kinds."""

    now_ms: int
    limit: int
    kinds: Sequence[str]


class Timers:
    def __init__(self, caller: Caller, keys: Keys, hinting: Hinting) -> None:
        self._caller = caller
        self._keys = keys
        self._hinting = hinting

    async def due(self, ask: Ask, moment: Moment) -> DueBatch:
        """Look where hints say that a timer has passed, and where the next one seems to be."""
        await self._hinting.sweep_timers(moment, ask.kinds)
        hints = await self._hints(ask)
        rows: list[Timer] = []
        documents: list[DocumentTimer] = []
        upcoming: dict[str, int] = {}
        width = 1
        while True:
            next_ms = min(upcoming.values(), default=None)
            sooner = [
                place
                for place, at in hints.items()
                if at <= ask.now_ms or next_ms is None or at < next_ms
            ]
            if not sooner:
                break
            passed = [place for place in sooner if hints[place] <= ask.now_ms]
            # Where nothing has passed only the soonest matters. When that is not what it seemed,
            # others are not either: more of them are looked at each time.
            look = passed or nsmallest(width, sooner, key=hints.__getitem__)
            width *= 2
            calls = [self._call(place, ask, moment) for place in look]
            changes: list[Change] = []
            for place, answer in zip(look, await self._caller.all(calls), strict=True):
                number, _, kind = place.partition(" ")
                if kind:
                    version, first, later, found = documents_due_of(kind, answer)
                    documents += found
                else:
                    version, first, later, timers = due_of(int(number), answer)
                    rows += timers
                if first != str(hints.pop(place)):
                    changes.append(Change(DUE, place, version, first))
                if later:
                    upcoming[place] = int(later)
            await self._hinting.tell(changes)
        rows.sort(key=lambda timer: timer[:2])
        documents.sort(key=lambda timer: timer[:2])
        return DueBatch(
            [row for *_, row in rows[: ask.limit]],
            min(upcoming.values(), default=None),
            [document for *_, document in documents[: ask.limit]],
        )

    async def _hints(self, ask: Ask) -> dict[str, int]:
        key = f"{self._keys.prefix}:{DUE}"
        reply = await self._caller.one(command(key, "ZRANGE", key, 0, -1, "WITHSCORES"))
        wanted = {"", *ask.kinds}
        return {
            place: int(score) for place, score in scored(reply) if place.partition(" ")[2] in wanted
        }

    def _call(self, place: str, ask: Ask, moment: Moment) -> Call:
        number, _, kind = place.partition(" ")
        scope = self._keys.partition(int(number))
        name, cells = ("document_due", (kind,)) if kind else ("due", ())
        return reading(name, scope, *moment.cells, ask.now_ms, ask.limit, *cells)
