"""The limit of a Valkey prefix: plain commands in transactions, a few of them under way.

Requests are packed before the clock runs, so that the server is what is measured.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from flowfabric.cli.bench.cycles import TTL_MS, Cycles
from flowfabric.errors import Corrupt
from flowfabric.store.valkey.address import parse_address
from flowfabric.store.valkey.link import Cell, pack
from flowfabric.store.valkey.network import Network

UNDER_WAY = 4

_QUEUE = "5:bench:default"
_CLAIMED = '{"worker":"bench","kind":"initial"}'
_OPEN, _COMPLETED = 0, 1


class Batch(NamedTuple):
    """Submit, claim and complete of a hundred, packed; `scope` says which server they go to."""

    scope: str
    steps: list[list[bytes]]


async def measure(url: str, cycles: Sequence[Cycles]) -> float:
    """How many seconds it takes with a prefix that is there and empty."""
    address = parse_address(url, dict(parse_qsl(urlsplit(url).query)))
    network = Network(address, on_new_life=lambda: None)
    batches = [_batch(f"{address.prefix}:{{fp:{each.partition}}}", each) for each in cycles]
    try:
        await network.reach()
        # Taken by whoever is free.
        left = iter(batches)
        began = time.perf_counter()
        await asyncio.gather(*(_write(network, left) for _ in range(UNDER_WAY)))
        return time.perf_counter() - began
    finally:
        await network.close()


async def _write(network: Network, left: Iterator[Batch]) -> None:
    for batch in left:
        link = await network.link(network.place(batch.scope))
        for requests in batch.steps:
            *_, done = await link.ask(requests)
            if not isinstance(done, list) or any(isinstance(each, Exception) for each in done):
                raise Corrupt(f"the transaction was refused: {done!r}")


def _batch(base: str, cycles: Cycles) -> Batch:
    uuids = [id.rpartition(":")[2] for id in cycles.ids]
    numbers = range(cycles.first, cycles.first + len(uuids))
    steps = (
        _submit(base, cycles, list(zip(uuids, numbers, strict=True))),
        _claim(base, cycles, uuids),
        _complete(base, cycles, list(zip(uuids, numbers, strict=True))),
    )
    return Batch(base, [[pack("MULTI"), *step, pack("EXEC")] for step in steps])


def _submit(base: str, cycles: Cycles, new: Sequence[tuple[str, int]]) -> Iterator[bytes]:
    now_ms = cycles.now_ms
    head: list[Cell] = ["namespace", "bench", "lane", "default", "kind", "noop"]
    head += ["created_ms", now_ms, "state", "waiting", "reason", "waiting_for_worker"]
    head += ["updated_ms", now_ms]
    for uuid, number in new:
        yield pack("HSET", f"{base}:x:{uuid}", "payload", b'{"number":%d}' % number, *head)
    uuids = [uuid for uuid, _ in new]
    yield pack("ZADD", f"{base}:ids", *_scored(_OPEN, uuids))
    yield pack("ZADD", f"{base}:ready:{_QUEUE}", *_scored(now_ms, uuids))
    yield from _log(base, cycles, uuids, f"waiting\t%s\t{now_ms}\tsubmitted\t-1\t0\t{{}}")


def _claim(base: str, cycles: Cycles, uuids: Sequence[str]) -> Iterator[bytes]:
    now_ms, until_ms = cycles.now_ms, cycles.now_ms + TTL_MS
    head: list[Cell] = ["rev", 2, "epoch", 1, "state", "active", "reason", "none"]
    head += ["attempt_state", "running_attempt", "lease_token", secrets.token_hex(16)]
    head += ["lease_until_ms", until_ms, "worker", "bench", "attempt_started_ms", now_ms]
    head += ["updated_ms", now_ms, "attempt", 0, "started_ms", now_ms, "due_ms", until_ms]
    for uuid in uuids:
        yield pack("HSET", f"{base}:x:{uuid}", *head)
    yield pack("ZREM", f"{base}:ready:{_QUEUE}", *uuids)
    yield pack("ZADD", f"{base}:due", *_scored(until_ms, uuids))
    yield from _log(base, cycles, uuids, f"active\t%s\t{now_ms}\tclaimed\t0\t1\t{_CLAIMED}")


def _complete(base: str, cycles: Cycles, done: Sequence[tuple[str, int]]) -> Iterator[bytes]:
    now_ms = cycles.now_ms
    head: list[Cell] = ["rev", 3, "state", "completed", "reason", "none"]
    head += ["attempt_state", "attempt_terminal", "ended_ms", now_ms, "updated_ms", now_ms]
    attempt: list[Cell] = ["kind", "initial", "started_ms", now_ms, "worker", "bench", "epoch", 1]
    attempt += ["lifecycle", "ended_success", "ended_ms", now_ms]
    for uuid, number in done:
        yield pack("HSET", f"{base}:x:{uuid}", *head)
        yield pack("HDEL", f"{base}:x:{uuid}", "lease_until_ms", "worker", "due_ms")
        yield pack("HSET", f"{base}:attempt:{uuid}:0", *attempt, "result", number)
    uuids = [uuid for uuid, _ in done]
    yield pack("ZREM", f"{base}:due", *uuids)
    yield pack("ZADD", f"{base}:ids", *_scored(_COMPLETED, uuids))
    yield from _log(base, cycles, uuids, f"completed\t%s\t{now_ms}\tcompleted\t0\t1\t{{}}")


def _log(base: str, cycles: Cycles, uuids: Sequence[str], line: str) -> Iterator[bytes]:
    """The history of each, the feed of the partition, and its record."""
    lines = [line % uuid for uuid in uuids]
    spot = f"{cycles.now_ms}000"
    for place, (uuid, text) in enumerate(zip(uuids, lines, strict=True), 1):
        yield pack("RPUSH", f"{base}:log:{uuid}", f"{spot}-{place}\t{text}")
    yield pack("XADD", f"{base}:feed", "*", *(cell for text in lines for cell in ("line", text)))
    record: list[Cell] = ["time_ms", cycles.now_ms, "version", spot]
    yield pack("HSET", base, *record, "spot", f"{spot}-{len(lines)}", "line", lines[-1])


def _scored(score: int, members: Sequence[str]) -> list[Cell]:
    return [cell for member in members for cell in (score, member)]
