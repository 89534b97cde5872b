"""The worker processes of the demo: start, kill, stop. None of them outlives the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from flowfabric.cli.demo.tasks import WORKERS
from flowfabric.errors import FlowFabricError

_STOP_SECONDS = 10


class Crew:
    """Use it as a context: leaving it stops whoever is still there."""

    def __init__(self, url: str, namespace: str, folder: Path, *, effects: Path) -> None:
        self._url = url
        self._arguments = [namespace, str(effects)]
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Crew:
        try:
            for number in WORKERS:
                self._processes[number] = self._start(number)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, *_same_path(), "-m", "flowfabric.cli.demo.worker"]
        with self._said_by(number).open("wb") as said:
            process = subprocess.Popen(  # noqa: S603
                [*command, *self._arguments, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        # Arguments can be seen by everybody on the machine, and the URL may hold a password.
        with suppress(BrokenPipeError):
            if process.stdin is not None:
                process.stdin.write(f"{self._url}\n".encode())
                process.stdin.flush()
        return process

    def process_id(self, number: int) -> int:
        return self._processes[number].pid

    def kill(self, number: int) -> int:
        """SIGKILL: no handler, no goodbye. Answers the process id; when it returns, it is dead."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()
        _close_input(process)
        return process.pid

    def check(self) -> None:
        """Notice a worker that stopped by itself, and say what it said last."""
        for number, process in self._processes.items():
            code = process.poll()
            if code is not None:
                said = self._said_by(number).read_text(encoding="utf-8", errors="replace")
                last = said.strip().splitlines()[-1:] or ["it printed nothing"]
                raise FlowFabricError(f"worker {number} stopped with code {code}: {last[0]}")

    def _said_by(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    def _stop(self) -> None:
        for process in self._processes.values():
            _close_input(process)
        for process in self._processes.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


def _close_input(process: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.close()


def _same_path() -> list[str]:
    """Look for modules in the working directory only if this process does."""
    is_local = "" in sys.path or str(Path.cwd()) in sys.path or os.curdir in sys.path
    return [] if is_local else ["-P"]
