"""Cursors of the log: how far each partition has been read.

Lines have an order within their partition only; across partitions they are merged by time and
then by partition. A cursor therefore holds a position for every partition that had lines, so that
one whose clock is behind, or whose line comes late, is never passed over. It also names the life
of the store, and those of the servers: after a fail-over lines are read again from a minute before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2s
from typing import NamedTuple

from flowfabric.errors import CursorExpired, InvalidInput

REWIND_MS = 60_000

_CURSOR = re.compile(
    r"([0-9a-z]{1,64})\.([0-9a-f]{8}):((?:[0-9a-f]{1,4}=[0-9a-f]{1,16}\.[0-9a-f]{1,16},?)*)"
)


class Spot(NamedTuple):
    """Where a line is in the feed of its partition: the write that it came with, which counts
    microseconds, and its place in it."""

    version: int
    number: int


START = Spot(0, 0)
Spots = Mapping[int, Spot]


class Track:
    """How far every partition has been read; gives each line its cursor.

    Of the many parts of a cursor a line changes one, so the others are kept as they are written.
    """

    def __init__(self, life: str, spots: Spots) -> None:
        self._life = life
        self.spots = dict(spots)
        self._places: dict[int, int] = {}
        self._texts: list[str] = []
        self._lay_out()

    def move(self, partition: int, spot: Spot) -> None:
        self.spots[partition] = spot
        if partition in self._places:
            self._texts[self._places[partition]] = _text(partition, spot)
        else:
            self._lay_out()

    def _lay_out(self) -> None:
        self.spots = dict(sorted(self.spots.items()))
        self._places = {partition: place for place, partition in enumerate(self.spots)}
        self._texts = [_text(partition, spot) for partition, spot in self.spots.items()]

    @property
    def cursor(self) -> str:
        return f"{self._life}:{','.join(self._texts)}"


def _text(partition: int, spot: Spot) -> str:
    return f"{partition:x}={spot.version:x}.{spot.number:x}"


def life_text(incarnation: str, lives: Iterable[str]) -> str:
    """Of the store, and of the servers it is on now."""
    digest = blake2s("\n".join(sorted(lives)).encode(), digest_size=4).hexdigest()
    return f"{incarnation}.{digest}"


def parse_spot(text: str) -> Spot:
    version, _, number = text.partition("-")
    return Spot(int(version), int(number))


def parse_cursor(text: str, life: str) -> tuple[dict[int, Spot], bool]:
    """Where to go on in each partition, and whether servers have begun anew since then."""
    if not text:
        return {}, False
    parts = _CURSOR.fullmatch(text)
    if parts is None:
        raise InvalidInput("is not a cursor", field="after", hint="pass one that a feed gave you")
    incarnation, digest = life.split(".")
    if parts[1] != incarnation:
        raise CursorExpired
    spots: dict[int, Spot] = {}
    for entry in parts[3].split(",") if parts[3] else []:
        partition, _, place = entry.partition("=")
        version, _, number = place.partition(".")
        spots[int(partition, 16)] = Spot(int(version, 16), int(number, 16))
    return spots, parts[2] != digest


def rewound(spots: Spots) -> dict[int, Spot]:
    return {
        partition: Spot(max(spot.version - REWIND_MS * 1000, 0), 0)
        for partition, spot in spots.items()
    }
