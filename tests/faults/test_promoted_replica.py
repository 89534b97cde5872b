"""A replica that is promoted before it heard of the last claim: epochs repeat, tokens do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from flowfabric.core.model import Feed, Lease
from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.errors import StaleLease
from flowfabric.store import open_store
from flowfabric.testing.build import KIND, LANE, TTL_MS, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.servers import ValkeyServer, valkey_server
from flowfabric.testing.servers.ports import HOST

# Otherwise a primary waits for more replicas to come.
AT_ONCE = {"repl-diskless-sync-delay": "0"}


class Pair:
    """A primary and its replica."""

    def __init__(self, stack: ExitStack) -> None:
        self.primary: ValkeyServer = stack.enter_context(valkey_server(AT_ONCE))
        self.replica: ValkeyServer = stack.enter_context(valkey_server())
        with self.replica.talk() as server:
            server.ask("CONFIG", "SET", "primaryauth", self.primary.password)
            server.ask("REPLICAOF", HOST, str(self.primary.port))

    def catch_up(self) -> None:
        """Until the replica has all that the primary was given."""
        with self.primary.talk() as server:
            server.ask("SET", "marker", "1")
            assert server.ask("WAIT", "1", "0") == "1"

    def promote(self) -> None:
        with self.replica.talk() as server:
            server.ask("REPLICAOF", "NO", "ONE")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


@pytest.fixture
async def engines(pair: Pair, clock: VirtualClock) -> AsyncIterator[list[Engine]]:
    """The same store before and after the replica took over."""
    before = Engine(open_store(pair.primary.url, clock=clock), clock=clock)
    await before.open()
    await before.submit([order(0)])
    pair.catch_up()
    pair.promote()
    after = Engine(open_store(pair.replica.url, clock=clock), clock=clock)
    await after.open()
    yield [before, after]
    await before.close()
    await after.close()


async def claimed(engine: Engine, worker: str) -> Lease:
    token = f"{worker}-0123456789abcdef"
    (lease,) = await engine.claim(
        [LANE], 1, tasks=[KIND], worker=worker, token=token, ttl_ms=TTL_MS
    )
    return lease


async def test_a_worker_from_before_the_takeover_is_refused(engines: list[Engine]) -> None:
    before, after = engines
    lost = await claimed(before, "first")
    held = await claimed(after, "second")
    assert (lost.id, lost.epoch) == (held.id, held.epoch)
    with pytest.raises(StaleLease):
        await after.complete(lost, b"1")
    finished = await after.complete(held, b"2")
    assert finished.state is State.COMPLETED
    assert await after.read.result(held.id) == b"2"


async def test_a_follower_that_is_ahead_of_the_new_primary_misses_nothing(
    engines: list[Engine],
) -> None:
    before, after = engines
    await before.submit([order(number) for number in range(1, 50)])
    (newest,) = await before.read.events(Feed(newest=True))
    await after.submit([order(99)])
    heard = await after.read.events(Feed(after=newest.cursor))
    assert order(99).id in {line.execution for line in heard}
