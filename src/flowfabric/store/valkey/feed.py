"""The log: lines of one execution, or of all, merged from the feeds of the partitions."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from flowfabric.core.ids import ExecutionId, PartitionCounts, execution_id, partition_of
from flowfabric.core.model import Event, Feed, Value
from flowfabric.errors import CursorExpired
from flowfabric.store.valkey.calls import Call, Caller, command, reading
from flowfabric.store.valkey.codec import feeds_of, history_of, newest_of, state_or_held, uuid_of
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

PAGE = 250
# Lines that are only looked at cost little: more of them at a time.
LOOKED_AT = 2_000

_detail = msgspec.json.Decoder(dict[str, Value])


class Line(NamedTuple):
    """A line where it is; they sort in the order in which they are told."""

    version: int
    partition: int
    number: int
    text: str = ""

    @property
    def spot(self) -> Spot:
        return Spot(self.version, self.number)


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
        """A partition that ends before the cursor has lost more than is read again."""
        last = {line.partition: line.spot for line in await self._last_lines()}
        if any(spot > last.get(partition, START) for partition, spot in spots.items()):
            raise CursorExpired

    async def _history(self, feed: Feed, id: ExecutionId, track: Track) -> list[Event]:
        partition = partition_of(id)
        key = f"{self._keys.partition(partition)}:log:{uuid_of(id)}"
        after = track.spots.get(partition, START)
        reply = await self._caller.one(command(key, "LRANGE", key, 0, -1))
        events: list[Event] = []
        for place, text in history_of(reply):
            spot = parse_spot(place)
            if spot > after:
                track.move(partition, spot)
                events.append(_event(partition, text, track.cursor))
        return events[-1:] if feed.newest else events[: feed.limit]

    async def _last_lines(self) -> list[Line]:
        """The last line of every partition that has one."""
        numbers = range(self._counts.flow)
        calls = [reading("newest", self._keys.partition(number)) for number in numbers]
        found = [newest_of(reply) for reply in await self._caller.all(calls)]
        return [
            Line(line[0], partition, line[1], line[2])
            for partition, line in enumerate(found)
            if line is not None
        ]

    async def _newest(self, track: Track) -> list[Event]:
        lines = await self._last_lines()
        fresh = [line for line in lines if line.spot > track.spots.get(line.partition, START)]
        for line in fresh:
            track.move(line.partition, line.spot)
        last = max(fresh, default=None)
        return [] if last is None else [_event(last.partition, last.text, track.cursor)]

    async def _all(self, feed: Feed, track: Track) -> list[Event]:
        """Page by page until there is enough; what was looked at is not looked at again."""
        events: list[Event] = []
        reached = dict(track.spots)
        while len(events) < feed.limit:
            lines, is_more = await self._page(feed, reached)
            for line in lines[: feed.limit - len(events)]:
                track.move(line.partition, line.spot)
                events.append(_event(line.partition, line.text, track.cursor))
            if not is_more:
                break
        return events[-1:] if feed.newest else events

    async def _page(self, feed: Feed, reached: dict[int, Spot]) -> tuple[list[Line], bool]:
        """Lines as far as no partition can still have one before; moves what was reached."""
        count = LOOKED_AT if feed.states else min(PAGE, feed.limit)
        replies = await self._caller.all(self._feed_calls(feed, reached, count))
        parts = [part for reply in replies for part in feeds_of(reply)]
        ends = [Line(part.last[0], part.partition, part.last[1]) for part in parts if part.more]
        end = min(ends, default=None)
        lines: list[Line] = []
        for part in parts:
            mine = [Line(version, part.partition, n, text) for version, n, text in part.lines]
            last = Line(part.last[0], part.partition, part.last[1])
            if end is None or last <= end:
                reached[part.partition] = last.spot
            else:
                mine = [line for line in mine if line[:3] <= end[:3]]
                reached |= {line.partition: line.spot for line in mine}
            lines += mine
        return sorted(lines), end is not None

    def _feed_calls(self, feed: Feed, reached: dict[int, Spot], count: int) -> list[Call]:
        numbers = list(range(self._counts.flow))
        groups = [numbers] if self._keys.inline else [[number] for number in numbers]
        calls: list[Call] = []
        for group in groups:
            spots = [(number, *reached.get(number, START)) for number in group]
            calls.append(
                reading(
                    "feed",
                    self._keys.partition(group[0]),
                    f"{self._keys.prefix}:",
                    count,
                    len(feed.states),
                    *feed.states,
                    *(cell for spot in spots for cell in spot),
                )
            )
        return calls


def _event(partition: int, text: str, cursor: str) -> Event:
    state, uuid, at_ms, kind, attempt, epoch, detail = text.split("\t", 6)
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
