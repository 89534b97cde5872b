"""The loggers of the package. Each shows ids of executions as people type them, in the message, in
its arguments and in `extra`, whatever a handler makes of them."""

from __future__ import annotations

import logging

from flowfabric.printing import value_with_public_ids

_SHOWN = (str, list, tuple, dict)


def logger_of(name: str) -> logging.Logger:
    """The logger of this name; asked for again, it is the same one."""
    logger = logging.getLogger(name)
    if _public_ids not in logger.filters:
        logger.addFilter(_public_ids)
    return logger


def _public_ids(record: logging.LogRecord) -> bool:
    for name, value in record.__dict__.items():
        if type(value) in _SHOWN:
            record.__dict__[name] = value_with_public_ids(value)
    return True
