"""One of many must not keep the others back, whatever is wrong with it.

A call about many that fails is made again about halves of them, until it is known which one it
fails for. A store in trouble is the trouble of all of them, and goes through.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from flowfabric.errors import FlowFabricError, StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")

STORE_TROUBLE = (StoreUnavailable, OSError)


async def isolated(
    items: Sequence[T], call: Callable[[Sequence[T]], Awaitable[Sequence[R]]]
) -> tuple[list[R], list[tuple[T, Exception]]]:
    """What the call answers about those that it does not fail for, and the others with why."""
    if not items:
        return [], []
    try:
        return list(await call(items)), []
    except STORE_TROUBLE:
        raise
    except Exception as error:
        if len(items) == 1:
            return [], [(items[0], error)]
    middle = len(items) // 2
    first, lost = await isolated(items[:middle], call)
    second, also_lost = await isolated(items[middle:], call)
    return first + second, lost + also_lost


def code_of(error: Exception) -> str:
    """How an error is called in a log: its code, or its type if it is nobody's we know."""
    return error.code if isinstance(error, FlowFabricError) else type(error).__name__


def log_failed(
    logger: logging.Logger, message: str, error: Exception, extra: Mapping[str, object]
) -> None:
    """Say what one failed with; how it came about, if nobody expected that."""
    logger.warning(
        "%s: %s",
        message,
        error,
        extra={**extra, "error": code_of(error)},
        exc_info=None if isinstance(error, FlowFabricError) else error,
    )
