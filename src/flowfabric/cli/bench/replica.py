"""One of several engines on one store: timers, dispatch and sweeps, and no worker.

`python -m flowfabric.cli.bench.replica` reads the store and the namespace as one line from its
standard input, says `ready`, and works until that input ends; then it says how many rounds of
flows it has dispatched. One that is told to dies before then, at the worst moment there is.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

import msgspec

from flowfabric.cli.bench.others import READY
from flowfabric.core.transition import Changeset
from flowfabric.engine.duties import Duties
from flowfabric.engine.engine import Engine
from flowfabric.engine.telemetry import ROUNDS
from flowfabric.store import open_store
from flowfabric.testing.faults import FaultyStore

STOP_SECONDS = 10.0


class Place(msgspec.Struct, frozen=True):
    """Where to work. The URL may hold a password, so it is not an argument.

    One that `is_mortal` dies as soon as it has taken flows, with all of them in its hands.
    """

    url: str
    namespace: str
    is_mortal: bool = False
    tasks: tuple[str, ...] = ()


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Chains of so many members, so many at a time."""

    flows: int
    nodes: int


class MortalStore(FaultyStore):
    """The process ends as if it were killed, between taking flows and writing about them."""

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        os._exit(1)


class Report(msgspec.Struct, frozen=True):
    dispatches: int


async def main() -> None:
    place = msgspec.json.decode(await asyncio.to_thread(sys.stdin.readline), type=Place)
    store = open_store(place.url)
    if place.is_mortal:
        store = MortalStore(store)
    engine = Engine(store, namespace=place.namespace)
    await engine.open()
    try:
        duties = Duties(engine)
        duties.start()
        _say(READY)
        await asyncio.to_thread(sys.stdin.read)
        await duties.stop(STOP_SECONDS)
        _say(msgspec.json.encode(Report(duties.counts.value(ROUNDS))).decode())
    finally:
        await engine.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
