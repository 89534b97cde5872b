"""Every store in another event loop than Python's own: one walk from the submit to the result."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flowfabric import App
from flowfabric.cli.event_loop import fastest_loop
from tests.app.stage import PATIENCE_SECONDS, running
from tests.conftest import discard
from tests.servers import store_url


async def walk(url: str) -> tuple[type[asyncio.AbstractEventLoop], int, int]:
    app = App(url)

    @app.task
    async def number(n: int) -> int:
        return n

    @app.task
    def total(parts: list[int]) -> int:
        return sum(parts)

    try:
        async with running(app):
            alone = await (await number.start(7)).result()
            g = app.graph("sum")
            last = g.add(total, [g.add(number, 1), g.add(number, 20)])
            together = await (await g.submit()).result(last)
    finally:
        await discard(app.engine.store)
    return type(asyncio.get_running_loop()), alone, together


def test_every_store_works_in_uvloop(store_kind: str, tmp_path: Path) -> None:
    url = store_url(store_kind, tmp_path / "store.db")
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        loop, alone, together = runner.run(asyncio.wait_for(walk(url), 2 * PATIENCE_SECONDS))
    assert loop.__module__.partition(".")[0] == "uvloop"
    assert (alone, together) == (7, 21)
