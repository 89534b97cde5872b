"""The limit of a Valkey prefix: plain commands in transactions, a few of them under way.

Requests are packed before the clock runs, so that the server is what is measured.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from flowfabric.cli.bench.cycles import TTL_MS, Cycles
from flowfabric.errors import Corrupt
from flowfabric.store.valkey.address import parse_address
from flowfabric.store.valkey.link import Cell, pack
from flowfabric.store.valkey.network import Network

UNDER_WAY = 4

_QUEUE = "5:bench:default noop"
_CLAIMED = '{"worker":"bench","kind":"initial"}'
_OPEN, _COMPLETED = 0, 1
_NO_FLOW = b"\0"
_MAP = 0xDE
_TEXTS = ("state", "reason", "lease_token", "next_kind", "namespace", "route")
_NUMBERS = {
    "rev": 1,
    "epoch": 0,
    "lease_until_ms": -1,
    "due_ms": -1,
    "attempt": -1,
    "priority": 0,
    "created_ms": 0,
    "next_attempt": 0,
    "attempt_left_ms": -1,
    "deadline_ms": -1,
    "started_ms": -1,
    "purge_ms": -1,
}

Record = dict[str, str | int]


class New(NamedTuple):
    """One execution of a batch."""

    uuid: str
    number: int


class Step(NamedTuple):
    """One write of a partition: the state that it leads to and what its lines say of it."""

    base: str
    now_ms: int
    state: str
    line: str

    @property
    def spot(self) -> str:
        return f"{self.now_ms}000"


class Batch(NamedTuple):
    """Submit, claim and complete of a hundred, packed; `scope` says which server they go to."""

    scope: str
    steps: list[list[bytes]]


async def measure(url: str, cycles: Sequence[Cycles]) -> float:
    """How many seconds it takes with a prefix that is there and empty."""
    address = parse_address(url)
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
    new = [New(id.rpartition(":")[2], number) for number, id in enumerate(cycles.ids, cycles.first)]
    now_ms = cycles.now_ms
    steps = (
        Step(base, now_ms, "waiting", f"{now_ms}\tsubmitted\t-1\t0\t{{}}"),
        Step(base, now_ms, "active", f"{now_ms}\tclaimed\t0\t1\t{_CLAIMED}"),
        Step(base, now_ms, "completed", f"{now_ms}\tcompleted\t0\t1\t{{}}"),
    )
    head: Record = {"namespace": "bench", "lane": "default", "kind": "noop"}
    head |= {"route": "default noop", "created_ms": now_ms}
    requests = (_submit(steps[0], head, new), _claim(steps, head, new), _complete(steps, head, new))
    return Batch(base, [[pack("MULTI"), *each, pack("EXEC")] for each in requests])


def _submit(step: Step, head: Record, new: Sequence[New]) -> Iterator[bytes]:
    head |= {"state": "waiting", "reason": "waiting_for_worker", "updated_ms": step.now_ms}
    yield _heads([step], head, new)
    uuids = [each.uuid for each in new]
    yield pack("ZADD", f"{step.base}:ids", *_scored(_OPEN, uuids))
    yield pack("ZADD", f"{step.base}:ready:{_QUEUE}", *_scored(step.now_ms, uuids))
    yield from _feed(step, uuids)


def _claim(steps: Sequence[Step], head: Record, new: Sequence[New]) -> Iterator[bytes]:
    step, until_ms = steps[1], steps[1].now_ms + TTL_MS
    head |= {"rev": 2, "epoch": 1, "state": "active", "reason": "none", "attempt": 0}
    head |= {"attempt_state": "running_attempt", "lease_token": secrets.token_hex(16)}
    head |= {"lease_until_ms": until_ms, "worker": "bench", "due_ms": until_ms}
    head |= {"attempt_started_ms": step.now_ms, "started_ms": step.now_ms}
    yield _heads(steps[:2], head, new)
    uuids = [each.uuid for each in new]
    yield pack("ZREM", f"{step.base}:ready:{_QUEUE}", *uuids)
    yield pack("ZADD", f"{step.base}:due", *_scored(until_ms, uuids))
    yield from _feed(step, uuids)


def _complete(steps: Sequence[Step], head: Record, new: Sequence[New]) -> Iterator[bytes]:
    step = steps[2]
    for gone in ("lease_until_ms", "worker", "due_ms"):
        del head[gone]
    head |= {"rev": 3, "state": "completed", "attempt_state": "attempt_terminal"}
    head |= {"ended_ms": step.now_ms}
    attempt: Record = {"worker": "bench", "epoch": 1, "lifecycle": "ended_success"}
    attempt |= {"started_ms": step.now_ms, "ended_ms": step.now_ms}
    yield _heads(steps, head, new)
    cells: list[Cell] = []
    for each in new:
        result = msgspec.msgpack.encode(attempt | {"result": str(each.number)})
        cells += [f"{step.base}:attempt:{each.uuid}:0", result]
    yield pack("MSET", *cells)
    uuids = [each.uuid for each in new]
    yield pack("ZREM", f"{step.base}:due", *uuids)
    yield pack("ZADD", f"{step.base}:ids", *_scored(_COMPLETED, uuids))
    yield from _feed(step, uuids)


def _heads(steps: Sequence[Step], head: Record, new: Sequence[New]) -> bytes:
    """Each with its input and the lines so far."""
    pairs = list(head.items())
    front = _NO_FLOW + _front(head, len(pairs) + 1 + len(steps))
    cells: list[Cell] = []
    for place, each in enumerate(new, 1):
        lines = [("log", f"{step.spot}-{place}\t{step.state}\t{step.line}") for step in steps]
        own = [*pairs, ("payload", f'{{"number":{each.number}}}'), *lines]
        text = b"".join(msgspec.msgpack.encode(cell) for pair in own for cell in pair)
        cells += [f"{steps[0].base}:x:{each.uuid}", front + text]
    return pack("MSET", *cells)


def _front(head: Record, count: int) -> bytes:
    """What the functions look at, in the order of `record.lua`, and how many pairs follow."""
    texts = [str(head.get(name, "")).encode() for name in _TEXTS]
    numbers = [float(head.get(name, usual)) for name, usual in _NUMBERS.items()]
    shape = "".join(f"H{len(text)}s" for text in texts)
    cells = [cell for text in texts for cell in (len(text), text)]
    body = struct.pack(f">{shape}{len(numbers)}d", *cells, *numbers)
    return struct.pack(">H", len(body) + 2) + body + struct.pack(">BH", _MAP, count)


def _feed(step: Step, uuids: Sequence[str]) -> Iterator[bytes]:
    """The lines of the partition, and its record."""
    lines = [f"{step.state}\t{uuid}\t{step.line}" for uuid in uuids]
    cells = [cell for line in lines for cell in ("line", line)]
    yield pack("XADD", f"{step.base}:feed", "*", "prev", "0-0", *cells)
    spot = f"{step.spot}-{len(lines)}"
    yield pack("SET", step.base, f"{step.now_ms}\t{step.spot}\t{spot}\t{lines[-1]}")


def _scored(score: int, members: Sequence[str]) -> list[Cell]:
    return [cell for member in members for cell in (score, member)]
