"""What the app's tests share: a block that cannot hang, and a gate that a task waits at.

No test lives here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from flowfabric import App, Handle
from flowfabric.core.model import Feed, Query

# Far beyond what anything here takes: only a test that would hang for ever meets it.
PATIENCE_SECONDS = 30.0


@asynccontextmanager
async def running(app: App, *, lanes: tuple[str, ...] = ()) -> AsyncIterator[App]:
    """The app at work, for a bounded time; before it is over, what everybody waits for is told."""
    loop = asyncio.get_running_loop()
    alarm = loop.call_later(PATIENCE_SECONDS - 1.0, _tell_what_waits, app)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), app.running(lanes=lanes):
            yield app
    finally:
        alarm.cancel()


def _tell_what_waits(app: App) -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stdout)
    for duty in app.health():
        sys.stdout.write(f"{duty}\n")


class Gate:
    """Where a task waits: the test knows when it got there, and lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so; what it waits for happens by itself."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def kinds(handle: Handle[object]) -> list[str]:
    return [event.kind for event in await handle.events()]


async def written(app: App) -> tuple[int, int]:
    """How many executions and log lines there are."""
    await app.connect()
    rows = (await app.engine.read.find(Query(limit=1_000))).items
    lines = await app.engine.read.events(Feed(limit=1_000))
    return len(rows), len(lines)
