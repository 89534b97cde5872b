"""A server that is killed in the middle of the work and started again: nothing lost or doubled."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from flowfabric import App, Handle, StoreUnavailable
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.model import Feed
from tests.app.stage import PATIENCE_SECONDS, running
from tests.servers import LastingServer, lasting_server

JOBS = 400
KILL_AFTER = 100
ALL = 1_000_000


async def result_of(handle: Handle[int]) -> int:
    """Who waits is told that the store is away, and asks again."""
    while True:
        try:
            return await handle.result()
        except StoreUnavailable:
            await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["postgres", "valkey"])
async def test_work_goes_on_after_a_kill_of_the_server(kind: str) -> None:
    with lasting_server(kind) as server:
        await work_through_a_kill(server)


async def work_through_a_kill(server: LastingServer) -> None:
    app = App(server.url, concurrency=20)
    done: list[int] = []
    half_done = asyncio.Event()

    @app.task
    async def work(n: int) -> int:
        done.append(n)
        if len(done) == KILL_AFTER:
            half_done.set()
        return n * 2

    async with asyncio.timeout(2 * PATIENCE_SECONDS), running(app):
        handles = await app.start_many(work.bind(n) for n in range(JOBS))
        waiting = [asyncio.create_task(result_of(handle)) for handle in handles]
        await half_done.wait()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert await asyncio.gather(*waiting) == [n * 2 for n in range(JOBS)]
        lines = await app.engine.store.tail(Feed(limit=ALL))
    ends = Counter(line.execution for line in lines if line.kind == "completed")
    assert ends == Counter({parse_execution_id(handle.id): 1 for handle in handles})
