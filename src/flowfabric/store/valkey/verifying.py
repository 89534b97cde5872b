"""Copies in the indexes of the partitions, compared with the records and set right.

Some partitions are asked at once; a cursor says which is the next, and where in it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from flowfabric.core.ids import PartitionCounts
from flowfabric.store.upkeep import Verified
from flowfabric.store.valkey.answers import answer_of
from flowfabric.store.valkey.calls import Caller, function
from flowfabric.store.valkey.codec import verified_of
from flowfabric.store.valkey.hinting import Hinting
from flowfabric.store.valkey.writing import Keys, Moment

AT_ONCE = 16
FIRST = "ids"

_CURSOR = re.compile(r"(\d{1,6}) ([a-z]+) (\S*)")


class _Place(NamedTuple):
    """A partition, which of its indexes, and after what in that."""

    partition: int = 0
    walk: str = FIRST
    after: str = ""

    @classmethod
    def of(cls, cursor: str) -> _Place:
        """One that nobody gave out begins anew."""
        parts = _CURSOR.fullmatch(cursor)
        return cls(int(parts[1]), parts[2], parts[3]) if parts else cls()

    @property
    def text(self) -> str:
        return f"{self.partition} {self.walk} {self.after}"


class Verifying:
    def __init__(self, caller: Caller, keys: Keys, hinting: Hinting) -> None:
        self._caller = caller
        self._keys = keys
        self._hinting = hinting

    async def verify(
        self,
        cursor: str,
        limit: int,
        moment: Moment,
        counts: PartitionCounts,
        *,
        only_count: bool = False,
    ) -> Verified:
        place = _Place.of(cursor)
        repaired, left = 0, limit
        while place.partition < counts.flow and left > 0:
            last = min(place.partition + AT_ONCE, counts.flow)
            asked = [place, *(_Place(n) for n in range(place.partition + 1, last))]
            done, looked, place = await self._some(asked, left, moment, only_count=only_count)
            repaired, left = repaired + done, left - looked
        return Verified(repaired, place.text if place.partition < counts.flow else "")

    async def _some(
        self, asked: list[_Place], limit: int, moment: Moment, *, only_count: bool
    ) -> tuple[int, int, _Place]:
        """How many entries were set right, how many records were looked at, and where to go on:
        in the first partition that is not done."""
        header = (*moment.cells, self._keys.hints, limit)
        mode = ("count",) if only_count else ()
        calls = [
            function("verify", self._keys.partition(n), *header, walk, after, *mode)
            for n, walk, after in asked
        ]
        replies = await self._caller.all(calls)
        answers = [answer_of(reply) for reply in replies]
        await self._hinting.tell([change for answer in answers for change in answer.changes])
        found = [verified_of(answer.value) for answer in answers]
        repaired = sum(each.repaired for each in found)
        looked = sum(limit - each.left for each in found)
        for place, each in zip(asked, found, strict=True):
            if each.walk:
                return repaired, looked, _Place(place.partition, each.walk, each.after)
        return repaired, looked, _Place(asked[-1].partition + 1)
