"""One attempt: decode, call, encode, and say what came of it.

User code can do anything; whatever it does becomes exactly one outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor
from functools import partial
from typing import cast

import msgspec

from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.engine.outcomes import Completed, Failed, Outcome
from flowfabric.errors import Invalid, TaskError, UnknownTask
from flowfabric.worker.context import Context, Progress
from flowfabric.worker.handler import Handler

HANDLER_ERROR = "handler_error"
HANDLER_PANIC = "handler_panic"
BAD_ARGUMENTS = "invalid_arguments"
BAD_RESULT = "invalid_result"

CAUSES_LIMIT = 10


async def run_attempt(
    lease: Lease, handler: Handler, progress: Progress, threads: Executor
) -> Outcome:
    """Call the user's function. Cancellation passes through: the worker knows why."""
    try:
        arguments = handler.arguments.decode(lease.payload)
    except msgspec.DecodeError as error:
        return Failed(lease, Failure(f"arguments: {error}", BAD_ARGUMENTS, fatal=True))
    leading = (Context(lease, progress),) if handler.takes_context else ()
    try:
        if handler.is_async:
            result = await cast(Awaitable[object], handler.function(*leading, **arguments))
        else:
            call = partial(handler.function, *leading, **arguments)
            result = await asyncio.get_running_loop().run_in_executor(threads, call)
    except asyncio.CancelledError:
        raise
    except TaskError as error:
        return Failed(lease, Failure(causes(error), error.category, fatal=error.fatal))
    except Exception as error:
        return Failed(lease, Failure(causes(error), HANDLER_ERROR))
    except BaseException as error:
        return Failed(lease, Failure(causes(error), HANDLER_PANIC))
    try:
        return Completed(lease, handler.result.encode(result))
    except Invalid as error:
        return Failed(lease, Failure(str(error), BAD_RESULT, fatal=True))


def unknown_task(lease: Lease) -> Outcome:
    error = UnknownTask(f"no task {lease.head.kind!r} is registered here", field="task")
    return Failed(lease, Failure(str(error), error.code))


def causes(error: BaseException) -> str:
    """The whole chain, outermost first: `outer: root`."""
    told: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(told) < CAUSES_LIMIT:
        told.append(str(seen) or type(seen).__name__)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return ": ".join(told)
