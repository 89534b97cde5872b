"""The log: lines of one execution, or of all, merged from the feeds of the partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flowfabric.core.ids import ExecutionId, PartitionCounts, execution_id, partition_of
from flowfabric.core.model import Event, Feed
from flowfabric.core.states import State
from flowfabric.errors import CursorExpired
from flowfabric.store.damage import event_of
from flowfabric.store.valkey.calls import Call, Caller, command
from flowfabric.store.valkey.codec import (
    Write,
    feeds_of,
    newest_of,
    text_of,
    texts,
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
from flowfabric.store.valkey.heads import history_of
from flowfabric.store.valkey.merging import Line, Merge
from flowfabric.store.valkey.writing import Keys


class Ahead(NamedTuple):
    """Whoever goes on from this cursor need not read again what was read already."""

    cursor: str
    states: tuple[State, ...]
    merge: Merge


class Log:
    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._ahead: Ahead | None = None
        self._caller = caller
        self._keys = keys
        self._counts = PartitionCounts()
        self._incarnation = ""

    def open(self, counts: PartitionCounts, incarnation: str) -> None:
        self._counts = counts
        self._incarnation = incarnation
        self._ahead = None

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
        """Recent lines are in the head, and move to a list of older ones: read in this order,
        some may be seen twice, but none is missed."""
        partition = partition_of(id)
        scope, after = self._keys.partition(partition), track.spots.get(partition, START)
        recent, older = f"{scope}:x:{uuid_of(id)}", f"{scope}:log:{uuid_of(id)}"
        head, moved = await self._caller.all(
            [command(scope, "GET", recent), command(scope, "LRANGE", older, 0, -1)]
        )
        events: list[Event] = []
        for line in dict.fromkeys([*texts(moved), *history_of(text_of(head))]):
            place, state, told = line.split("\t", 2)
            spot = parse_spot(place)
            if spot > after:
                track.move(partition, spot)
                events.append(_event(partition, f"{state}\t{uuid_of(id)}\t{told}", track.cursor))
        return events[-1:] if feed.newest else events[: feed.limit]

    async def _last_lines(self) -> list[Line]:
        """The last line of every partition that ever had one; without a text if it is gone."""
        keys = [self._keys.partition(number) for number in range(self._counts.flow)]
        replies = await self._caller.all([command(key, "GET", key) for key in keys])
        lines: list[Line] = []
        for partition, reply in enumerate(replies):
            found = newest_of(reply)
            if found is not None:
                spot = parse_spot(found[0])
                lines.append(Line(spot.version, partition, spot.number, found[1]))
        return lines

    async def _newest(self, track: Track) -> list[Event]:
        lines = await self._last_lines()
        fresh = [line for line in lines if line.spot > track.spots.get(line.partition, START)]
        for line in fresh:
            track.move(line.partition, line.spot)
        last = max((line for line in fresh if line.text), default=None)
        return [] if last is None else [_event(last.partition, last.text.decode(), track.cursor)]

    async def _all(self, feed: Feed, track: Track) -> list[Event]:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (ahead.cursor, ahead.states) == (track.cursor, feed.states):
            merge = ahead.merge
        else:
            wanted = tuple(f"{state}\t".encode() for state in feed.states)
            merge = Merge(self._counts.flow, track.spots, wanted, anew=not feed.after)
        events: list[Event] = []
        lines = await merge.take(feed.limit, self._fetch)
        for partition, spot in merge.begun.items():
            if partition not in track.spots:
                track.move(partition, spot)
        for line in lines:
            track.move(line.partition, line.spot)
            events.append(_event(line.partition, line.text.decode(), track.cursor))
        self._ahead = Ahead(track.cursor, feed.states, merge)
        return events[-1:] if feed.newest else events

    async def _fetch(self, after: Mapping[int, int], writes: int) -> list[tuple[int, list[Write]]]:
        """On one server one command reads all feeds; in a cluster each has its own."""
        numbers = list(after)
        groups = [numbers] if self._keys.inline else [[number] for number in numbers]
        calls: list[Call] = []
        for group in groups:
            keys = [f"{self._keys.partition(number)}:feed" for number in group]
            spots = [after[number] for number in group]
            calls.append(command(keys[0], "XREAD", "COUNT", writes, "STREAMS", *keys, *spots))
        return [feed for reply in await self._caller.all(calls) for feed in feeds_of(reply)]


def _event(partition: int, text: str, cursor: str) -> Event:
    state, uuid, at_ms, kind, attempt, epoch, detail = text.split("\t", 6)
    cells = (_number(at_ms), kind, state, _number(attempt), _number(epoch), detail)
    return event_of(cursor, execution_id(partition, uuid), cells)


def _number(text: str) -> int | str:
    """What is no number is left as it is, for the line to be refused."""
    try:
        return int(text)
    except ValueError:
        return text
