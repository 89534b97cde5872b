"""The reading verbs: executions by id, lanes."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.core.model import Ended, Lane, Loaded, Want
from flowfabric.store.valkey.calls import Call, Caller, command, reading
from flowfabric.store.valkey.codec import (
    lanes_of,
    loaded_of,
    rows_of,
    text_of,
    texts_of,
    uuid_of,
)
from flowfabric.store.valkey.heads import End, end_of, with_result
from flowfabric.store.valkey.hinting import Hinting
from flowfabric.store.valkey.link import Cell, Reply
from flowfabric.store.valkey.writing import Keys, Moment, parts


class Reading:
    def __init__(self, caller: Caller, keys: Keys, hinting: Hinting) -> None:
        self._caller = caller
        self._keys = keys
        self._hinting = hinting

    async def load(self, want: Want, moment: Moment) -> list[Loaded | None]:
        flags = (int(want.payload), int(want.tags), int(want.attempts))
        rows = await self._each("load", want.ids, (*moment.cells, *flags))
        return [
            loaded_of(id, row, payload=want.payload) for id, row in zip(want.ids, rows, strict=True)
        ]

    async def endings(self, ids: Sequence[ExecutionId]) -> list[Ended | None]:
        """Plain reads: nearly always the first attempt is the one that has the result."""
        groups = parts(ids, [0] * len(ids))
        calls = [
            self._texts_call(part.partition, [ids[n] for n in part.positions]) for part in groups
        ]
        found: list[Ended | None] = [None] * len(ids)
        late: dict[int, End] = {}
        for part, reply in zip(groups, await self._caller.all(calls), strict=True):
            texts = iter(texts_of(reply))
            for position, text, attempt in zip(part.positions, texts, texts, strict=True):
                end = end_of(ids[position], text)
                if end is not None and end.attempt > 0:
                    late[position] = end
                elif end is not None:
                    found[position] = with_result(end, attempt)
        keys = [self._attempt_key(ids[n], end.attempt) for n, end in late.items()]
        replies = await self._caller.all([command(key, "GET", key) for key in keys])
        for (position, end), reply in zip(late.items(), replies, strict=True):
            found[position] = with_result(end, text_of(reply))
        return found

    def _texts_call(self, partition: int, ids: Sequence[ExecutionId]) -> Call:
        """Executions of one partition, each with its first attempt."""
        scope = self._keys.partition(partition)
        cells: list[Cell] = ["MGET"]
        for id in ids:
            uuid = uuid_of(id)
            cells += (f"{scope}:x:{uuid}", f"{scope}:attempt:{uuid}:0")
        return command(scope, *cells)

    def _attempt_key(self, id: ExecutionId, number: int) -> str:
        return f"{self._keys.partition(partition_of(id))}:attempt:{uuid_of(id)}:{number}"

    async def _each(
        self, name: str, ids: Sequence[ExecutionId], cells: tuple[Cell, ...]
    ) -> list[Reply]:
        """One row for each id, in the order asked for."""
        groups = parts(ids, [0] * len(ids))
        calls = [
            reading(
                name,
                self._keys.partition(part.partition),
                *cells,
                *(uuid_of(ids[position]) for position in part.positions),
            )
            for part in groups
        ]
        rows: list[Reply] = [None] * len(ids)
        for part, reply in zip(groups, await self._caller.all(calls), strict=True):
            for position, row in zip(part.positions, rows_of(reply), strict=True):
                rows[position] = row
        return rows

    async def lanes(self, after: str, limit: int) -> list[Lane]:
        key = f"{self._keys.shared('lanes')}:all"
        lanes = lanes_of(await self._caller.one(command(key, "HGETALL", key)))
        return [lane for lane in lanes if lane.name > after][:limit]
