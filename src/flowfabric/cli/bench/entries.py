"""How fast entries are written: hundreds of executions that are held, each adding one at a time."""

from __future__ import annotations

import secrets
import time

import msgspec

from flowfabric.app import App
from flowfabric.cli.bench.preload import submit_and_take
from flowfabric.core.entries import Append, Appended, Entry, Topic
from flowfabric.core.model import Lease
from flowfabric.core.transition import Held
from flowfabric.errors import Corrupt

BODY = b"x" * 100
TOPIC = "bench"


class Entries(msgspec.Struct, frozen=True):
    """Entries per second that were durable when the call was answered."""

    entries_per_s: float


async def run(url: str, n: int, executions: int) -> Entries:
    """All of the executions, which are in as many partitions, in one call, and call after call, as
    a process would that waits for the answer before it goes on with any of them."""
    app = App(url, namespace=f"bench-{secrets.token_hex(4)}")
    await app.connect()
    leases = await submit_and_take(app.engine, executions, together=1)
    began = time.perf_counter()
    rounds = -(-n // executions)
    for number in range(rounds):
        await _append(app, leases, number)
    seconds = time.perf_counter() - began
    await _require_all(app, leases[-1], rounds)
    await app.close()
    return Entries(rounds * executions / seconds)


async def _append(app: App, leases: list[Lease], number: int) -> None:
    entry = Entry(TOPIC, f"{number:08}", BODY, number)
    batch = [Append(lease.id, Held(lease.epoch, lease.token), (entry,)) for lease in leases]
    answers = await app.engine.store.append(batch, app.engine.clock.now_ms())
    if not all(isinstance(answer, Appended) and not answer.there for answer in answers):
        raise Corrupt("an entry was not written although its lease is held")


async def _require_all(app: App, lease: Lease, rounds: int) -> None:
    (found,) = await app.engine.store.entries([Topic(lease.id, TOPIC, limit=rounds + 1)])
    if len(found) != rounds:
        raise Corrupt(f"{len(found)} of {rounds} entries were found")
