"""The owner's side of a guardian: a folder and the server processes in it.

Everything that a private server leaves on the machine belongs to its guardian, so it goes away
with the owner, however the owner ends. Signals are sent by the guardian, which alone knows that a
process id still means the same process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from flowfabric.errors import StoreUnavailable

START_SECONDS = 60.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.01
LAST_LINES = 12


class Account(NamedTuple):
    """The user that a server runs as."""

    user: int
    group: int


class Answer(msgspec.Struct, frozen=True):
    folder: str = ""
    pid: int = 0
    code: int | None = None
    error: str | None = None


class Keeper:
    """A guardian and the folder that it keeps. Closing it ends all and removes the folder."""

    def __init__(self, within: str | None = None) -> None:
        script = str(Path(__file__).with_name("guardian.py"))
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, within or tempfile.gettempdir()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.folder = self._open()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def _open(self) -> Path:
        try:
            answer = self._hear()
            if answer.error is not None:
                raise StoreUnavailable(
                    f"cannot create a folder for a private server: {answer.error}"
                )
        except BaseException:
            self.close()
            raise
        return Path(answer.folder)

    def ask(self, request: Mapping[str, object]) -> Answer:
        with self._lock:
            if self._process.stdin is None or self._process.stdin.closed:
                raise StoreUnavailable("the private server is gone", hint="start another one")
            try:
                self._process.stdin.write(msgspec.json.encode(request) + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise self._lost() from None
            return self._hear()

    def _hear(self) -> Answer:
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise self._lost()
        return msgspec.json.decode(line, type=Answer)

    def _lost(self) -> StoreUnavailable:
        return StoreUnavailable(
            "the process that keeps the private servers is gone",
            hint="something else ended it; start again",
        )


class Program(NamedTuple):
    """What runs: its title for people, where its files are, and how it is asked to end."""

    title: str
    folder: Path
    argv: Sequence[str]
    account: Account | None = None
    stop_signal: int = signal.SIGTERM
    end_signal: int = signal.SIGKILL
    file_limit: int | None = None


class ServerProcess:
    """One process of a server, from its start to its end; may be started again."""

    def __init__(self, keeper: Keeper, name: str) -> None:
        self._keeper = keeper
        self._name = name
        self._program: Program | None = None
        self.pid: int | None = None

    @property
    def log(self) -> Path:
        return self._keeper.folder / f"{self._name}.log"

    def start(self, program: Program) -> None:
        self._program = program
        account = program.account
        answer = self._keeper.ask(
            {
                "start": {
                    "name": self._name,
                    "argv": list(program.argv),
                    "log": str(self.log),
                    "env": _environment(program.folder),
                    "user": account.user if account else None,
                    "group": account.group if account else None,
                    "end_signal": int(program.end_signal),
                    "file_limit": program.file_limit,
                }
            }
        )
        if answer.error is not None:
            raise StoreUnavailable(f"{program.title} cannot be started: {answer.error}")
        self.pid = answer.pid

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None if it still runs after these seconds."""
        answer = self._keeper.ask({"wait": self._name, "seconds": seconds})
        if answer.code is not None:
            self.pid = None
        return answer.code

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Look until it is ready; raise with what it said last if it ends before that."""
        end = time.monotonic() + START_SECONDS
        while not is_ready():
            code = self.wait(LOOK_SECONDS)
            if code is not None:
                raise self.failed(f"ended with code {code} instead of starting")
            if time.monotonic() > end:
                self.kill()
                raise self.failed(f"was not ready after {START_SECONDS:.0f} s")

    def stop(self) -> None:
        """Ask it to end, and end it if it does not. Harmless when it does not run."""
        if self.pid is None or self._program is None:
            return
        self._keeper.ask({"signal": self._name, "number": int(self._program.stop_signal)})
        if self.wait(STOP_SECONDS) is None:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to it and to all that it forked; when this returns they are dead."""
        if self.pid is None:
            return
        self._keeper.ask({"kill": self._name})
        if self.wait(STOP_SECONDS) is None:
            raise self.failed("survived its own death")

    def failed(self, what: str) -> StoreUnavailable:
        title = self._program.title if self._program else self._name
        last = self.last_lines()
        said = f"; its last words:\n{last}" if last else ""
        return StoreUnavailable(f"{title} {what}{said}")

    def last_lines(self) -> str:
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-LAST_LINES:])


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the owner's, which may hold settings of other servers, or secrets."""
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOME": str(folder), "LC_ALL": "C", "TZ": "UTC"}
