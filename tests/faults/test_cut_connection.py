"""A connection cut between a commit and its answer: the call is repeated, not its effect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from flowfabric.core.ids import RANDOM_BITS, ExecutionId, uuid7
from flowfabric.core.ids import execution_id as id_of
from flowfabric.core.lifecycle import Order
from flowfabric.core.model import Feed, Lease, Query
from flowfabric.core.states import State
from flowfabric.engine.engine import Engine
from flowfabric.store import open_store
from flowfabric.testing.build import KIND, LANE, TTL_MS, order
from tests.conftest import discard
from tests.faults.proxy import Proxy, proxy_of
from tests.servers import store_url

KINDS = ("postgres", "valkey")


class Wire(NamedTuple):
    """An engine whose only way to its store can be cut."""

    engine: Engine
    proxy: Proxy

    async def history(self, id: ExecutionId) -> list[str]:
        return [line.kind for line in await self.engine.read.events(Feed(execution=id))]


@pytest.fixture(params=KINDS)
async def wire(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Wire]:
    url = store_url(str(request.param), tmp_path / "store")
    async with proxy_of(url) as proxy:
        engine = Engine(open_store(proxy.url))
        await engine.open()
        yield Wire(engine, proxy)
        await engine.close()
    await discard(open_store(url))


_numbers = count(1)


def new_order(engine: Engine) -> Order:
    unique = uuid7(engine.clock.now_ms(), next(_numbers) % (1 << RANDOM_BITS))
    return order(id=id_of(7, unique))


async def submitted(engine: Engine) -> ExecutionId:
    return (await engine.submit([new_order(engine)]))[0].id


async def claimed(engine: Engine, limit: int = 1) -> list[Lease]:
    token = f"token-{next(_numbers)}"
    return await engine.claim([LANE], limit, tasks=[KIND], worker="w", token=token, ttl_ms=TTL_MS)


async def ran(engine: Engine) -> Lease:
    """Everything once, so that what is cut afterwards is the call and not its preparation."""
    await submitted(engine)
    (lease,) = await claimed(engine)
    await engine.renew([lease], TTL_MS)
    await engine.complete(lease, b"1")
    await engine.cancel(await submitted(engine))
    return lease


async def test_a_submit_is_there_once(wire: Wire) -> None:
    await ran(wire.engine)
    wanted = new_order(wire.engine)
    wire.proxy.cut_at(1)
    (answer,) = await wire.engine.submit([wanted])
    assert (answer.id, answer.error, wire.proxy.cuts) == (wanted.id, None, 1)
    assert await wire.history(wanted.id) == ["submitted"]


async def test_a_claim_takes_no_more_than_it_was_asked_for(wire: Wire) -> None:
    await ran(wire.engine)
    ids = [await submitted(wire.engine) for _ in range(4)]
    wire.proxy.cut_at(1)
    leases = await claimed(wire.engine, 2)
    assert [lease.id for lease in leases] == ids[:2]
    assert wire.proxy.cuts == 1
    held = await wire.engine.read.find(Query(states=(State.ACTIVE,)))
    assert {item.id for item in held.items} == set(ids[:2])


LAST_WORDS: dict[str, Callable[[Engine, Lease], Awaitable[object]]] = {
    "completed": lambda engine, lease: engine.complete(lease, b"1"),
    "released": lambda engine, lease: engine.release(lease),
}


@pytest.mark.parametrize("word", LAST_WORDS)
async def test_what_a_worker_says_is_said_once(wire: Wire, word: str) -> None:
    await ran(wire.engine)
    for cut_at in (None, 1):
        id = await submitted(wire.engine)
        leases = await claimed(wire.engine, 2)
        (lease,) = [lease for lease in leases if lease.id == id]
        if cut_at is not None:
            wire.proxy.cut_at(cut_at)
        await LAST_WORDS[word](wire.engine, lease)
        assert (await wire.history(id)).count(word) == 1
    assert wire.proxy.cuts == 1


@pytest.mark.parametrize("answer", [1, 2])
async def test_what_an_operator_does_is_done_once(wire: Wire, answer: int) -> None:
    await ran(wire.engine)
    id = await submitted(wire.engine)
    wire.proxy.cut_at(answer)
    await wire.engine.cancel(id)
    assert wire.proxy.cuts == 1
    assert await wire.history(id) == ["submitted", "cancelled"]
