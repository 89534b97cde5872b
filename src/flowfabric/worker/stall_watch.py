"""Notice an event loop that stands still, and name the function that blocks it.

A thread asks the loop for a sign now and then. Where none comes in time, the stack of the loop's
thread shows what it is doing: a plain `time.sleep` or a long computation in an `async` task keeps
every other task of the process from going on.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType

from flowfabric.loggers import logger_of
from flowfabric.worker.failure_capture import is_own_file
from flowfabric.worker.handler import Handler

logger = logger_of("flowfabric.worker")

LOOK_SECONDS = 2.0
STALL_SECONDS = 1.0


class StallWatch:
    """Watches the loop that `start` is called in, until `stop`."""

    def __init__(self, worker: str, handlers: Mapping[str, Handler]) -> None:
        self._worker = worker
        self._tasks = dict(_codes(handlers))
        self._sign = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        loop, watched = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(
            target=self._run, args=(loop, watched), name="flowfabric-stall-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        # Whoever waits for a sign of a loop that has ended waits for nothing.
        self._sign.set()

    def _run(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self._sign.clear()
            asked = time.monotonic()
            try:
                loop.call_soon_threadsafe(self._sign.set)
            except RuntimeError:
                return
            if not self._sign.wait(STALL_SECONDS):
                self._report(asked, watched)

    def _report(self, asked: float, watched: int) -> None:
        """Once when it is noticed, for it may never end, and once when it is over."""
        frame = sys._current_frames().get(watched)
        place, task = self._place(frame)
        del frame
        about = {"worker": self._worker, "task": task, "function": place}
        logger.warning(
            "the event loop has been blocked for %.1f s by %s; await, or use a plain `def` task",
            time.monotonic() - asked,
            place,
            extra=about,
        )
        self._sign.wait()
        blocked = time.monotonic() - asked
        logger.warning(
            "the event loop was blocked for %.1f s by %s",
            blocked,
            place,
            extra=about | {"blocked_ms": round(blocked * 1000)},
        )

    def _place(self, frame: FrameType | None) -> tuple[str, str]:
        """The innermost function of the user's own, and the task that it works for."""
        shown = task = ""
        for each in _outwards(frame):
            if not shown and is_own_file(each.f_code.co_filename):
                file = Path(each.f_code.co_filename).name
                shown = f"{each.f_code.co_qualname}() ({file}:{each.f_lineno})"
            task = self._tasks.get(each.f_code, "")
            if task:
                break
        place = shown or "code that is not in the stack"
        return (f"task {task!r} in {place}" if task else place), task


def _codes(handlers: Mapping[str, Handler]) -> Iterator[tuple[CodeType, str]]:
    for name, handler in handlers.items():
        code: object = getattr(inspect.unwrap(handler.function), "__code__", None)
        if isinstance(code, CodeType):
            yield code, name


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
