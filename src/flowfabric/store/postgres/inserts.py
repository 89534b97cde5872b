"""Inserts: one statement for a batch, or one for each stretch of it without doubles.

A key or an id that comes twice in one batch must see what the first did, so the batch is cut
before the second, and all the stretches share one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowfabric.core.model import Inserted, Submission
from flowfabric.store.columns import INSERT_COLUMNS, MEMBER_COLUMNS
from flowfabric.store.damage import known_key
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.connections import transaction
from flowfabric.store.postgres.driver import Connection
from flowfabric.store.postgres.flow_rows import member_cells
from flowfabric.store.postgres.rows import columns_of, encode, insert_cells


async def insert(connection: Connection, call: Call, batch: Sequence[Submission]) -> list[Inserted]:
    stretches = list(_stretches(batch))
    if len(stretches) == 1:
        return await _insert_or_look(connection, call, batch)
    answers: list[Inserted] = []
    async with transaction(connection, call.reserve):
        for stretch in stretches:
            answers.extend(await _insert_or_look(connection, call, stretch))
    return answers


def _stretches(batch: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Parts in which no id and no key comes twice, and all or none are to be created; at least
    one, maybe empty."""
    start = 0
    seen: set[str | tuple[str, str]] = set()
    for position, submission in enumerate(batch):
        head, key = submission.execution, submission.key
        names: list[str | tuple[str, str]] = [head.id]
        if key is not None:
            names.append((head.namespace, key))
        if not seen.isdisjoint(names) or submission.create != batch[start].create:
            yield batch[start:position]
            start = position
            seen.clear()
        seen.update(names)
    yield batch[start:]


async def _insert_or_look(
    connection: Connection, call: Call, batch: Sequence[Submission]
) -> list[Inserted]:
    if batch and not batch[0].create:
        return await _look(connection, call, batch)
    return await _insert(connection, call, batch)


async def _look(connection: Connection, call: Call, batch: Sequence[Submission]) -> list[Inserted]:
    arguments = {
        **call.arguments,
        "ids": [s.execution.id for s in batch],
        "namespaces": [s.execution.namespace for s in batch],
        "keys": [s.key for s in batch],
    }
    statement = call.sql.named("execution_look")
    records = answered(await statement.fetch(connection, arguments), call)
    known = {record["position"]: (record["known_id"], record["known_digest"]) for record in records}
    return [
        _keyed_answer(submission, known[position])
        if position in known
        else Inserted(submission.execution.id, created=False, exists=False)
        for position, submission in enumerate(batch, 1)
    ]


async def _insert(
    connection: Connection, call: Call, batch: Sequence[Submission]
) -> list[Inserted]:
    keyed = any(submission.key is not None for submission in batch)
    tags = {s.execution.id: s.tags for s in batch if s.tags}
    members = any(submission.execution.flow for submission in batch)
    names, row = (MEMBER_COLUMNS, member_cells) if members else (INSERT_COLUMNS, insert_cells)
    cells = columns_of([row(s.execution) for s in batch], len(names))
    arguments = {
        **call.arguments,
        **dict(zip(names, cells, strict=True)),
        "payloads": [s.payload for s in batch],
        "tags": encode(tags).decode(),
        "total": len(batch),
    }
    if keyed:
        arguments["keys"] = [s.key for s in batch]
        arguments["digests"] = [s.digest for s in batch]
        arguments["untils_ms"] = [s.key_until_ms for s in batch]
    statement = call.sql.insert(keyed=keyed, tags=bool(tags), members=members)
    records = answered(await statement.fetch(connection, arguments), call)
    if not keyed:
        return _plain_answers(batch, records[0]["ids"])
    known = {
        record["position"]: (record["known_id"], record["known_digest"])
        for record in records
        if record["position"] is not None
    }
    return [
        _keyed_answer(submission, known.get(position))
        for position, submission in enumerate(batch, 1)
    ]


def _plain_answers(batch: Sequence[Submission], ids: list[str] | None) -> list[Inserted]:
    if ids is None:
        return [Inserted(submission.execution.id, created=True) for submission in batch]
    created = set(ids)
    return [Inserted(s.execution.id, created=s.execution.id in created) for s in batch]


def _keyed_answer(submission: Submission, known: tuple[str | None, str | None] | None) -> Inserted:
    if known is None:
        return Inserted(submission.execution.id, created=True)
    id, digest = known
    if id is None:
        return Inserted(submission.execution.id, created=False)
    return known_key(id, digest)
