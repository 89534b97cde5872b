"""The reading verbs: one statement each, so that what they answer is of one moment."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Ended, Lane, Loaded, Want
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.rows import (
    WIDTH,
    attempt_of,
    ended_of,
    heads_of,
    lane_of,
    tags_of,
)
from flowfabric.store.postgres.statements import Argument, Statements

_ATTEMPTS = WIDTH + 2


async def load(connection: Connection, sql: Statements, want: Want) -> list[Loaded | None]:
    arguments: dict[str, Argument] = {
        "ids": list(dict.fromkeys(want.ids)),
        "payload": want.payload,
        "tags": want.tags,
        "attempts": want.attempts,
    }
    records = await sql.named("execution_load").fetch(connection, arguments)
    heads = {head.id: head for head in heads_of(records)}
    rows: dict[str, list[Record]] = {}
    found: dict[str, Loaded] = {}
    for record in records:
        id = record["id"]
        rows.setdefault(id, []).append(record)
    for id, mine in rows.items():
        first = mine[0]
        found[id] = Loaded(
            heads[ExecutionId(id)],
            payload=first[WIDTH] or b"",
            tags=tags_of(first[WIDTH + 1]),
            attempts=tuple(
                attempt_of(ExecutionId(id), record[_ATTEMPTS:])
                for record in mine
                if record[_ATTEMPTS] is not None
            ),
        )
    return [found.get(id) for id in want.ids]


async def endings(
    connection: Connection, sql: Statements, ids: Sequence[ExecutionId]
) -> list[Ended | None]:
    arguments = {"ids": list(dict.fromkeys(ids))}
    records = await sql.named("execution_ends").fetch(connection, arguments)
    found = {ended.id: ended for ended in map(ended_of, records)}
    return [found.get(id) for id in ids]


async def lanes(connection: Connection, sql: Statements, after: str, limit: int) -> list[Lane]:
    arguments: dict[str, Argument] = {"after": after, "limit": limit}
    return [lane_of(record) for record in await sql.named("lane_list").fetch(connection, arguments)]
