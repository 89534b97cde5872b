"""Claims: one statement picks, locks, takes, and answers the leases."""

from __future__ import annotations

from typing import NamedTuple

from flowfabric.core.model import Claim, Lease
from flowfabric.store.peeking import first_depth
from flowfabric.store.postgres.calls import Call, answered
from flowfabric.store.postgres.driver import Connection, Record
from flowfabric.store.postgres.floors import Floor, Floors
from flowfabric.store.postgres.rows import leases_of
from flowfabric.store.trips import Trips

# How far beyond its limit a claim of several routes looks for rows that nobody else is taking.
PEEK_MORE = 64
PEEK_GROWTH = 8

# The store's time, whether the caller's fits it, how many were peeked at, how many entries of the
# index were read, the input: then the head.
_HEAD = 5


class Reach(NamedTuple):
    """How many of all routes are looked at, and how many of each at first."""

    peek: int
    depth: int


async def claim(
    connection: Connection, call: Call, ask: Claim, *, floors: Floors, trips: Trips
) -> list[Lease]:
    if ask.repeated:
        held = await _held(connection, call, ask.token)
        if held:
            return held
    above = floors.of(ask) if ask.only is None else None
    if above is not None:
        leases, _ = await _search(connection, call, ask, above, trips=trips)
        if leases:
            floors.rise(leases)
            return leases
    leases, entries = await _search(connection, call, ask, None, trips=trips)
    if ask.only is None:
        floors.walked(ask, leases, entries)
    return leases


async def _search(
    connection: Connection, call: Call, ask: Claim, above: list[Floor] | None, *, trips: Trips
) -> tuple[list[Lease], int]:
    """What was claimed, and how many entries of the index were read for nothing."""
    peek = 2 * ask.limit + PEEK_MORE
    depth = first_depth(ask.limit, len(ask.routes)) if above is None else peek
    while True:
        reach = Reach(peek, depth)
        records = answered(await _take(connection, call, ask, above, reach=reach), call)
        trips.look_at(records[-1]["entries"] or 0)
        leases = _leases(records)
        # Everything that was peeked at is being taken by others: there may be more behind it.
        if leases or records[0]["peeked"] < min(peek, depth):
            return leases, (records[-1]["entries"] or 0) - peek - depth * len(ask.routes)
        peek, depth = peek * PEEK_GROWTH, depth * PEEK_GROWTH


async def _held(connection: Connection, call: Call, token: str) -> list[Lease]:
    arguments = {**call.arguments, "token": token}
    records = await call.sql.named("execution_held").fetch(connection, arguments)
    return _leases(answered(records, call))


async def _take(
    connection: Connection, call: Call, ask: Claim, above: list[Floor] | None, *, reach: Reach
) -> list[Record]:
    one = len(ask.routes) == 1
    picked = "picked_route" if one and above is None else "picked_routes"
    if ask.only is not None:
        picked = "picked_one"
    floors = above or []
    arguments = {
        **call.arguments,
        "namespace": ask.namespace,
        "route": ask.routes[0] if one else "",
        "routes": ask.routes,
        "priorities": [floor.priority for floor in floors],
        "created_ms": [floor.created_ms for floor in floors],
        "ids": [floor.id for floor in floors],
        "only": ask.only,
        "limit": ask.limit,
        "peek": reach.peek,
        "depth": reach.depth,
        "token": ask.token,
        "worker": ask.worker,
        "until_ms": ask.now_ms + ask.ttl_ms,
        "line": "claimed" if ask.start else "granted",
    }
    statement = call.sql.claim(picked, start=ask.start, above=above is not None)
    return await statement.fetch(connection, arguments)


def _leases(records: list[Record]) -> list[Lease]:
    """Without leases there is one row, which holds the store's time alone."""
    return leases_of([record for record in records if record["id"] is not None], _HEAD)
