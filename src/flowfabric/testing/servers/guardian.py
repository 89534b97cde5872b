"""The process that keeps private servers: `python guardian.py FOLDER`, with the standard library
alone.

It makes one folder inside FOLDER, starts servers when told to on its standard input, one JSON
object per line, and answers each line with one. When its input ends, because its owner closed it
or died in whatever way, it ends every server and removes the folder. There is no other way out.

Every server holds the writing end of a pipe, and so does everything that it forks: when the
reading end is at its end, all of them are gone. Nothing is polled.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypedDict

PREFIX = "flowfabric-servers-"
END_SECONDS = 5.0
# An owner that forked leaves its end of the pipe to its children; its death is seen by this.
OWNER_SECONDS = 1.0

Answer = dict[str, str | int | None]


class Start(TypedDict):
    """How to start a server. `end_signal` is what ends it when its owner is gone."""

    name: str
    argv: list[str]
    log: str
    env: dict[str, str]
    user: int | None
    group: int | None
    end_signal: int
    file_limit: int | None


class Request(TypedDict, total=False):
    start: Start
    signal: str
    number: int
    kill: str
    wait: str
    seconds: float


class Charge(NamedTuple):
    """A server that was started: its process, and the pipe that ends with the last of it."""

    process: subprocess.Popen[bytes]
    life: int
    end_signal: int


class OwnerGone(Exception):
    """Whoever started this process no longer wants it."""


class Guardian:
    def __init__(self, folder: str) -> None:
        self.folder = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
        self._owner = os.getppid()
        self._charges: dict[str, Charge] = {}
        self._unread = b""

    def serve(self) -> None:
        self._say({"folder": self.folder})
        while True:
            self._say(self._answer(self._request()))

    def end(self) -> None:
        for charge in self._charges.values():
            charge.process.send_signal(charge.end_signal)
        for charge in self._charges.values():
            is_over = _is_over(charge.life, END_SECONDS)
            if not is_over:
                _kill_all(charge.process)
                is_over = _is_over(charge.life, END_SECONDS)
            if is_over:
                _reap(charge.process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _request(self) -> Request:
        while b"\n" not in self._unread:
            if os.getppid() != self._owner:
                raise OwnerGone
            if select.select([sys.stdin], [], [], OWNER_SECONDS)[0]:
                self._unread += self._read()
        line, _, self._unread = self._unread.partition(b"\n")
        request: Request = json.loads(line)
        return request

    def _read(self) -> bytes:
        said = os.read(sys.stdin.fileno(), 65_536)
        if not said:
            raise OwnerGone
        return said

    def _say(self, answer: Answer) -> None:
        try:
            os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
        except BrokenPipeError as error:
            raise OwnerGone from error

    def _answer(self, request: Request) -> Answer:
        if "start" in request:
            return self._start(request["start"])
        if "signal" in request:
            self._charges[request["signal"]].process.send_signal(request["number"])
            return {}
        if "kill" in request:
            _kill_all(self._charges[request["kill"]].process)
            return {}
        return {"code": self._wait(request["wait"], request["seconds"])}

    def _start(self, start: Start) -> Answer:
        life, held = os.pipe()
        try:
            with Path(start["log"]).open("ab") as log:
                process = subprocess.Popen(
                    start["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env=start["env"],
                    user=start["user"],
                    group=start["group"],
                    extra_groups=[] if start["user"] is not None else None,
                    pass_fds=(held,),
                    start_new_session=True,
                    preexec_fn=_limiter(start["file_limit"]),  # noqa: PLW1509 - one thread
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            os.close(life)
            return {"error": str(error)}
        finally:
            os.close(held)
        self._charges[start["name"]] = Charge(process, life, start["end_signal"])
        return {"pid": process.pid}

    def _wait(self, name: str, seconds: float) -> int | None:
        """The exit code once the server and all that it forked are gone; None if they are not."""
        charge = self._charges[name]
        if not _is_over(charge.life, seconds, owner=sys.stdin.fileno()):
            return None
        del self._charges[name]
        os.close(charge.life)
        return _reap(charge.process)


def _limiter(file_limit: int | None) -> Callable[[], None] | None:
    """No file of the process may grow beyond this: how a disk is full without being it."""
    if file_limit is None:
        return None
    limits = (file_limit, resource.RLIM_INFINITY)
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _is_over(life: int, seconds: float, *, owner: int | None = None) -> bool:
    watched = [life] + ([owner] if owner is not None else [])
    return life in select.select(watched, [], [], seconds)[0]


def _reap(process: subprocess.Popen[bytes]) -> int:
    """The exit code. The pipe closes a moment before its process ends, and a process may close it
    and run on: only the kill makes sure that this wait is short."""
    process.kill()
    return process.wait()


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """A stopped server forks nothing new, so its children are all that have to die with it."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGSTOP)
    for pid in [*_children(process.pid), process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    table = _from_proc() if Path("/proc/self/stat").exists() else _from_ps()
    return [pid for pid, above in table if above == parent]


def _from_proc() -> list[tuple[int, int]]:
    table: list[tuple[int, int]] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of a program may contain anything, so the fields are counted after it.
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            table.append((int(stat.parent.name), int(fields[1])))
    return table


def _from_ps() -> list[tuple[int, int]]:
    command = ["/bin/ps", "-A", "-o", "pid=", "-o", "ppid="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(int(pid), int(above)) for pid, above in (line.split() for line in lines)]


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise OwnerGone


def main(folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    try:
        guardian = Guardian(folder)
    except OSError as error:
        os.write(sys.stdout.fileno(), json.dumps({"error": str(error)}).encode() + b"\n")
        return
    try:
        guardian.serve()
    except OwnerGone:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:
        guardian.end()


if __name__ == "__main__":
    main(sys.argv[1])
