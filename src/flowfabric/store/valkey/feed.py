"""The log: lines of one execution, or of all, merged from the feeds of the partitions."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from flowfabric.core.ids import ExecutionId, PartitionCounts, execution_id, partition_of
from flowfabric.core.model import Event, Feed, Value
from flowfabric.errors import CursorExpired
from flowfabric.store.valkey.calls import Caller, command
from flowfabric.store.valkey.codec import (
    feeds_of,
    history_of,
    newest_of,
    state_or_held,
    uuid_of,
)
from flowfabric.store.valkey.cursors import (
    START,
    Spot,
    Track,
    life_text,
    parse_cursor,
    parse_spot,
    rewound,
)
from flowfabric.store.valkey.writing import Keys

PAGE = 200

_detail = msgspec.json.Decoder(dict[str, Value])


class Line(NamedTuple):
    """A line where it is; they sort in the order in which they are told."""

    ms: int
    partition: int
    seq: int
    text: str


class Log:
    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys
        self._counts = PartitionCounts()
        self._incarnation = ""

    def open(self, counts: PartitionCounts, incarnation: str) -> None:
        self._counts = counts
        self._incarnation = incarnation

    async def tail(self, feed: Feed) -> list[Event]:
        life = await self._life()
        spots, is_rewound = parse_cursor(feed.after, life)
        if is_rewound:
            spots = rewound(spots)
            await self._require_there(spots)
        track = Track(life, spots)
        if feed.execution is not None:
            return await self._history(feed, feed.execution, track)
        if feed.newest and not feed.states:
            return await self._newest(track)
        return await self._all(feed, track)

    async def _life(self) -> str:
        network = self._caller.network
        for place in network.places():
            await network.link(place)
        return life_text(self._incarnation, [network.lives[place] for place in network.places()])

    async def _require_there(self, spots: dict[int, Spot]) -> None:
        """A partition that ends before the cursor has lost more than was read again."""
        for partition, last in (await self._last_spots()).items():
            if spots.get(partition, START) > last:
                raise CursorExpired

    async def _history(self, feed: Feed, id: ExecutionId, track: Track) -> list[Event]:
        partition = partition_of(id)
        key = f"{self._keys.partition(partition)}:log:{uuid_of(id)}"
        after = track.spots.get(partition, START)
        reply = await self._caller.one(command(key, "LRANGE", key, 0, -1))
        events: list[Event] = []
        for cell, text in history_of(reply):
            spot = parse_spot(cell)
            if spot > after:
                track.move(partition, spot)
                events.append(_event(partition, f"{uuid_of(id)}\t{text}", track.cursor))
        return events[-1:] if feed.newest else events[: feed.limit]

    async def _last_spots(self) -> dict[int, Spot]:
        """Where the feed of every partition ends."""
        return {line.partition: Spot(line.ms, line.seq) for line in await self._last_lines()}

    async def _last_lines(self) -> list[Line]:
        keys = [f"{self._keys.partition(n)}:feed" for n in range(self._counts.flow)]
        calls = [command(key, "XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys]
        replies = await self._caller.all(calls)
        lines = [_line(number, newest_of(reply)) for number, reply in enumerate(replies)]
        return [line for line in lines if line is not None]

    async def _newest(self, track: Track) -> list[Event]:
        lines = await self._last_lines()
        fresh = [
            line
            for line in lines
            if Spot(line.ms, line.seq) > track.spots.get(line.partition, START)
        ]
        for line in fresh:
            track.move(line.partition, Spot(line.ms, line.seq))
        last = max(fresh, default=None)
        return [] if last is None else [_event(last.partition, last.text, track.cursor)]

    async def _all(self, feed: Feed, track: Track) -> list[Event]:
        events: list[Event] = []
        while len(events) < feed.limit:
            lines = await self._next_lines(track, min(PAGE, max(feed.limit, 1)))
            if not lines:
                break
            for line in lines:
                if len(events) == feed.limit:
                    break
                track.move(line.partition, Spot(line.ms, line.seq))
                if not feed.states or _state(line.text) in feed.states:
                    events.append(_event(line.partition, line.text, track.cursor))
        return events[-1:] if feed.newest else events

    async def _next_lines(self, track: Track, count: int) -> list[Line]:
        """What follows in every partition, as far as no other can still have something before."""
        numbers = range(self._counts.flow)
        groups = [list(numbers)] if self._keys.inline else [[number] for number in numbers]
        calls = []
        for group in groups:
            keys = [f"{self._keys.partition(number)}:feed" for number in group]
            spots = [str(track.spots.get(number, START)) for number in group]
            calls.append(command(keys[0], "XREAD", "COUNT", count, "STREAMS", *keys, *spots))
        lines: list[Line] = []
        ends: list[Line] = []
        for reply in await self._caller.all(calls):
            for number, entries in feeds_of(reply):
                read = [_line(number, entry) for entry in entries]
                some = [line for line in read if line is not None]
                lines += some
                if len(entries) == count:
                    ends.append(some[-1])
        end = min(ends, default=None)
        return sorted(line for line in lines if end is None or line <= end)


def _line(partition: int, entry: tuple[bytes, str] | None) -> Line | None:
    if entry is None:
        return None
    spot = parse_spot(entry[0])
    return Line(spot.ms, partition, spot.seq, entry[1])


def _state(text: str) -> str:
    return state_or_held(text.split("\t", 4)[3])


def _event(partition: int, text: str, cursor: str) -> Event:
    uuid, at_ms, kind, state, attempt, epoch, detail = text.split("\t", 6)
    return Event(
        cursor=cursor,
        execution=execution_id(partition, uuid),
        at_ms=int(at_ms),
        kind=kind,
        state=state_or_held(state),
        attempt=int(attempt),
        epoch=int(epoch),
        detail=_detail.decode(detail),
    )
