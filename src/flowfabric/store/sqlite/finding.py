"""Statements that find executions, and what is ready; `store/searching.py` says which is asked."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec

from flowfabric.core.model import Execution, Query, Queue
from flowfabric.store.searching import COUNT, FIND, PAIRS, Part, queues_of
from flowfabric.store.sqlite.rows import STATES, Cell, decode_heads, encode, ids_json
from flowfabric.store.sqlite.spoilt import text_or_rows
from flowfabric.store.sqlite.statements import ALL_COLUMNS, one_text, run

T = TypeVar("T")

_ids = msgspec.json.Decoder(list[str]).decode
_pairs = msgspec.json.Decoder(list[tuple[str, int, int]]).decode


class Read(Protocol):
    """Runs some work on a connection that reads."""

    def __call__(self, work: Callable[[sqlite3.Connection], T], /) -> Awaitable[T]: ...


class Finding:
    """Each look is some work of its own: between two of them others have their turn."""

    def __init__(self, read: Read) -> None:
        self._read = read

    async def heads(self, query: Query, part: Part) -> list[Execution]:
        name, wanted = FIND.of(query, part), _cells(query, part)
        found = await self._read(
            lambda connection: text_or_rows(connection, name, *wanted, columns=ALL_COLUMNS)
        )
        return sorted(decode_heads(found), key=lambda head: head.id)[: query.limit]

    async def fitting(self, query: Query, part: Part) -> int:
        name, wanted = COUNT.of(query, part), _cells(query, part)
        count: int = await self._read(
            lambda connection: run(connection, name, *wanted).fetchone()[0]
        )
        return count

    async def stretch(self, after: str, before: str, size: int) -> str | None:
        row: tuple[str] | None = await self._read(
            lambda connection: run(connection, "execution_stretch", after, before, size).fetchone()
        )
        return None if row is None else row[0]

    async def tagged(self, key: str, value: str, limit: int) -> list[str]:
        return _ids(
            await self._read(lambda connection: one_text(connection, "tag_ids", key, value, limit))
        )

    async def open_ids(self, namespace: str, limit: int) -> list[str]:
        return _ids(
            await self._read(
                lambda connection: one_text(connection, "execution_open_ids", namespace, limit)
            )
        )

    async def queues(self, namespace: str, after: str, limit: int, depth: int) -> list[Queue]:
        wanted = (namespace, after, PAIRS, depth + 1)
        told = await self._read(lambda connection: one_text(connection, "queue_list", *wanted))
        return queues_of(_pairs(told), limit, depth)


def _cells(query: Query, part: Part) -> tuple[Cell, ...]:
    return (
        part.after,
        part.last,
        query.namespace,
        query.lane,
        query.kind,
        encode(query.states).decode() if query.states else None,
        encode(query.tags).decode(),
        query.limit,
        STATES,
        query.since_ms,
        query.flow if part.ids is None else ids_json(part.ids),
    )
