"""Logging of the command line. The library logs to `flowfabric` and never configures anything.

With `json`, every record is one object on one line: the time, the level, the logger, the message,
and whatever the caller passed as `extra`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

from flowfabric.printing import one_line

# What every record has by itself; all else came from the caller's `extra`.
_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}


def instant(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """One object per line; an `extra` never hides the fields that every line has."""

    def format(self, record: logging.LogRecord) -> str:
        line = extra_fields(record)
        line |= {
            "at": instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """`time level logger: message name=value`, for reading."""

    def format(self, record: logging.LogRecord) -> str:
        named = "".join(f" {name}={value}" for name, value in extra_fields(record).items())
        head = f"{instant(record)} {record.levelname.lower()} {record.name}: "
        text = one_line(head + record.getMessage() + named)
        return "\n".join([text, *self._trace(record)])

    def _trace(self, record: logging.LogRecord) -> list[str]:
        """Moved in: no line of an exception's message can be taken for another record."""
        if not record.exc_info:
            return []
        lines = self.formatException(record.exc_info).splitlines()
        return [f"  {one_line(line)}" for line in lines]


def configure(level: LogLevel, form: LogFormat) -> None:
    """Log to standard error, so that what a command prints can still be read by a program."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)
