"""Following the log from now on: woken by hints, with a slow look as the net under them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from flowfabric.core.model import Event, Feed
from flowfabric.engine.engine import Engine
from flowfabric.engine.hints import Hint

NET_SECONDS = 0.5
PAGE = 1_000


class Follower:
    """`begin` marks the place; `pages` yields what comes after it, at times an empty page."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cursor = ""
        self._woken = asyncio.Event()

    async def begin(self) -> None:
        newest = await self._engine.read.events(Feed(newest=True))
        self._cursor = newest[-1].cursor if newest else ""
        self._engine.hints.subscribe(self._hear)

    def end(self) -> None:
        self._engine.hints.unsubscribe(self._hear)

    async def pages(self) -> AsyncGenerator[list[Event], None]:
        while True:
            self._woken.clear()
            lines = await self._engine.read.events(Feed(after=self._cursor, limit=PAGE))
            if lines:
                self._cursor = lines[-1].cursor
            yield lines
            if len(lines) < PAGE:
                await self._rest()

    def _hear(self, hint: Hint) -> None:
        self._woken.set()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(NET_SECONDS):
                await self._woken.wait()
        except TimeoutError:
            return
