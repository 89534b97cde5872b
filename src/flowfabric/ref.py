"""Ref: a call of an async task that has not happened yet, and the same for a start.

Each is a coroutine like any other: `await`, `asyncio.gather` and `asyncio.create_task` take it. One
that is dropped without being awaited warns with what to write instead.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Pending(Coroutine[object, None, R_co]):
    """A coroutine with advice for the program that forgets to await it."""

    __slots__ = ("__weakref__", "_coroutine", "_is_taken", "_task")

    def __init__(self, coroutine: Coroutine[object, None, R_co], task: str) -> None:
        self._coroutine = coroutine
        self._task = task
        self._is_taken = False

    @abstractmethod
    def _advice(self) -> str: ...

    def __await__(self) -> Generator[object, None, R_co]:
        self._is_taken = True
        return self._coroutine.__await__()

    def send(self, value: None, /) -> object:
        """Resume the coroutine, as an event loop does."""
        self._is_taken = True
        return self._coroutine.send(value)

    def throw(
        self,
        typ: type[BaseException] | BaseException,
        val: object = None,
        tb: TracebackType | None = None,
        /,
    ) -> object:
        """Raise an exception inside the coroutine."""
        self._is_taken = True
        if isinstance(typ, BaseException):
            return self._coroutine.throw(typ.with_traceback(tb) if tb is not None else typ)
        return self._coroutine.throw(typ, val, tb)

    def close(self) -> None:
        """Drop the coroutine; it does not warn then."""
        self._is_taken = True
        self._coroutine.close()

    def __del__(self) -> None:
        if not self._is_taken:
            # Closed, the coroutine inside does not warn as well.
            self._coroutine.close()
            warnings.warn(self._advice(), RuntimeWarning, stacklevel=2)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Debuggers and asyncio ask a coroutine for its name and its frames.
            return getattr(self._coroutine, name)


class Ref(Pending[R_co]):
    """What calling an async task returns: await it, and the function runs here and now."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Ref of {self._task}(...)>"

    def _advice(self) -> str:
        return (
            f"{self._task}(...) was never awaited; write `await {self._task}(...)` to run it here, "
            f"or `await {self._task}.start(...)` to submit it"
        )


class Start(Pending[R_co]):
    """What `task.start(...)` returns: await it, and the task is submitted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{self._task}.start(...)>"

    def _advice(self) -> str:
        return (
            f"{self._task}.start(...) was never awaited, so nothing was submitted; "
            f"write `await {self._task}.start(...)`"
        )
