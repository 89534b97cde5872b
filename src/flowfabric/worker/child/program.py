"""The program of a child process: it makes attempts for its worker, one after the other.

The function runs in the main thread, as in a program of its own. The process ends when the worker
does, whatever the function does meanwhile.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec

from flowfabric.engine.outcomes import Completed, Failed
from flowfabric.worker.child.channel import Channel
from flowfabric.worker.child.importing import Origin, find
from flowfabric.worker.child.messages import Ending, Job, Raised, Returned, Unread
from flowfabric.worker.child.setting import Setting
from flowfabric.worker.child.speaking import ChannelHandler, ChildContext
from flowfabric.worker.handler import Handler
from flowfabric.worker.restoring import enter, leave
from flowfabric.worker.runner import (
    HANDLER_ERROR,
    UnreadArguments,
    ended_by,
    failed,
    finished_with,
    read_arguments,
)


def main(told: str) -> None:
    setting = msgspec.json.decode(told, type=Setting)
    for end in (setting.channel, setting.life):
        os.set_inheritable(end, False)
    end_with_the_worker(setting.life)
    sys.argv = setting.argv
    channel = Channel(socket.socket(fileno=setting.channel))
    logging.getLogger("flowfabric").addHandler(ChannelHandler(channel))
    while (job := channel.next_job()) is not None:
        ending = attempt(job, channel, setting.main)
        # What it printed is seen before its end is.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        channel.end(ending)


def end_with_the_worker(life: int) -> None:
    """The worker holds the other end of this pipe and never writes: it is closed by its death.

    Where the kernel can send a signal then, it ends the whole group even while code holds the
    interpreter; elsewhere a thread does it.
    """
    threading.Thread(target=_end_at_close, args=(life,), daemon=True).start()
    if sys.platform == "linux":
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(life, fcntl.F_GETFL)
        fcntl.fcntl(life, fcntl.F_SETFL, flags | os.O_ASYNC)


def _end_at_close(life: int) -> None:
    os.read(life, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def attempt(job: Job, channel: Channel, main: dict[str, str]) -> Ending:
    try:
        handler = _handler(job, main)
    except BaseException as error:
        # Importing runs code of the user's, which can do anything.
        about = f"{job.module} cannot be imported in a process of its own: "
        return _ending(failed(job.lease, error, HANDLER_ERROR, about=about))
    try:
        arguments = read_arguments(job.lease, handler)
    except UnreadArguments as error:
        return Unread(str(error))
    leading = (ChildContext(job.lease, channel, job.level),) if handler.takes_context else ()
    entered = enter(handler.carrier, job.saved, job.lease)
    try:
        found = _called(lambda: handler.function(*leading, **arguments))
    finally:
        leave(entered, job.lease)
    if isinstance(found, _Error):
        return _ending(ended_by(job.lease, found.error))
    return _ending(finished_with(job.lease, handler, found))


def _handler(job: Job, main: dict[str, str]) -> Handler:
    found: object = getattr(find(Origin(job.module, job.qualname), main), "handler", None)
    if not isinstance(found, Handler) or found.name != job.task:
        raise ImportError(f"{job.module}:{job.qualname} is not the task {job.task!r}")
    return found


class _Error(msgspec.Struct, frozen=True):
    error: BaseException


def _called(call: Callable[[], object]) -> object:
    """The result, also of a coroutine; an error as a value, with no frame of the event loop."""
    try:
        found = call()
        return asyncio.run(_awaited(found)) if asyncio.iscoroutine(found) else found
    except BaseException as error:
        return _Error(error)


async def _awaited(coroutine: object) -> object:
    try:
        return await cast(Awaitable[object], coroutine)
    except BaseException as error:
        return _Error(error)


def _ending(outcome: Completed | Failed) -> Ending:
    if isinstance(outcome, Completed):
        return Returned(outcome.result)
    failure = outcome.failure
    return Raised(failure.reason, failure.category, failure.fatal, failure.report)
