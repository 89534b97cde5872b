"""One class for everything that happens by itself.

A loop calls `run_once` and is told when to call it again: at once, after a while, or when woken.
Wake-ups make it fast, the interval makes it right. Failures back off, are counted and logged, and
never end the loop; stopping lets the current round finish.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.loop")

BACKOFF_SECONDS = (0.1, 30.0)
AGAIN = 0.0

RunOnce = Callable[[], Awaitable[float]]


class Loop:
    """`run_once` answers the seconds until it wants to be called again, `AGAIN` for at once.

    An interval of zero switches the loop off. `rounds` counts those that went well, `failures`
    those that failed since; `problem` is the last failure.
    """

    def __init__(self, name: str, run_once: RunOnce, *, every_seconds: float) -> None:
        self.name = name
        self.failures = 0
        self.rounds = 0
        self.problem = ""
        self._wanted_at: float | None = None
        self._run_once = run_once
        self._every = every_seconds
        self._woken = asyncio.Event()
        self._stopping = False

    @property
    def every_seconds(self) -> float:
        return self._every

    @property
    def is_on(self) -> bool:
        return self._every > 0

    def lag_seconds(self) -> float:
        """How long ago a round should have ended well that has not; 0 while it waits in time."""
        return 0.0 if self._wanted_at is None else max(time.monotonic() - self._wanted_at, 0.0)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        if not self.is_on:
            return
        self._wanted_at = self._wanted_at or time.monotonic()
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
        except Exception as error:
            self.failures += 1
            self.problem = repr(error)
            first, most = BACKOFF_SECONDS
            pause = min(first * 2 ** min(self.failures - 1, 20), most)
            logger.exception("duty %s failed", self.name, extra={"failures": self.failures})
        else:
            self.failures = 0
            self.problem = ""
            self.rounds += 1
            self._wanted_at = time.monotonic() + min(pause, self._every)
        return pause

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
