"""The heartbeat of a worker: every ten seconds its document says that it lives.

Whatever goes wrong here is logged and tried again; the work goes on.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Collection, Sequence

import msgspec

from flowfabric.core.registry import HEARTBEAT_SECONDS, WorkerRecord
from flowfabric.engine.engine import Engine
from flowfabric.engine.loop import Loop
from flowfabric.errors import FlowFabricError
from flowfabric.loggers import logger_of
from flowfabric.version import VERSION

logger = logger_of("flowfabric.worker")

END_SECONDS = 2.0


class Heartbeat:
    """`busy` says how many slots are taken now; `tasks` may grow while the worker runs."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        lanes: Sequence[str],
        tasks: Collection[str],
        slots: int,
        busy: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._busy = busy
        self._tasks = tasks
        self._about = WorkerRecord(
            name=name,
            namespace=engine.namespace,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            lanes=tuple(sorted(lanes)),
            tasks=(),
            slots=slots,
            busy=0,
            started_ms=0,
            seen_ms=0,
        )
        # Several workers may have one name; each is registered under one of its own.
        self._registration = engine.registry.register(secrets.token_hex(8))
        self._loop = Loop("heartbeat", self.beat, every_seconds=HEARTBEAT_SECONDS)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._loop.run())

    async def beat(self) -> float:
        now_ms = self._engine.clock.now_ms()
        if not self._about.started_ms:
            self._about = msgspec.structs.replace(self._about, started_ms=now_ms)
        try:
            await self._registration.beat(self._about.seen(now_ms, self._busy(), self._tasks))
        except FlowFabricError as error:
            logger.warning(
                "could not write the heartbeat of the worker", extra={"error": error.code}
            )
        return HEARTBEAT_SECONDS

    async def stop(self) -> None:
        """Nobody waits for a worker that is gone: its document goes with it, if the store answers
        soon; else it expires."""
        self._loop.stop()
        try:
            async with asyncio.timeout(END_SECONDS):
                if self._task is not None:
                    await asyncio.wait([self._task])
                await self._registration.end()
        except (TimeoutError, FlowFabricError) as error:
            logger.debug("could not unregister the worker; its entry expires: %r", error)
        finally:
            if self._task is not None:
                self._task.cancel()
