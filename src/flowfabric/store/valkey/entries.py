"""Entries: appended by calls that judge the leases of many executions, and read.

All that an execution has is one sorted set of texts; how they are put together is written with the
functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowfabric.core.entries import Append, Appended, Kept, Topic
from flowfabric.core.ids import partition_of
from flowfabric.core.transition import Rejected
from flowfabric.store.valkey.answers import answer_of
from flowfabric.store.valkey.calls import Call, Caller, function, reading
from flowfabric.store.valkey.codec import appended_of, kept_of, rows_of, uuid_of
from flowfabric.store.valkey.link import Cell
from flowfabric.store.valkey.writing import (
    BODIES_BYTES_MAX,
    RECORDS_MAX,
    Keys,
    Moment,
    Packed,
    entry_cells,
    packed,
    parts,
)

# By partition, the places of what goes there.
_Places = dict[int, list[int]]


class Entries:
    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def append(self, batch: Sequence[Append], moment: Moment) -> list[Appended | Rejected]:
        portions = list(self._portions(batch))
        calls = [self._append_call(batch, places, moment) for places in portions]
        answers: dict[int, Appended | Rejected] = {}
        replies = [answer_of(reply) for reply in await self._caller.all(calls)]
        for places, reply in zip(portions, replies, strict=True):
            positions = [position for some in places.values() for position in some]
            for position, told in zip(positions, rows_of(reply.value), strict=True):
                answers[position] = appended_of(batch[position], told)
        return [answers[position] for position in range(len(batch))]

    def _portions(self, batch: Sequence[Append]) -> Iterator[_Places]:
        """As many as one call should carry, of one partition unless all are on one server."""
        by_partition: _Places = {}
        for position, append in enumerate(batch):
            by_partition.setdefault(partition_of(append.id), []).append(position)
        portion: _Places = {}
        records, size = 0, 0
        for partition, positions in by_partition.items():
            if portion and not self._keys.inline:
                yield portion
                portion, records, size = {}, 0, 0
            for position in positions:
                entries = batch[position].entries
                records += len(entries)
                size += sum(len(entry.body) for entry in entries)
                if portion and (records > RECORDS_MAX or size > BODIES_BYTES_MAX):
                    yield portion
                    portion, records = {}, len(entries)
                    size = sum(len(entry.body) for entry in entries)
                portion.setdefault(partition, []).append(position)
        if portion:
            yield portion

    def _append_call(self, batch: Sequence[Append], places: _Places, moment: Moment) -> Call:
        cells: list[Packed] = []
        for positions in places.values():
            cells.append(len(positions))
            for position in positions:
                append = batch[position]
                cells += (uuid_of(append.id), *append.guard.compared)
                cells += entry_cells(append.entries)
        bases = [self._keys.partition(number) for number in places]
        return function("append", bases[0], *moment.cells, packed(bases, *cells))

    async def read(self, asks: Sequence[Topic], moment: Moment) -> list[list[Kept]]:
        groups = parts([ask.id for ask in asks], [0] * len(asks))
        calls = [
            reading(
                "entries",
                self._keys.partition(part.partition),
                *moment.cells,
                *(cell for position in part.positions for cell in _ask_cells(asks[position])),
            )
            for part in groups
        ]
        found: list[list[Kept]] = [[] for _ in asks]
        for part, reply in zip(groups, await self._caller.all(calls), strict=True):
            for position, members in zip(part.positions, rows_of(reply), strict=True):
                found[position] = [kept_of(member) for member in members]
        return found


def _ask_cells(ask: Topic) -> tuple[Cell, ...]:
    generation = "" if ask.generation is None else ask.generation
    return (uuid_of(ask.id), ask.topic, ask.after, ask.limit, generation)
