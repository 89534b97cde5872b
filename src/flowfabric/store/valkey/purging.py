"""What may go, and its removal.

Every partition is asked for some of what may go first, and asked again while it may have more that
goes before the rest. There are no hints: it is looked for once in a while, by one engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from flowfabric.core.flow.model import Flow
from flowfabric.core.ids import ExecutionId, FlowId, PartitionCounts, flow_partition
from flowfabric.core.retention import Departing, Departure, Purge, Purged
from flowfabric.store.valkey.answers import answer_of
from flowfabric.store.valkey.calls import Call, Caller, function, reading
from flowfabric.store.valkey.codec import departing_of, purged_of, rows_of, uuid_of
from flowfabric.store.valkey.flows.codec import departing_flows_of
from flowfabric.store.valkey.hinting import Hinting
from flowfabric.store.valkey.link import Cell
from flowfabric.store.valkey.writing import Keys, Moment, parts

T = TypeVar("T")

# How many a partition tells at first, beside its even share, and how many times as many then.
SHARE = 8
GROWTH = 4

Alone = tuple[int, ExecutionId, int | None]
Whole = tuple[int, str, Flow | None]


class _Told(NamedTuple):
    """What one partition has told: the first of what may go in it."""

    alone: list[Alone]
    flows: list[Whole]

    def may_have_more(self, share: int, bounds: tuple[int | None, int | None]) -> bool:
        """Whether something that was not told may go before the last of those that are wanted."""
        ends = ([at_ms for at_ms, *_ in self.alone], [at_ms for at_ms, *_ in self.flows])
        return any(
            len(times) == share and (bound is None or times[-1] < bound)
            for times, bound in zip(ends, bounds, strict=True)
        )


class Purging:
    def __init__(self, caller: Caller, keys: Keys, hinting: Hinting) -> None:
        self._caller = caller
        self._keys = keys
        self._hinting = hinting

    async def departing(
        self, now_ms: int, limit: int, moment: Moment, counts: PartitionCounts
    ) -> Departing:
        told: dict[int, _Told] = {}
        asked = list(range(counts.flow)) if limit > 0 else []
        share = min(limit, SHARE + limit // counts.flow)
        while asked:
            cells = (*moment.cells, now_ms, share)
            calls = [reading("departing", self._keys.partition(n), *cells) for n in asked]
            for number, reply in zip(asked, await self._caller.all(calls), strict=True):
                alone, flows = rows_of(reply)
                told[number] = _Told(departing_of(number, alone), departing_flows_of(flows))
            bounds = (
                _bound([each for part in told.values() for each in part.alone], limit),
                _bound([each for part in told.values() for each in part.flows], limit),
            )
            asked = (
                [n for n in asked if told[n].may_have_more(share, bounds)] if share < limit else []
            )
            share = min(limit, share * GROWTH)
        return _merged(told, limit)

    async def purge(self, purge: Purge, moment: Moment, counts: PartitionCounts) -> Purged:
        calls = list(self._calls(purge, moment, counts))
        replies = await self._caller.all([call for _, call in calls])
        answers = [answer_of(reply) for reply in replies]
        await self._hinting.tell([change for answer in answers for change in answer.changes])
        gone: list[str] = []
        kept: dict[ExecutionId, int] = {}
        members = 0
        for (number, _), answer in zip(calls, answers, strict=True):
            done = purged_of(number, answer.value)
            gone += done.gone
            kept |= done.kept
            members += done.members
        return Purged(gone, kept, members)

    def _calls(
        self, purge: Purge, moment: Moment, counts: PartitionCounts
    ) -> Iterator[tuple[int, Call]]:
        header = (*moment.cells, self._keys.hints, purge.members)
        seen = purge.executions
        for part in parts([each.id for each in seen], [0] * len(seen)):
            cells: list[Cell] = [len(part.positions)]
            for position in part.positions:
                cells += (uuid_of(seen[position].id), seen[position].rev)
            scope = self._keys.partition(part.partition)
            yield part.partition, function("purge", scope, *header, *cells)
        flows: dict[int, list[Cell]] = {}
        for id, rev in purge.flows:
            flows.setdefault(flow_partition(FlowId(id), counts), []).extend((id, rev))
        for number, cells in flows.items():
            yield number, function("purge", self._keys.partition(number), *header, 0, *cells)


def _bound(rows: list[tuple[int, str, T]], limit: int) -> int | None:
    """When the last of those that are wanted may go; None if there are not so many."""
    times = sorted(at_ms for at_ms, *_ in rows)
    return times[limit - 1] if len(times) >= limit else None


def _merged(told: dict[int, _Told], limit: int) -> Departing:
    alone = sorted(
        (at_ms, id, rev)
        for part in told.values()
        for at_ms, id, rev in part.alone
        if rev is not None
    )
    flows = {id: (at_ms, flow) for part in told.values() for at_ms, id, flow in part.flows}
    order = sorted((at_ms, id) for id, (at_ms, flow) in flows.items() if flow is not None)
    chosen = [flows[id][1] for _, id in order[:limit]]
    return Departing(
        [Departure(id, rev) for _, id, rev in alone[:limit]],
        [flow for flow in chosen if flow is not None],
    )
