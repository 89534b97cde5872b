"""The context of a task in a child process: what it says goes to the worker, which keeps it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from functools import cached_property

from flowfabric.core.failures import shortened
from flowfabric.core.model import Lease
from flowfabric.worker.attempt_log import AttemptLog, AttemptLogger, Raised, text_of
from flowfabric.worker.child.channel import Channel
from flowfabric.worker.child.messages import Line
from flowfabric.worker.context import Context
from flowfabric.worker.progress import Done, running_loop

TASK_LOGGER = "flowfabric.task"
TEXT_CHARS = 64 * 1024
_SENT = (str, int, float, bool, type(None))
# Names that logging keeps for itself.
_TAKEN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


class ChildContext(Context):
    """Like the context of any other task."""

    def __init__(self, lease: Lease, channel: Channel, level: int) -> None:
        super().__init__(lease, ChannelProgress(channel), _unkept(lease))
        self._channel = channel
        self._level = level

    @cached_property
    def log(self) -> AttemptLogger:
        return ChannelLogger(self._channel, self._level, self._kept)


class ChannelProgress:
    """Asks the worker, and waits for its answer: in a thread if this one runs an event loop."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __call__(self, lease: Lease, pct: int | None, message: str | None) -> Awaitable[None]:
        if running_loop() is not None:
            return asyncio.to_thread(self._channel.progress, pct, message)
        self._channel.progress(pct, message)
        return Done()


class ChannelLogger(AttemptLogger):
    """The worker logs and keeps each line; the process itself writes none."""

    def __init__(self, channel: Channel, level: int, kept: AttemptLog) -> None:
        super().__init__({}, kept)
        self._channel = channel
        self._level = level

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name that logging has for it
        return level >= self._level

    def log(
        self,
        level: int,
        msg: object,
        *args: object,
        exc_info: Raised = None,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> None:
        if level >= self._level:
            text = shortened(text_of(msg, args, exc_info), TEXT_CHARS)
            self._channel.line(Line(TASK_LOGGER, level, text, _sent(extra or {})))


class ChannelHandler(logging.Handler):
    """Sends what this library logs in the child to the worker, whose logging is set up."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        text = shortened(text_of(record.msg, _args(record), record.exc_info), TEXT_CHARS)
        self._channel.line(Line(record.name, record.levelno, text))


def _args(record: logging.LogRecord) -> tuple[object, ...]:
    args: object = record.args
    return args if isinstance(args, tuple) else (args,) if args else ()


def _sent(extra: Mapping[str, object]) -> dict[str, str | int | float | bool | None]:
    for key in _TAKEN.intersection(extra):
        raise KeyError(f"Attempt to overwrite {key!r} in LogRecord")
    return {key: value if isinstance(value, _SENT) else repr(value) for key, value in extra.items()}


def _unkept(lease: Lease) -> AttemptLog:
    """Lines are kept by the worker."""
    return AttemptLog(lease, lambda: 0, lambda: None)
