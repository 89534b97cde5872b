"""Statements that find executions, and what is ready; `store/searching.py` says which is asked."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from flowfabric.core.model import Execution, Query, Queue
from flowfabric.store.postgres.connections import Work
from flowfabric.store.postgres.driver import Record
from flowfabric.store.postgres.feed import STATES
from flowfabric.store.postgres.rows import heads_of
from flowfabric.store.postgres.statements import Argument, Statements
from flowfabric.store.searching import COUNT, FIND, PAIRS, Names, Part, queues_of

T = TypeVar("T")


class Read(Protocol):
    """Runs some work on a connection that reads."""

    def __call__(self, work: Work[T], /) -> Awaitable[T]: ...


class Finding:
    """Each look is one statement."""

    def __init__(self, read: Read, sql: Statements) -> None:
        self._read = read
        self._sql = sql

    async def heads(self, query: Query, part: Part) -> list[Execution]:
        found = await self._fetch(FIND, query, part)
        return sorted(heads_of(found), key=lambda head: head.id)[: query.limit]

    async def fitting(self, query: Query, part: Part) -> int:
        count: int = (await self._fetch(COUNT, query, part))[0]["n"]
        return count

    async def stretch(self, after: str, before: str, size: int) -> str | None:
        found = await self._ask("execution_stretch", after=after, before=before, size=size)
        return str(found[0]["id"]) if found else None

    async def tagged(self, key: str, value: str, limit: int) -> list[str]:
        return _ids(await self._ask("tag_ids", key=key, value=value, limit=limit))

    async def open_ids(self, namespace: str, limit: int) -> list[str]:
        return _ids(await self._ask("execution_open_ids", namespace=namespace, limit=limit))

    async def queues(self, namespace: str, after: str, limit: int, depth: int) -> list[Queue]:
        told = await self._ask(
            "queue_list", namespace=namespace, after=after, limit=PAIRS, depth=depth + 1
        )
        pairs = ((each["route"], each["ready"], each["created_ms"]) for each in told)
        return queues_of(pairs, limit, depth)

    async def _fetch(self, names: Names, query: Query, part: Part) -> list[Record]:
        arguments: dict[str, Argument] = {
            "after": part.after,
            "last": part.last,
            "ids": part.ids,
            "flow": query.flow,
            "namespace": query.namespace,
            "lane": query.lane,
            "kind": query.kind,
            "states": [state.value for state in query.states] or None,
            "known": STATES,
            "since_ms": query.since_ms,
            "tag_keys": list(query.tags),
            "tag_values": list(query.tags.values()),
            "limit": query.limit,
        }
        return await self._ask(names.of(query, part), **arguments)

    async def _ask(self, name: str, **arguments: Argument) -> list[Record]:
        statement = self._sql.named(name)
        return await self._read(lambda connection: statement.fetch(connection, arguments))


def _ids(found: list[Record]) -> list[str]:
    return [str(each["id"]) for each in found]
