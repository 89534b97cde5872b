"""What a task can know about its own attempt, and say while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import cached_property

from flowfabric.core.ids import public_id
from flowfabric.core.model import Lease
from flowfabric.errors import InvalidInput
from flowfabric.worker.attempt_log import AttemptLog, AttemptLogger
from flowfabric.worker.progress import Progress


class Context:
    """What a task gets whose first parameter is annotated with `Context`."""

    def __init__(self, lease: Lease, progress: Progress, kept: AttemptLog) -> None:
        self._lease = lease
        self._progress = progress
        self._kept = kept

    @cached_property
    def log(self) -> AttemptLogger:
        """A logger whose records carry the execution, the task and the attempt. Its lines from
        INFO upwards are also kept with the attempt: `await handle.attempts()`."""
        head = self._lease.head
        about = {"execution": head.id, "task": head.kind, "attempt": head.attempt}
        return AttemptLogger(about, self._kept)

    @property
    def id(self) -> str:
        """The execution's id: the same in every attempt, so a good idempotency key."""
        return public_id(self._lease.id)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 0."""
        return self._lease.head.attempt

    @property
    def retries(self) -> int:
        """How many retries there were so far."""
        return self._lease.head.retry_count

    @property
    def deadline_ms(self) -> int | None:
        """The deadline in milliseconds since 1970; None without one."""
        return self._lease.head.deadline_ms

    def progress(self, pct: int | None = None, message: str | None = None) -> Awaitable[None]:
        """Store the progress, for people who watch; an omitted value stays as it was.

        `await ctx.progress(50)` in an async task; in a plain function the call alone does it.
        `pct` is a whole number from 0 to 100. Raises `LeaseLost` when the lease was lost, and
        `ExecutionNotActive` when the execution has ended.
        """
        text = None if message is None else str(message)
        return self._progress(self._lease, _whole(pct), text)


def _whole(pct: object) -> int | None:
    if pct is None or (isinstance(pct, int) and not isinstance(pct, bool)):
        return pct
    raise InvalidInput(
        f"progress must be a whole number (got {pct!r})",
        field="pct",
        hint="use 0 to 100, for example round(share)",
    )


class CurrentContext:
    """The context of one attempt: made when it is first asked for, and found by the code that runs
    in the attempt."""

    __slots__ = ("_lease", "_made", "_make")

    def __init__(self, make: Callable[[Lease], Context], lease: Lease) -> None:
        self._make = make
        self._lease = lease
        self._made: Context | None = None
        _here.set(self)

    def __call__(self, _: Lease) -> Context:
        return self.get()

    def get(self) -> Context:
        if self._made is None:
            self._made = self._make(self._lease)
        return self._made


_here: ContextVar[CurrentContext | None] = ContextVar("flowfabric_context", default=None)


def context_here() -> Context | None:
    """The context of the attempt that this code runs in, if it does in one."""
    current = _here.get()
    return None if current is None else current.get()
