"""Exit codes: one table over the error tree, and how an error is said in one sentence."""

from __future__ import annotations

from flowfabric.errors import (
    Conflict,
    Corrupt,
    ExecutionEnded,
    FlowFabricError,
    Invalid,
    LeaseLost,
    NotFound,
    Refused,
    ResultTimeout,
    StoreUnavailable,
    TaskError,
)
from flowfabric.loggers import logger_of

logger = logger_of("flowfabric.cli")

DONE = 0
NOT_AS_EXPECTED = 1
INTERRUPTED = 130

# The nearest class counts. Mistakes share 2 with what the command line itself refuses.
EXIT_CODES: dict[type[FlowFabricError], int] = {
    FlowFabricError: NOT_AS_EXPECTED,
    TaskError: NOT_AS_EXPECTED,
    Invalid: 2,
    NotFound: 3,
    Refused: 4,
    Conflict: 5,
    StoreUnavailable: 6,
    LeaseLost: 7,
    ExecutionEnded: 8,
    ResultTimeout: 9,
    Corrupt: 10,
}

_MEANINGS: dict[int, str] = {
    DONE: "done",
    NOT_AS_EXPECTED: "the command ran and found something wrong",
    2: "a mistake in the command, a value or a URL, or a missing extra",
    3: "the record was not found",
    4: "not possible now",
    5: "another process changed the record at the same time; try again",
    6: "the store did not answer; try again later",
    7: "the lease was lost",
    8: "the execution failed, was cancelled or ran out of time",
    9: "the result was not there in time",
    10: "a stored record cannot be read",
    INTERRUPTED: "interrupted",
}

EXITS_TEXT = "\b\nExit codes:\n" + "\n".join(
    f"  {code:>3}  {meaning}" for code, meaning in _MEANINGS.items()
)


def exit_code(kind: type[FlowFabricError]) -> int:
    return next(EXIT_CODES[base] for base in kind.__mro__ if base in EXIT_CODES)


def known_error(error: BaseException) -> FlowFabricError | None:
    """The error of the tree that this is, or that everything in this group is led by."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, FlowFabricError):
        return None
    logger.debug("%s", type(error).__name__, exc_info=error, extra={"error": error.code})
    return error


def sentence(error: FlowFabricError) -> str:
    """What was wrong and what to do; errors are on one line whatever their message holds."""
    return str(error)
