"""One attempt: decode, call, encode, and say what came of it.

User code can do anything; whatever it does becomes exactly one outcome that every store can keep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import cast

import msgspec

from flowfabric.core.flow.inputs import Passed
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Lease
from flowfabric.core.transition import clip
from flowfabric.engine.outcomes import Completed, Failed, Outcome
from flowfabric.engine.slots import context_without_slot
from flowfabric.errors import Invalid, TaskError
from flowfabric.worker.context import Context
from flowfabric.worker.failure_capture import report_of
from flowfabric.worker.handler import Handler
from flowfabric.worker.inputs import filled

HANDLER_ERROR = "handler_error"
HANDLER_PANIC = "handler_panic"
BAD_RESULT = "invalid_result"

CAUSES_LIMIT = 10


class UnreadArguments(Exception):
    """What was submitted does not fit the task as this program knows it."""


async def run_attempt(
    lease: Lease,
    handler: Handler,
    context: Callable[[Lease], Context],
    threads: Executor,
    *,
    passed: Sequence[Passed] = (),
) -> Outcome:
    """Call the user's function. Cancelled by the worker it raises that: the worker knows why.

    Arguments that cannot be read are `UnreadArguments`, and nothing of the function has run.
    """
    arguments = read_arguments(lease, handler, passed)
    leading = (context(lease),) if handler.takes_context else ()
    try:
        if handler.is_async:
            result = await cast(Awaitable[object], handler.function(*leading, **arguments))
        else:
            call = partial(handler.function, *leading, **arguments)
            result = await _in_thread(call, threads)
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        # Cancelled by nobody but itself: an error like any other.
        return failed(lease, error, HANDLER_ERROR)
    except BaseException as error:
        return ended_by(lease, error)
    return finished_with(lease, handler, result)


def read_arguments(
    lease: Lease, handler: Handler, passed: Sequence[Passed] = ()
) -> dict[str, object]:
    """Raises `UnreadArguments`."""
    try:
        return handler.arguments.decode(filled(lease.payload, passed))
    except Exception as error:
        # The types are the user's, so reading them runs user code too.
        raise UnreadArguments(f"arguments: {told(error)}") from error


def ended_by(lease: Lease, error: BaseException) -> Failed:
    """The outcome of an attempt whose function raised this."""
    if isinstance(error, TaskError):
        return failed(lease, error, storable(str(error.category)), fatal=bool(error.fatal))
    is_panic = not isinstance(error, Exception | asyncio.CancelledError)
    return failed(lease, error, HANDLER_PANIC if is_panic else HANDLER_ERROR)


def finished_with(lease: Lease, handler: Handler, result: object) -> Completed | Failed:
    """The outcome of an attempt whose function returned this."""
    try:
        return Completed(lease, handler.result.encode(result))
    except Invalid as error:
        return Failed(lease, Failure(str(error), BAD_RESULT, fatal=True), error)
    except Exception as error:
        # What is returned may run user code when it is read.
        return failed(lease, error, BAD_RESULT, fatal=True, about="result: ")


def failed(
    lease: Lease, error: BaseException, category: str, *, fatal: bool = False, about: str = ""
) -> Failed:
    """The outcome of an attempt that this exception ended, with all that is kept of it."""
    reason = f"{about}{causes(error)}"
    return Failed(lease, Failure(reason, category, fatal=fatal, report=report_of(error)), error)


async def _in_thread(call: Callable[[], object], threads: Executor) -> object:
    """The result, or the error, of a plain function. What returns a coroutine is awaited here."""
    context = context_without_slot()
    answer = await asyncio.get_running_loop().run_in_executor(threads, context.run, _caught, call)
    if isinstance(answer, _Raised):
        raise answer.error
    return await answer if asyncio.iscoroutine(answer) else answer


class _Raised(msgspec.Struct, frozen=True):
    error: BaseException


def _caught(call: Callable[[], object]) -> object:
    """A future refuses some errors and then never ends; carried as a value, each arrives."""
    try:
        return call()
    except BaseException as error:
        return _Raised(error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def causes(error: BaseException) -> str:
    """The whole chain, outermost first: `outer: root`."""
    chain: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(chain) < CAUSES_LIMIT:
        chain.append(told(seen))
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return ": ".join(chain)


def told(error: BaseException) -> str:
    """Its text, or its name if it has none or cannot say it."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return storable(text) or type(error).__name__


def storable(text: str) -> str:
    """Text that every store can keep as it is: no lone surrogates, no NUL, not too long."""
    return clip(text).encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
