"""One child process as its worker sees it: started, given jobs, and ended with all that it started.

The child leads a session and a process group of its own: a signal to the group reaches whatever the
child has started, and no signal of a terminal that is meant for the worker reaches the child.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module

import msgspec

from flowfabric.forking import close_in_children, keep_in_children
from flowfabric.loggers import logger_of
from flowfabric.worker.child.importing import import_path, main_place
from flowfabric.worker.child.messages import (
    HEAD_BYTES,
    FromChild,
    FromWorker,
    framed,
    length_of,
    read_from_child,
)
from flowfabric.worker.child.setting import BOOT, Setting

logger = logger_of("flowfabric.worker")

# How long a process may take to end by itself when it is asked to, and how long the system may.
GRACE_SECONDS = 2.0
KILL_SECONDS = 5.0
# How long a process may outlive its connection, and its last words may take to arrive.
PARTING_SECONDS = 1.0


class ChildDied(Exception):
    """The process ended before it answered."""


class ChildProcess:
    """Is made, used and ended in one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = threading.Lock()
        self._is_reaped = False
        self._ours, theirs = socket.socketpair()
        life, self._life = os.pipe()
        close_in_children(self._life)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this Python, with a program of ours
                _command(theirs.fileno(), life),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), life),
                start_new_session=True,
            )
        except BaseException:
            self._ours.close()
            self._let_go()
            raise
        finally:
            theirs.close()
            os.close(life)
        name = f"flowfabric-child-{self.id}"
        threading.Thread(target=self._watch, name=name, daemon=True).start()

    @property
    def id(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return not self._code.done()

    async def say(self, message: FromWorker) -> None:
        """Raises `ChildDied`."""
        try:
            _, writer = await self._connected()
            writer.write(framed(message))
            await writer.drain()
        except OSError as error:
            raise await self._died() from error

    async def hear(self) -> FromChild:
        """Raises `ChildDied`."""
        try:
            reader, _ = await self._connected()
            length = length_of(await reader.readexactly(HEAD_BYTES))
            return read_from_child(await reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError, msgspec.DecodeError) as error:
            raise await self._died() from error

    async def dismiss(self) -> None:
        """End a process that has nothing to do: it ends by itself when the socket is closed."""
        self._disconnect()
        if not await self._is_gone_within(GRACE_SECONDS):
            await self.end()

    async def end(self) -> None:
        """End it, and all that is in its group, whatever it does."""
        self._signal(signal.SIGTERM)
        if not await self._is_gone_within(GRACE_SECONDS):
            self._signal(signal.SIGKILL)
            if not await self._is_gone_within(KILL_SECONDS):
                logger.warning("process %d was killed and has not ended yet", self.id)
        self._disconnect()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._ours)
        return self._streams

    def _disconnect(self) -> None:
        if self._streams is None:
            self._ours.close()
        else:
            self._streams[1].transport.abort()

    async def _is_gone_within(self, seconds: float) -> bool:
        await asyncio.wait([self._code], timeout=seconds)
        return self._code.done()

    async def _died(self) -> ChildDied:
        if await self._is_gone_within(PARTING_SECONDS):
            self._disconnect()
            return ChildDied(exit_text(self._code.result()))
        await self.end()
        return ChildDied("closed its connection to the worker")

    def _signal(self, number: signal.Signals) -> None:
        """To the whole group, while its id cannot be that of another."""
        with self._lock, suppress(OSError):
            if not self._is_reaped:
                os.killpg(self.id, number)

    def _watch(self) -> None:
        """In a thread: wait for its death, end what it leaves behind, and tell the event loop."""
        if hasattr(os, "waitid"):
            # Not reaped yet, its group keeps its id.
            with suppress(OSError):
                os.waitid(os.P_PID, self.id, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        self._signal(signal.SIGKILL)
        with self._lock:
            code = self._process.wait()
            self._is_reaped = True
        self._let_go()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._gone, code)

    def _let_go(self) -> None:
        keep_in_children(self._life)
        os.close(self._life)

    def _gone(self, code: int) -> None:
        self._code.set_result(code)
        # What it has forked into a session of its own may keep the socket open.
        self._loop.call_later(PARTING_SECONDS, self._disconnect)


def exit_text(code: int) -> str:
    """`was killed by SIGSEGV`, `exited with status 3`."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")


def _command(channel: int, life: int) -> list[str]:
    setting = Setting(channel, life, sys.argv, main_place())
    # Python with the options of this process, as multiprocessing would start it.
    python: list[str | bytes] = import_module("multiprocessing.spawn").get_command_line()[:-3]
    path = msgspec.json.encode(import_path()).decode()
    told = msgspec.json.encode(setting).decode()
    return [*map(os.fsdecode, python), "-c", BOOT, path, told]
