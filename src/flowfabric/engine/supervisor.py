"""Supervisor: runs the duties of an engine, starts again what crashed, and says how each is.

A round that fails is the loop's own matter; a loop that ends by itself is started again, later
each time. Stopping lets every round under way finish, within a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from flowfabric.engine.loop import Loop
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.supervisor")

RESTART_SECONDS = (1.0, 30.0)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How one duty is: `is_well` while its last round went well and it is not being restarted."""

    name: str
    is_well: bool
    rounds: int
    failures: int
    restarts: int
    lag_ms: int
    problem: str = ""


class Supervisor:
    """The loops of one engine. Those that are switched off are not started and not shown."""

    def __init__(self, loops: Sequence[Loop]) -> None:
        self._loops = [loop for loop in loops if loop.is_on]
        self._tasks: list[asyncio.Task[None]] = []
        self._restarts = {loop.name: 0 for loop in self._loops}
        self._crashed: dict[str, str] = {}
        self._is_stopping = asyncio.Event()

    def start(self) -> None:
        running = asyncio.get_running_loop()
        self._tasks = [
            running.create_task(self._keep(loop), name=f"flowfabric-{loop.name}")
            for loop in self._loops
        ]

    def health(self) -> list[Health]:
        return [
            Health(
                name=loop.name,
                is_well=not loop.failures and loop.name not in self._crashed,
                rounds=loop.rounds,
                failures=loop.failures,
                restarts=self._restarts[loop.name],
                lag_ms=round(loop.lag_seconds() * 1000),
                problem=self._crashed.get(loop.name, loop.problem),
            )
            for loop in self._loops
        ]

    async def stop(self, within_seconds: float) -> list[str]:
        """Let rounds under way finish; answers those that did not in time and were cut off."""
        self._is_stopping.set()
        for loop in self._loops:
            loop.stop()
        late: set[asyncio.Task[None]] = set()
        try:
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=within_seconds)
        finally:
            await self._cut_off()
        names = sorted(task.get_name().removeprefix("flowfabric-") for task in late)
        if names:
            logger.warning("cancelled while stopping: %s", ", ".join(names))
        return names

    async def _cut_off(self) -> None:
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        self._tasks = []

    async def _keep(self, loop: Loop) -> None:
        """Run the loop; whatever ends it before it is told to, starts it again."""
        while not self._is_stopping.is_set():
            task = asyncio.ensure_future(loop.run())
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait([task])
                raise
            if self._is_stopping.is_set():
                return
            await self._pause(loop, _problem(task))

    async def _pause(self, loop: Loop, problem: str) -> None:
        self._restarts[loop.name] += 1
        self._crashed[loop.name] = problem
        first, most = RESTART_SECONDS
        seconds = min(first * 2 ** min(self._restarts[loop.name] - 1, 20), most)
        logger.error(
            "%s ended unexpectedly and is restarted",
            loop.name,
            extra={"duty": loop.name, "problem": problem, "pause_seconds": seconds},
        )
        try:
            async with asyncio.timeout(seconds):
                await self._is_stopping.wait()
        except TimeoutError:
            self._crashed.pop(loop.name, None)


def _problem(task: asyncio.Task[None]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "ended" if error is None else repr(error)
