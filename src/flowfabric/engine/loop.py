"""One class for everything that happens by itself.

A loop calls `run_once` and is told when to call it again: at once, after a while, or when woken.
Wake-ups make it fast, the interval makes it right. Failures back off, are counted and logged, and
never end the loop; stopping lets the current round finish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger("flowfabric.loop")

BACKOFF_SECONDS = (0.1, 30.0)
AGAIN = 0.0

RunOnce = Callable[[], Awaitable[float]]


class Loop:
    """`run_once` answers the seconds until it wants to be called again, `AGAIN` for at once.

    An interval of zero switches the loop off.
    """

    def __init__(self, name: str, run_once: RunOnce, *, every_seconds: float) -> None:
        self.name = name
        self.failures = 0
        self._run_once = run_once
        self._every = every_seconds
        self._woken = asyncio.Event()
        self._stopping = False

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        if self._every <= 0:
            return
        while not self._stopping:
            self._woken.clear()
            pause = await self._round()
            if pause > AGAIN and not self._stopping:
                await self._sleep(min(pause, self._every))
            else:
                # Rounds that never wait must not keep everything else waiting.
                await asyncio.sleep(0)

    async def _round(self) -> float:
        try:
            pause = await self._run_once()
        except Exception:
            self.failures += 1
            first, most = BACKOFF_SECONDS
            pause = min(first * 2 ** min(self.failures - 1, 20), most)
            logger.exception("loop %s failed", self.name, extra={"failures": self.failures})
        else:
            self.failures = 0
        return pause

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
