"""Operator commands in a pseudo-terminal: what a person sees, types, and interrupts."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import flowfabric as ff

LIMIT_SECONDS = 60
MODULE = """
import flowfabric as ff

app = ff.App("sqlite:///flows.db")

@app.task
def add(a: int) -> int:
    return a
"""


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._screen, inside = pty.openpty()
        clean = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flowfabric", *arguments],
            env=clean | {"TERM": "xterm", "FLOWFABRIC_STORE": "sqlite:///flows.db"},
            cwd=folder,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)
        self.shown = b""

    def until(self, text: str) -> None:
        """Read until this is on the screen; an end of the command before that is a failure."""
        while text.encode() not in self.shown:
            chunk = self._read()
            assert chunk, self.shown.decode(errors="replace")
            self.shown += chunk

    def _read(self) -> bytes:
        try:
            return os.read(self._screen, 65_536)
        except OSError:
            # Linux says so when the last user of a terminal is gone.
            return b""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def end(self) -> int:
        while chunk := self._read():
            self.shown += chunk
        return self.process.wait(LIMIT_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    opened = Terminal(folder, *arguments)
    try:
        yield opened
    finally:
        opened.close()


def started(folder: Path) -> str:
    async def start() -> str:
        app = ff.App(f"sqlite:///{folder / 'flows.db'}")

        @app.task
        def add(a: int) -> int:
            return a

        handle = await add.start(1)
        await app.close()
        return handle.id

    return asyncio.run(start())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "watched_shop.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def test_ps_watches_until_it_is_interrupted(folder: Path) -> None:
    first = started(folder)
    with terminal(folder, "ps", "--watch") as screen:
        screen.until(first)
        second = started(folder)
        screen.until(second)
        os.killpg(screen.process.pid, signal.SIGINT)
        assert screen.end() == 130
        assert b"Traceback" not in screen.shown


def test_show_keeps_ids_whole(folder: Path) -> None:
    id = started(folder)
    with terminal(folder, "show", id) as screen:
        screen.until("submitted")
        assert screen.end() == 0
        assert id.encode() in screen.shown


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 1, 1), ("y\n", 0, 0)])
def test_a_bulk_change_asks_first(folder: Path, answer: str, code: int, left: int) -> None:
    started(folder)
    with terminal(folder, "cancel", "--task", "add") as screen:
        screen.until("cancel 1 executions?")
        screen.type(answer)
        assert screen.end() == code
    app = ff.App(f"sqlite:///{folder / 'flows.db'}")
    assert app.sync.find(state="waiting").count() == left
    app.sync.close()


def test_a_worker_drains_at_an_interrupt(folder: Path) -> None:
    with terminal(folder, "--log-level", "info", "worker", "watched_shop:app") as screen:
        screen.until("started: lanes default")
        os.killpg(screen.process.pid, signal.SIGINT)
        assert screen.end() == 0
        assert b"Traceback" not in screen.shown
