"""The limit: the records of a cycle written with the raw client, without an engine.

The same records and indexes as the store writes, a hundred executions in one transaction for each
of submit, claim and complete, on a store of the same kind and options beside the one that was
named, which is removed afterwards. No guards, nothing decided, nothing read back.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from flowfabric.cli.bench.cycles import Cycles, cycles_of
from flowfabric.cli.bench.targets import Target, drop_beside
from flowfabric.errors import InvalidInput
from flowfabric.store import open_store

Measure = Callable[[str, Sequence[Cycles]], Awaitable[float]]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What `ff bench limit` prints."""

    limit_per_s: float


def has_limit(target: Target) -> bool:
    """Whether there is a raw client to compare with."""
    return target.kind != "memory"


async def run(target: Target, n: int) -> float:
    """Cycles per second."""
    if not has_limit(target):
        raise InvalidInput(
            f"{target.kind}:// has no raw client", field="store", hint="use sqlite or a server"
        )
    url = target.beside(f"limit-{secrets.token_hex(4)}")
    measure = measure_of(target.kind)
    store = open_store(url)
    await store.migrate()
    # A file that somebody has open is never removed; servers do not mind.
    await store.close()
    try:
        return n / await measure(url, cycles_of(n))
    finally:
        await drop_beside(url)


def measure_of(kind: str) -> Measure:
    """Clients are extras: only the one that is needed is imported."""
    match kind:
        case "sqlite":
            from flowfabric.cli.bench.limit_sqlite import measure
        case "postgres" | "postgresql":
            from flowfabric.cli.bench.limit_postgres import measure
        case _:
            from flowfabric.cli.bench.limit_valkey import measure
    return measure
