"""Worker processes that a test starts, talks to and signals. No test lives here."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.app.stage import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("process.py")
DEAF = Path(__file__).with_name("deaf.py")


class Process:
    """A worker process that a test talks to."""

    def __init__(self, url: str, *options: str, program: Path = PROGRAM) -> None:
        module = ".".join(program.relative_to(ROOT).with_suffix("").parts)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, url, *options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    @property
    def id(self) -> int:
        return self._process.pid

    async def says(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await asyncio.to_thread(self._process.stdout.readline)).rstrip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.to_thread(self._process.wait, PATIENCE_SECONDS)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def process(url: str, *options: str, program: Path = PROGRAM) -> Iterator[Process]:
    started = Process(url, *options, program=program)
    try:
        yield started
    finally:
        started.close()
