"""Lines of many partitions in one order: by the write that they came with, then by partition.

Each partition is read some writes at a time. A line is told when no partition that may have more
can still have one before it; what was read and not yet told is kept. Each write says where the
line before it is: whoever has not reached that line has missed some that are gone.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from flowfabric.errors import CursorExpired
from flowfabric.store.valkey.codec import Write
from flowfabric.store.valkey.cursors import START, Spot, parse_spot

# How many writes of a partition are read at a time: at least so many, as each may have hundreds of
# lines, and as many as have about so many lines together, going by those that were read before.
WRITES = 4
LINES = 32
# In place of a line's number: the write was read to its end.
WHOLE = sys.maxsize


class Line(NamedTuple):
    """A line where it is; they sort in the order in which they are told."""

    version: int
    partition: int
    number: int
    text: bytes = b""

    @property
    def spot(self) -> Spot:
        return Spot(self.version, self.number)


# Reads up to so many writes of each partition after the one that is given with it.
Fetch = Callable[[Mapping[int, int], int], Awaitable[Sequence[tuple[int, list[Write]]]]]


class Merge:
    """Goes on from where each partition was read to; `wanted` are beginnings of lines. Whoever
    begins `anew` takes what is left of each partition, and where that begins is in `begun`."""

    def __init__(
        self, count: int, spots: Mapping[int, Spot], wanted: tuple[bytes, ...], *, anew: bool
    ) -> None:
        self.begun: dict[int, Spot] = {}
        self._anew = set(range(count)) if anew else set()
        self._wanted = wanted
        self._reached = {number: spots.get(number, START) for number in range(count)}
        self._read: dict[int, list[Line]] = {number: [] for number in range(count)}
        self._open: set[int] = set()
        self._ready: list[Line] = []
        self._writes = WRITES

    async def take(self, limit: int, fetch: Fetch) -> list[Line]:
        """The next lines, fewer than the limit only if there are no more."""
        self._open = set(self._reached)
        taken: list[Line] = []
        while len(taken) < limit:
            if not self._ready and not await self._advance(fetch):
                break
            some = limit - len(taken)
            taken += self._ready[:some]
            self._ready = self._ready[some:]
        return taken

    async def _advance(self, fetch: Fetch) -> bool:
        """Read until some lines can be told, and where little is left with it; False at the end."""
        while True:
            while not all(self._read[number] for number in self._open):
                low = [number for number in self._open if len(self._read[number]) < LINES // 2]
                after = {number: _exclusive(self._reached[number]) for number in low}
                self._fill(low, await fetch(after, self._writes))
            ends = [self._read[number][-1] for number in self._open]
            end = min(ends, default=None)
            for number, lines in self._read.items():
                if lines:
                    told = len(lines) if end is None else bisect_right(lines, end)
                    self._ready += lines[:told]
                    self._read[number] = lines[told:]
            self._ready.sort()
            if self._ready or not self._open:
                return bool(self._ready)

    def _fill(self, asked: Sequence[int], feeds: Sequence[tuple[int, list[Write]]]) -> None:
        found = dict(feeds)
        for number in asked:
            writes = found.get(number, [])
            if len(writes) < self._writes:
                self._open.discard(number)
            for write in writes:
                self._require_unbroken(number, write)
                self._keep(number, write)
            self._anew.discard(number)
        sizes = [len(write.lines) for writes in found.values() for write in writes]
        if sizes:
            self._writes = max(WRITES, LINES * len(sizes) // max(sum(sizes), 1))

    def _require_unbroken(self, partition: int, write: Write) -> None:
        reached = self._reached[partition]
        if write.version <= reached.version or parse_spot(write.before) <= reached:
            return
        if partition not in self._anew:
            raise CursorExpired
        self._anew.discard(partition)
        self.begun[partition] = Spot(write.version, 0)

    def _keep(self, partition: int, write: Write) -> None:
        version, number = self._reached[partition]
        first = number if write.version == version else 0
        self._read[partition] += [
            Line(write.version, partition, place, text)
            for place, text in enumerate(write.lines[first:], first + 1)
            if not self._wanted or text.startswith(self._wanted)
        ]
        self._reached[partition] = Spot(write.version, WHOLE)


def _exclusive(spot: Spot) -> int:
    """A write that was not read to its end is read again: some of its lines may be left."""
    return spot.version if spot.number == WHOLE else max(spot.version - 1, 0)
