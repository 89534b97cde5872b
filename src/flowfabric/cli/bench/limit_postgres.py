"""The limit of a Postgres schema: one statement per transaction, on a few connections at a time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence

from flowfabric.cli.bench.cycles import TTL_MS, Cycles
from flowfabric.store.postgres.address import parse_url, quoted
from flowfabric.store.postgres.connections import open_connection
from flowfabric.store.postgres.driver import Connection

# More do not make it faster: a commit waits for the disk while others compute.
CONNECTIONS = 4

_LINE = "INSERT INTO {schema}.log (n, id, at_ms, kind, state, attempt, epoch, detail)"
_SUBMIT = """WITH created AS (
    INSERT INTO {schema}.execution (
        id, namespace, lane, kind, route, creator, created_ms, policy, state, reason, priority,
        updated_ms, payload
    ) SELECT t.id, 'bench', 'default', 'noop', 'default noop', '', $2::bigint, '', 'waiting',
        'waiting_for_worker', 0, $2::bigint, t.payload
    FROM unnest($1::text[], $3::bytea[]) AS t (id, payload)
    RETURNING n, id
)
{line} SELECT n, id, $2::bigint, 'submitted', 'waiting', -1, 0, '{{}}' FROM created"""
_CLAIM = """WITH claimed AS (
    UPDATE {schema}.execution SET
        rev = rev + 1, state = 'active', reason = 'none', attempt_state = 'running_attempt',
        epoch = epoch + 1, lease_token = $3::text, lease_until_ms = $4::bigint, renewed_ms = NULL,
        worker = 'bench', attempt = next_attempt, attempt_kind = next_kind,
        attempt_started_ms = $2::bigint, started_ms = $2::bigint, lost = 'none',
        due_ms = $4::bigint, updated_ms = $2::bigint
    WHERE id = ANY($1::text[])
    RETURNING n, id
)
{line} SELECT n, id, $2::bigint, 'claimed', 'active', 0, 1,
    '{{"worker":"bench","kind":"initial"}}' FROM claimed"""
_COMPLETE = """WITH done AS (
    UPDATE {schema}.execution SET
        rev = rev + 1, state = 'completed', reason = 'none', attempt_state = 'attempt_terminal',
        lease_until_ms = NULL, attempt_until_ms = NULL, worker = '', due_ms = NULL,
        ended_ms = $2::bigint, updated_ms = $2::bigint
    FROM unnest($1::text[], $3::bytea[]) AS t (key, result)
    WHERE id = t.key
    RETURNING n, id, t.result
), kept AS (
    INSERT INTO {schema}.attempt (
        n, attempt, kind, lifecycle, worker, epoch, started_ms, ended_ms, detail, category, result
    ) SELECT n, 0, 'initial', 'ended_success', 'bench', 1, $2::bigint, $2::bigint, '', '', result
    FROM done
)
{line} SELECT n, id, $2::bigint, 'completed', 'completed', 0, 1, '{{}}' FROM done"""


async def measure(url: str, cycles: Sequence[Cycles]) -> float:
    """How many seconds it takes on a schema that is there and empty."""
    address = parse_url(url)
    schema = quoted(address.schema)
    texts = [
        text.format(schema=schema, line=_LINE.format(schema=schema))
        for text in (_SUBMIT, _CLAIM, _COMPLETE)
    ]
    connections = [await open_connection(address) for _ in range(min(CONNECTIONS, len(cycles)))]
    try:
        # Taken by whoever is free.
        left = iter(cycles)
        began = time.perf_counter()
        await asyncio.gather(*(_write(each, left, texts) for each in connections))
        return time.perf_counter() - began
    finally:
        for connection in connections:
            await connection.close()


async def _write(connection: Connection, left: Iterator[Cycles], texts: Sequence[str]) -> None:
    submit, claim, complete = texts
    for each in left:
        numbers = range(each.first, each.first + len(each.ids))
        payloads = [b'{"number":%d}' % number for number in numbers]
        results = [b"%d" % number for number in numbers]
        token, until_ms = secrets.token_hex(16), each.now_ms + TTL_MS
        await connection.ask(submit, each.ids, each.now_ms, payloads)
        await connection.ask(claim, each.ids, each.now_ms, token, until_ms)
        await connection.ask(complete, each.ids, each.now_ms, results)
