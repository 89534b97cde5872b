"""Claims: one statement picks, locks, takes, and answers the leases."""

from __future__ import annotations

from flowfabric.core.model import Claim, Lease
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.rows import leases_of

# How far beyond its limit a claim of several lanes looks for rows that nobody else is taking.
PEEK_MORE = 64
PEEK_GROWTH = 8

# The store's time, whether the caller's fits it, how many were peeked at, the input: then the head.
_HEAD = 4


async def claim(connection: Connection, call: Call, ask: Claim) -> list[Lease]:
    if ask.repeated:
        held = await _held(connection, call, ask.token)
        if held:
            return held
    peek = 2 * ask.limit + PEEK_MORE
    while True:
        records = answered(await _take(connection, call, ask, peek=peek), call)
        leases = _leases(records)
        # Everything that was peeked at is being taken by others: there may be more behind it.
        if leases or records[0]["peeked"] < peek:
            return leases
        peek *= PEEK_GROWTH


async def _held(connection: Connection, call: Call, token: str) -> list[Lease]:
    arguments = {**call.arguments, "token": token}
    records = await call.sql.named("execution_held").fetch(connection, arguments)
    return _leases(answered(records, call))


async def _take(connection: Connection, call: Call, ask: Claim, *, peek: int) -> list[Record]:
    one = len(ask.lanes) == 1
    picked = "picked_lane" if one else "picked_lanes"
    if ask.only is not None:
        picked = "picked_one"
    arguments = {
        **call.arguments,
        "namespace": ask.namespace,
        "lane": ask.lanes[0] if one else "",
        "lanes": ask.lanes,
        "only": ask.only,
        "limit": ask.limit,
        "peek": peek,
        "token": ask.token,
        "worker": ask.worker,
        "until_ms": ask.now_ms + ask.ttl_ms,
        "line": "claimed" if ask.start else "granted",
    }
    statement = call.sql.claim(picked, start=ask.start)
    return await statement.fetch(connection, arguments)


def _leases(records: list[Record]) -> list[Lease]:
    """Without leases there is one row, which holds the store's time alone."""
    return leases_of([record for record in records if record["id"] is not None], _HEAD)
