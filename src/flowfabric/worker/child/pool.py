"""The child processes of one worker: as many as attempts run in such, kept for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from flowfabric.worker.child.process import GRACE_SECONDS, KILL_SECONDS, ChildProcess

# A process that had nothing to do for so long ends.
IDLE_SECONDS = 60.0
# What an attempt takes at most to end in its process.
END_SECONDS = GRACE_SECONDS + KILL_SECONDS + 1.0


class ChildPool:
    """Each attempt has a process for itself: there are no more of them than slots."""

    def __init__(self) -> None:
        self._idle: dict[ChildProcess, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def take(self) -> ChildProcess:
        """One that waits, or a new one."""
        while self._idle:
            child, timer = self._idle.popitem()
            timer.cancel()
            if child.is_alive:
                return child
        return ChildProcess()

    def give_back(self, child: ChildProcess) -> None:
        timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._dismiss, child)
        self._idle[child] = timer

    async def end(self, child: ChildProcess) -> None:
        """End one that is at work. Who waits for that may be cancelled meanwhile, again and again:
        nothing else may begin in its place while it lives."""
        ending = self._begin(child.end())
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                continue

    async def close(self) -> None:
        for child in list(self._idle):
            self._dismiss(child)
        while self._ending:
            await asyncio.wait(self._ending)

    def _begin(self, end: Coroutine[object, None, None]) -> asyncio.Task[None]:
        ending = asyncio.get_running_loop().create_task(end)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    def _dismiss(self, child: ChildProcess) -> None:
        self._idle.pop(child).cancel()
        self._begin(child.dismiss())
