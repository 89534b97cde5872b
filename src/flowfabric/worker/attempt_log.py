"""`ctx.log`: an ordinary logger whose lines are also kept with the attempt.

Lines from INFO upwards are kept, whatever the program's own logging is set to. They wait here until
the worker stores them: soon, together with those of other attempts, or with the attempt's outcome.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING

from flowfabric.core.attempt_record import AttemptLine, lines_entry
from flowfabric.core.entries import Entry
from flowfabric.core.failures import shortened
from flowfabric.core.model import Lease
from flowfabric.loggers import logger_of
from flowfabric.worker.failure_capture import report_of

LINE_CHARS = 4_000
LINES_MAX = 1_000
CHARS_MAX = 256 * 1024
KEPT_FROM = logging.INFO
TASK_LOGGER = "flowfabric.task"

Raised = (
    bool
    | BaseException
    | tuple[type[BaseException], BaseException, TracebackType | None]
    | tuple[None, None, None]
    | None
)

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class AttemptLog:
    """The lines of one attempt. Tasks add them in the event loop or in threads of their own."""

    def __init__(
        self, lease: Lease, now_ms: Callable[[], int], on_line: Callable[[], None]
    ) -> None:
        self.lease = lease
        self._now_ms = now_ms
        self._on_line = on_line
        self._lock = threading.Lock()
        self._new: list[AttemptLine] = []
        self._unstored: list[Entry] = []
        self._made = 0
        self._lines = 0
        self._chars = 0

    def add(self, level: str, message: str) -> None:
        text = shortened(message, LINE_CHARS)
        with self._lock:
            if self._lines > LINES_MAX or self._chars > CHARS_MAX:
                return
            self._lines += 1
            self._chars += len(text)
            if self._lines > LINES_MAX or self._chars > CHARS_MAX:
                level, text = (
                    "WARNING",
                    "log limit of this attempt reached; further lines are not kept",
                )
            self._new.append(AttemptLine(self._now_ms(), level, text))
        self._on_line()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that is not known to be stored, ready to be."""
        with self._lock:
            if self._new:
                self._unstored.append(lines_entry(self.lease.head, self._made, self._new))
                self._made += 1
                self._new = []
            return tuple(self._unstored)

    def stored(self, entries: tuple[Entry, ...]) -> None:
        """These are safe. Stored again by the outcome they would only be the same."""
        with self._lock:
            keys = {entry.key for entry in entries}
            self._unstored = [entry for entry in self._unstored if entry.key not in keys]


class AttemptLogger(_Adapter):
    """Logs to `flowfabric.task` with the ids of the attempt, and keeps the line."""

    def __init__(
        self, about: dict[str, object], kept: AttemptLog, logger: logging.Logger | None = None
    ) -> None:
        super().__init__(logger or logger_of(TASK_LOGGER), about)
        self._kept = kept

    def process(
        self, msg: object, kwargs: MutableMapping[str, object]
    ) -> tuple[object, MutableMapping[str, object]]:
        """The task's own `extra` goes beside the ids, which it cannot hide."""
        own = kwargs.get("extra")
        kwargs["extra"] = {**(own if isinstance(own, dict) else {}), **(self.extra or {})}
        return msg, kwargs

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
        if level >= KEPT_FROM:
            self._kept.add(logging.getLevelName(level), text_of(msg, args, exc_info))
        # One more: the caller of this method is the one to name.
        super().log(
            level,
            msg,
            *args,
            exc_info=exc_info,
            stack_info=stack_info,
            stacklevel=stacklevel + 1,
            extra=extra,
            **kwargs,
        )


def text_of(msg: object, args: tuple[object, ...], raised: Raised) -> str:
    """As a handler would show it; a line with wrong arguments is kept as far as it goes."""
    record = logging.LogRecord(TASK_LOGGER, 0, "", 0, msg, args, None)
    try:
        text = record.getMessage()
    except Exception:
        text = f"{msg!r} {args!r}"
    error = _error_of(raised)
    return text if error is None else f"{text}\n{report_of(error).traceback}"


def _error_of(raised: Raised) -> BaseException | None:
    if isinstance(raised, BaseException):
        return raised
    if isinstance(raised, tuple):
        return raised[1]
    return sys.exception() if raised else None
