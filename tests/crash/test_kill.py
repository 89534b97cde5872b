"""Processes killed with SIGKILL in the middle of their work: nothing lost, halved or doubled."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from flowfabric.store import open_store
from flowfabric.testing.crash import Victim
from tests.conftest import Size, discard
from tests.crash.lab import Lab
from tests.servers import DURABLE, lasting_server, store_url

pytestmark = pytest.mark.lab

ROUNDS = {"small": 3, "long": 50}
ROUNDS_OF_SERVERS = {"small": 1, "long": 10}
PROCESSES = 3
DEATHS = {"small": 4, "long": 120}
# Of a file: statements and steps in them. Of a server: messages.
TICKS = {"sqlite": 600, "postgres": 150, "valkey": 150, "valkey-cluster": 400}
PROGRESS_EVERY = 10
LINES = 400


@pytest.fixture(params=DURABLE)
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def lab(store_kind: str, tmp_path: Path) -> AsyncIterator[Lab]:
    path = tmp_path / "crash.db"
    url = store_url(store_kind, path)
    yield Lab(url, path if store_kind == "sqlite" else None)
    store = open_store(url)
    await store.migrate()
    await discard(store)


async def test_what_was_acknowledged_survives_kills_at_any_moment(
    lab: Lab, size: Size, progress: Callable[[str], None]
) -> None:
    chance = random.Random(2026)
    for number in range(ROUNDS[size]):
        if number and number % PROGRESS_EVERY == 0:
            progress(f"{number} of {ROUNDS[size]} rounds")
        await lab.kill(
            [
                Victim(chance.getrandbits(31), lines=chance.randint(1, LINES))
                for _ in range(PROCESSES)
            ]
        )
    assert all(lab.told)
    sys.stdout.write(f"{ROUNDS[size]} rounds of {PROCESSES} processes killed: {lab}\n")


async def test_a_process_may_die_inside_any_statement(
    lab: Lab, store_kind: str, size: Size, progress: Callable[[str], None]
) -> None:
    chance = random.Random(7)
    ticks = sorted(chance.randint(1, TICKS[store_kind]) for _ in range(DEATHS[size]))
    for seed, tick in enumerate(ticks):
        if seed and seed % PROGRESS_EVERY == 0:
            progress(f"{seed} of {len(ticks)} deaths")
        await lab.kill([Victim(seed, tick=tick)])
    assert lab.told.completed
    assert lab.told.appended
    sys.stdout.write(f"{len(ticks)} processes died inside a statement: {lab}\n")


@pytest.mark.parametrize("kind", ["postgres", "valkey"])
async def test_a_server_may_die_while_its_clients_work(kind: str, size: Size) -> None:
    chance = random.Random(11)
    with lasting_server(kind) as server:

        def kill_and_start() -> None:
            server.kill()
            server.start()

        lab = Lab(server.url)
        for _ in range(ROUNDS_OF_SERVERS[size]):
            seeds = [chance.getrandbits(31) for _ in range(PROCESSES)]
            killer = Victim(seeds[0], lines=LINES, halfway=kill_and_start)
            await lab.kill([killer, *(Victim(seed, lines=LINES) for seed in seeds[1:])])
        assert all(lab.told)
    sys.stdout.write(f"{ROUNDS_OF_SERVERS[size]} servers killed: {lab}\n")
