"""Finding executions: what fits a query, how many do, and what is ready on which route.

Within a partition ids are by how an execution ended, those that have not together; whatever else is
asked for is compared record by record, a thousand of them in one call.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from flowfabric.core.ids import PartitionCounts, flow_partition
from flowfabric.core.model import Execution, Query, Queue
from flowfabric.store.valkey.calls import Call, Caller, reading
from flowfabric.store.valkey.codec import counted_of, found_of, queues_of
from flowfabric.store.valkey.writing import Keys, Moment

AT_ONCE = 16
COUNT_AT_ONCE = 64
# How many calls look for what is ready, each at a thousand records at most.
QUEUE_CALLS = 512


class Finding:
    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def find(self, query: Query, moment: Moment, counts: PartitionCounts) -> list[Execution]:
        """Partition by partition in the order of their tags, the first pages some at a time: more
        of them after some that had nothing, and then less of each."""
        found: list[Execution] = []
        places = self._places(query, counts) if query.limit > 0 else []
        width = AT_ONCE
        while places:
            width = AT_ONCE if found else width
            some, places = places[:width], places[width:]
            share = -(-query.limit * AT_ONCE // width)
            first = msgspec.structs.replace(query, limit=share)
            width *= 2
            calls = [self._call("find", place, first, moment) for place in some]
            for (number, _), reply in zip(some, await self._caller.all(calls), strict=True):
                last, rows = found_of(number, reply)
                found += rows
                while last and len(found) < query.limit:
                    call = self._call("find", (number, last), query, moment)
                    last, rows = found_of(number, await self._caller.one(call))
                    found += rows
                if len(found) >= query.limit:
                    return found[: query.limit]
        return found

    async def count(self, query: Query, moment: Moment, counts: PartitionCounts) -> int:
        total = 0
        places = self._places(query, counts)
        while places:
            some, places = places[:COUNT_AT_ONCE], places[COUNT_AT_ONCE:]
            calls = [self._call("count", place, query, moment) for place in some]
            for (number, _), reply in zip(some, await self._caller.all(calls), strict=True):
                last, fitting = counted_of(reply)
                total += fitting
                if last:
                    places.append((number, last))
        return total

    def _places(self, query: Query, counts: PartitionCounts) -> list[tuple[int, str]]:
        """Where to look, and after which id: tags sort as texts, so 70 comes before 7."""
        numbers: Iterable[int] = range(counts.flow)
        if query.flow is not None:
            numbers = [flow_partition(query.flow, counts)]
        if query.partition is not None:
            numbers = [query.partition] if query.partition in numbers else []
        tags = sorted((f"{{fp:{number}}}:", number) for number in numbers)
        after = query.after or ""
        places: list[tuple[int, str]] = []
        for tag, number in tags:
            if after.startswith(tag):
                places.append((number, after.removeprefix(tag)))
            elif tag > after:
                places.append((number, ""))
        return places

    def _call(self, name: str, place: tuple[int, str], query: Query, moment: Moment) -> Call:
        number, after = place
        return reading(
            name,
            self._keys.partition(number),
            *moment.cells,
            after,
            query.limit,
            query.namespace or "",
            query.lane or "",
            query.kind or "",
            query.flow or "",
            "" if query.since_ms is None else query.since_ms,
            len(query.states),
            *query.states,
            *(text for tag in query.tags.items() for text in tag),
        )

    async def queues(
        self, namespace: str, depth: int, moment: Moment, counts: PartitionCounts
    ) -> dict[str, Queue]:
        """All routes with something ready, by name. What is ready is looked for among all that has
        not ended; of very much, only at a part of it."""
        found: dict[str, Queue] = {}
        places = [(number, "") for number in range(counts.flow)]
        left = QUEUE_CALLS
        while places and left > 0:
            width = min(AT_ONCE, left)
            some, places = places[:width], places[width:]
            left -= width
            calls = [
                reading("queues", self._keys.partition(number), *moment.cells, after, namespace)
                for number, after in some
            ]
            for (number, _), reply in zip(some, await self._caller.all(calls), strict=True):
                last, rows = queues_of(reply)
                for route, ready, oldest_ms in rows:
                    seen = found.get(route, Queue(route, 0, oldest_ms))
                    oldest = min(seen.oldest_ms, oldest_ms)
                    found[route] = Queue(route, seen.ready + ready, oldest)
                if last:
                    places.append((number, last))
        is_cut = bool(places)
        return {
            route: Queue(
                route, min(each.ready, depth), each.oldest_ms, is_cut or each.ready > depth
            )
            for route, each in found.items()
        }
