"""Documents: one statement compares, writes and answers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowfabric.core.documents import (
    AnyDocument,
    DocumentQuery,
    Put,
    PutAnswer,
    PutDone,
    PutRefused,
    rev_after,
)
from flowfabric.store.damage import document_or_damaged
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.statements import Argument, Statements

# How many columns a document has.
_WIDTH = 7

encode = msgspec.json.Encoder().encode


async def put(connection: Connection, call: Call, batch: Sequence[Put]) -> list[PutAnswer]:
    arguments: dict[str, Argument] = {
        **call.arguments,
        **_names(batch),
        "seen": [put.rev for put in batch],
        "revs": [rev_after(put, call.now_ms) for put in batch],
        "dues_ms": [put.due_ms for put in batch],
        "words": [encode(put.words).decode() for put in batch],
        "bodies": [put.body for put in batch],
    }
    statement = call.sql.named("document_put")
    records = answered(await statement.fetch(connection, arguments), call)
    answers: list[PutAnswer] = [
        PutDone(rev_after(put, call.now_ms)) if record["is_written"] else PutRefused(_there(record))
        for put, record in zip(batch, records, strict=False)
    ]
    return await _with_newcomers(connection, call, batch, answers)


def _there(record: Record) -> AnyDocument | None:
    return None if record["rev"] is None else document_or_damaged(tuple(record)[-_WIDTH:])


async def _with_newcomers(
    connection: Connection, call: Call, batch: Sequence[Put], answers: list[PutAnswer]
) -> list[PutAnswer]:
    """What came to be while the statement ran refused it, but could not be seen by it."""
    unseen = [
        place
        for place, (put, answer) in enumerate(zip(batch, answers, strict=True))
        if answer == PutRefused(None) and not put.rev
    ]
    if unseen:
        names = _names([batch[place] for place in unseen])
        for record in await call.sql.named("document_load").fetch(connection, names):
            place = unseen[record["position"] - 1]
            answers[place] = PutRefused(document_or_damaged(tuple(record)[-_WIDTH:]))
    return answers


async def find(connection: Connection, sql: Statements, query: DocumentQuery) -> list[AnyDocument]:
    arguments: dict[str, Argument] = {
        "kind": query.kind,
        "namespace": query.namespace,
        "after": query.after,
        "limit": query.limit,
        "word": query.word,
    }
    statement = sql.named("document_list_word" if query.word else "document_list")
    return [document_or_damaged(tuple(row)) for row in await statement.fetch(connection, arguments)]


def _names(batch: Sequence[Put]) -> dict[str, Argument]:
    return {
        "kinds": [put.kind for put in batch],
        "namespaces": [put.namespace for put in batch],
        "names": [put.name for put in batch],
    }
