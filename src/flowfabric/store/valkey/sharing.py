"""In a cluster: which partitions have the best rows of some routes, and how many each of them has.

Hints are read of every route, few of each where there are many routes. The queues with the best
heads have all of the best rows; how these begin is then asked of their partitions, and of nothing
else. A hint of a queue that has nothing goes away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flowfabric.core.ids import execution_id
from flowfabric.core.model import Claim
from flowfabric.store.valkey.answers import Change, answer_of
from flowfabric.store.valkey.calls import Caller, command, reading
from flowfabric.store.valkey.codec import peek_of, scored
from flowfabric.store.valkey.hinting import Hinting
from flowfabric.store.valkey.writing import Keys, Moment, hint_name

PARTITIONS_AT_ONCE = 16
# Of one route so many hints are read, of many routes about so many together.
HINTS_MIN, HINTS_TOGETHER = 2, 128
# How many rows of each queue are looked at, and about how many of all of them.
ROWS_MAX, ROWS_TOGETHER = 100, 1_600


class Hinted(NamedTuple):
    """A queue that a hint names; they sort as their heads are to be taken."""

    score: float
    rank: str
    partition: int
    route: str


class Ready(NamedTuple):
    """A row at the head of some queue; they sort as they are to be taken."""

    score: float
    id: str
    partition: int
    route: str


class Share(NamedTuple):
    """So many rows of these routes are a partition's part of the best."""

    partition: int
    routes: tuple[str, ...]
    limit: int


class Hints(NamedTuple):
    """Queues that hints name, best first; `end` is how good one may be that was not read."""

    queues: list[Hinted]
    end: float | None


class Sharing:
    def __init__(self, caller: Caller, keys: Keys, hinting: Hinting) -> None:
        self._caller = caller
        self._keys = keys
        self._hinting = hinting

    async def shares(self, ask: Claim, moment: Moment, limit: int) -> list[Share]:
        routes = tuple(dict.fromkeys(ask.routes))
        hints = await self._hinted(ask.namespace, routes, moment)
        partitions = _partitions(hints.queues)
        if len(partitions) < 2:
            hinted = tuple(dict.fromkeys(queue.route for queue in hints.queues))
            return [Share(number, hinted, limit) for number in partitions]
        named = frozenset((queue.partition, queue.route) for queue in hints.queues)
        best = await self._best(ask, moment, _best_queues(hints, limit), named, limit=limit)
        # Hints may have named nothing but queues that have become empty.
        all_routes = dict.fromkeys(partitions, routes)
        return _shares(best or await self._best(ask, moment, all_routes, named, limit=limit))

    async def _hinted(self, namespace: str, routes: Sequence[str], moment: Moment) -> Hints:
        count = min(PARTITIONS_AT_ONCE, max(HINTS_MIN, HINTS_TOGETHER // max(len(routes), 1)))
        keys = [f"{self._keys.prefix}:{hint_name(namespace, route)}" for route in routes]
        # The first one compares the clocks as well.
        calls = [reading("hinted", key, *moment.cells, count) for key in keys[:1]]
        calls += [command(key, "ZRANGE", key, 0, count - 1, "WITHSCORES") for key in keys[1:]]
        replies = await self._caller.all(calls)
        if replies:
            replies[0] = answer_of(replies[0]).value
        hinted: list[Hinted] = []
        ends: list[float] = []
        for route, reply in zip(routes, replies, strict=True):
            cells = scored(reply)
            hinted += [Hinted(at, f"{number}}}", int(number), route) for number, at in cells]
            if len(cells) == count:
                ends.append(cells[-1][1])
        self._caller.trips.look_at(len(hinted))
        return Hints(sorted(hinted), min(ends, default=None))

    async def _best(
        self,
        ask: Claim,
        moment: Moment,
        queues: Mapping[int, Sequence[str]],
        named: frozenset[tuple[int, str]],
        *,
        limit: int,
    ) -> list[Ready]:
        """The best rows of these routes in these partitions. Hints that named nothing go away."""
        size = sum(len(routes) for routes in queues.values())
        count = min(limit, ROWS_MAX, max(HINTS_MIN, ROWS_TOGETHER // max(size, 1)))
        calls = [
            reading(
                "peek",
                self._keys.partition(number),
                *moment.cells,
                ask.namespace,
                count,
                *routes,
            )
            for number, routes in queues.items()
        ]
        ready: list[Ready] = []
        ends: list[Ready] = []
        gone: list[Change] = []
        for (number, routes), reply in zip(
            queues.items(), await self._caller.all(calls), strict=True
        ):
            version, *_, heads = peek_of(reply)
            for route, rows in zip(routes, heads, strict=True):
                found = [Ready(at, execution_id(number, uuid), number, route) for uuid, at in rows]
                ready += found
                if len(found) == count:
                    ends.append(found[-1])
                if not found and (number, route) in named:
                    gone.append(Change(hint_name(ask.namespace, route), str(number), version, ""))
        self._caller.trips.look_at(len(ready))
        await self._hinting.tell(gone)
        # Behind the last row of a queue that was not seen whole there may be better ones.
        end = min(ends, default=None)
        return [row for row in sorted(ready)[:limit] if end is None or row <= end]


def _best_queues(hints: Hints, limit: int) -> Mapping[int, Sequence[str]]:
    """As many queues as are wanted have all of the best, with those of the same partition that
    begin alike. Where that many are not known, or are in too many partitions, rows of any route in
    some partitions have to do: nothing is answered."""
    wanted = [queue for queue in hints.queues if hints.end is None or queue.score <= hints.end]
    if hints.end is not None and len(wanted) < limit:
        return {}
    least = max(limit, PARTITIONS_AT_ONCE)
    queues: dict[int, list[str]] = {}
    for place, queue in enumerate(wanted):
        if place >= least and queue[:2] != wanted[place - 1][:2]:
            break
        queues.setdefault(queue.partition, []).append(queue.route)
    return queues if len(queues) <= PARTITIONS_AT_ONCE else {}


def _partitions(hinted: Iterable[Hinted]) -> list[int]:
    """Those with the best heads."""
    return list(dict.fromkeys(queue.partition for queue in hinted))[:PARTITIONS_AT_ONCE]


def _shares(best: Iterable[Ready]) -> list[Share]:
    routes: dict[int, dict[str, None]] = {}
    counts: dict[int, int] = {}
    for row in best:
        routes.setdefault(row.partition, {})[row.route] = None
        counts[row.partition] = counts.get(row.partition, 0) + 1
    return [Share(number, tuple(routes[number]), count) for number, count in counts.items()]
