"""The context of a task in a child process: what it says goes to the worker, which keeps it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import cached_property

from flowfabric.core.failures import shortened
from flowfabric.core.model import Lease
from flowfabric.worker.attempt_log import TASK_LOGGER, AttemptLog, AttemptLogger, text_of
from flowfabric.worker.child.channel import Channel
from flowfabric.worker.child.messages import Line
from flowfabric.worker.context import Context
from flowfabric.worker.progress import Done, running_loop

TEXT_CHARS = 64 * 1024

_SENT = (str, int, float, bool, type(None))
_OWN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


class ChildContext(Context):
    """Like the context of any other task."""

    def __init__(self, lease: Lease, channel: Channel, level: int) -> None:
        super().__init__(lease, ChannelProgress(channel), Unkept(lease, lambda: 0, lambda: None))
        self._channel = channel
        self._level = level

    @cached_property
    def log(self) -> AttemptLogger:
        """Writes nothing in this process: the worker logs each line with the ids, and keeps it."""
        # Not the one of that name, which a module of the user's may have set up here.
        logger = logging.Logger(TASK_LOGGER, self._level)  # noqa: LOG001
        logger.addHandler(ChannelHandler(self._channel))
        return AttemptLogger({}, self._kept, logger)


class ChannelProgress:
    """Asks the worker, and waits for its answer: in a thread if this one runs an event loop."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __call__(self, lease: Lease, pct: int | None, message: str | None) -> Awaitable[None]:
        if running_loop() is not None:
            return asyncio.to_thread(self._channel.progress, pct, message)
        self._channel.progress(pct, message)
        return Done()


class Unkept(AttemptLog):
    """The lines are kept by the worker."""

    def add(self, level: str, message: str) -> None:
        return


class ChannelHandler(logging.Handler):
    """Sends what is logged to the worker, whose logging is set up."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        args: object = record.args
        given = args if isinstance(args, tuple) else (args,) if args else ()
        text = shortened(text_of(record.msg, given, record.exc_info), TEXT_CHARS)
        own = {key: _sent(value) for key, value in vars(record).items() if key not in _OWN}
        self._channel.line(Line(record.name, record.levelno, text, own))


def _sent(value: object) -> str | int | float | bool | None:
    return value if isinstance(value, _SENT) else repr(value)
