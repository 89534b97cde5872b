"""Records of the protocol before this one, brought to this one when a store is opened.

Every partition is walked, some records at a time; what is done already is passed over, so that
whoever is killed in the middle leaves what the next one to open the store goes on with.
"""

from __future__ import annotations

from flowfabric.core.ids import PartitionCounts
from flowfabric.store.valkey.answers import answer_of
from flowfabric.store.valkey.calls import Caller, function
from flowfabric.store.valkey.codec import text_of
from flowfabric.store.valkey.hinting import Hinting
from flowfabric.store.valkey.writing import Keys, Moment

RECORDS_AT_ONCE = 200
PARTITIONS_AT_ONCE = 16


class Upgrading:
    def __init__(self, caller: Caller, keys: Keys, hinting: Hinting) -> None:
        self._caller = caller
        self._keys = keys
        self._hinting = hinting

    async def walk(self, counts: PartitionCounts, moment: Moment) -> None:
        for first in range(0, counts.flow, PARTITIONS_AT_ONCE):
            last = min(first + PARTITIONS_AT_ONCE, counts.flow)
            await self._walk(dict.fromkeys(range(first, last), "0"), moment)

    async def _walk(self, left: dict[int, str], moment: Moment) -> None:
        """These partitions side by side, each from where it was left."""
        while left:
            calls = [
                function(
                    "upgrade",
                    self._keys.partition(number),
                    *moment.cells,
                    self._keys.hints,
                    RECORDS_AT_ONCE,
                    place,
                )
                for number, place in left.items()
            ]
            answers = [answer_of(reply) for reply in await self._caller.all(calls)]
            await self._hinting.tell([change for answer in answers for change in answer.changes])
            reached = [(text_of(answer.value) or b"").decode() for answer in answers]
            left = {n: place for n, place in zip(left, reached, strict=True) if place}
