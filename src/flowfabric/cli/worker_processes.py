"""Worker processes of one app, kept running: `ff worker --processes N` and `--reload`.

Each process runs in a process group of its own, so that Ctrl-C reaches this one alone, which then
drains all of them. Each holds the reading end of a pipe as its standard input: when this process
dies in whatever way, the pipe closes and the worker drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.cli")

# How long a process that ended by itself is missing, at first and at most.
PAUSE_SECONDS = (1.0, 30.0)
# One that ran for so long had no trouble with its start.
SOUND_SECONDS = 60.0
LOOK_SECONDS = 0.5
# Folders whose files are not the project's own, besides hidden ones and virtual environments.
_FOREIGN = frozenset({"__pycache__", "node_modules", "site-packages"})


def end_with_input() -> None:
    """Send this process SIGTERM when its standard input closes, as that of a supervised worker
    does when its supervisor is gone."""

    def watch() -> None:
        # Not through `sys.stdin`: its lock would be held when the interpreter shuts down.
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="flowfabric-supervisor-watch", daemon=True).start()


class WorkerProcesses:
    """Starts `count` processes of one command and replaces those that end by themselves."""

    def __init__(self, command: Sequence[str], count: int, *, reload: Path | None = None) -> None:
        self._command = [sys.executable, "-m", "flowfabric", *command]
        self._count = count
        self._folder = reload
        self._running: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()

    async def run(self) -> int:
        """Until SIGTERM or SIGINT; answers the highest exit code of the processes that drained."""
        with self._signals():
            keeping = [asyncio.create_task(self._keep()) for _ in range(self._count)]
            watching = asyncio.create_task(self._watch())
            try:
                return max(await asyncio.gather(*keeping))
            finally:
                watching.cancel()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        """The first signal drains the workers; a second one reaches them as a second one."""
        self._stopping.set()
        self._end_all()

    def _end_all(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def _keep(self) -> int:
        """One place among the processes; answers how the last one in it ended."""
        code, pause = 0, PAUSE_SECONDS[0]
        clock = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            began, changed = clock(), self._changed
            code = await self._one()
            if self._stopping.is_set() or changed.is_set():
                continue
            if clock() - began > SOUND_SECONDS:
                pause = PAUSE_SECONDS[0]
            await self._rest(code, None if self._folder else pause, changed)
            pause = min(pause * 2, PAUSE_SECONDS[1])
        return abs(code)

    async def _one(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, process_group=0
        )
        self._running.add(process)
        if self._stopping.is_set():
            self._end_all()
        try:
            return await process.wait()
        finally:
            self._running.discard(process)

    async def _rest(self, code: int, seconds: float | None, changed: asyncio.Event) -> None:
        """Until it is worth another try: after a pause, or at a change of the sources."""
        then = "the next change of the sources" if seconds is None else f"{seconds:g} s"
        logger.error("a worker process ended with %s; it starts again after %s", code, then)
        waits = [asyncio.create_task(event.wait()) for event in (self._stopping, changed)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _watch(self) -> None:
        if self._folder is None:
            return
        seen = await asyncio.to_thread(source_times, self._folder)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = await asyncio.to_thread(source_times, self._folder)
            if now != seen:
                different = sorted(path for path, _ in now.items() ^ seen.items())
                logger.warning("%s changed; the workers start again", different[0])
                seen, changed, self._changed = now, self._changed, asyncio.Event()
                changed.set()
                self._end_all()


def source_times(folder: Path) -> dict[str, int]:
    """When each Python file of a project was changed last."""
    times: dict[str, int] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if _is_own(place, each)]
        for file in files:
            if file.endswith(".py"):
                path = os.path.join(place, file)  # noqa: PTH118 - thousands of them, twice a second
                with contextlib.suppress(FileNotFoundError):
                    times[path] = os.stat(path).st_mtime_ns  # noqa: PTH116
    return times


def _is_own(place: str, folder: str) -> bool:
    if folder.startswith(".") or folder in _FOREIGN:
        return False
    return not Path(place, folder, "pyvenv.cfg").exists()
