"""Forks: what a process must not share with the child that it forks.

Threads, held locks, event loops and what belongs to them do not work in a child; names and random
numbers drawn in advance would be used twice. An object that holds such things makes them in one
method and hands it to `begin_here_and_in_children`. What the parent had made is then left behind in
the child, untouched: to close a connection there, or to let a coroutine clean up, would speak on
the parent's sockets and silence its event loop.

What must be whole when the process forks is done while holding a lock that was given to `uncut`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import MethodType, ModuleType
from typing import Protocol, TypeVar
from weakref import WeakMethod, WeakSet, ref


class Lock(Protocol):
    def acquire(self) -> bool: ...
    def release(self) -> None: ...


L = TypeVar("L", bound=Lock)

_ends: set[int] = set()

_beginnings: dict[ref[Callable[[], None]], None] = {}
_locks: WeakSet[Lock] = WeakSet()


def begin_here_and_in_children(begin: Callable[[], None]) -> None:
    """Call the method of an object now, and first of all in every child while the object lives."""
    begin()
    _beginnings[WeakMethod(begin, _forget)] = None


def uncut(lock: L) -> L:
    """The lock; a fork waits until it is free. A thread must not hold two such locks."""
    _locks.add(lock)
    return lock


def close_in_children(end: int) -> None:
    """Close this file descriptor in every child: who reads the other end waits for the death of
    this process, and not for that of its children."""
    _ends.add(end)


def keep_in_children(end: int) -> None:
    """It is closed here, and may come to stand for another file."""
    _ends.discard(end)


def _forget(method: ref[Callable[[], None]]) -> None:
    _beginnings.pop(method, None)


class _Fork:
    """What happens before a fork and after it, in both processes."""

    def __init__(self) -> None:
        # One fork at a time: two that take the same locks in another order wait for each other.
        self._alone = threading.Lock()
        self._held: list[Lock] = []
        self._ctypes: ModuleType | None = None

    def before(self) -> None:
        self._alone.acquire()
        # Here and not in the child, where a lock of the import system may be held for ever.
        self._ctypes = self._ctypes or import_module("ctypes")
        for lock in list(_locks):
            lock.acquire()
            self._held.append(lock)

    def after(self) -> None:
        while self._held:
            self._held.pop().release()
        self._alone.release()

    def in_child(self) -> None:
        self.after()
        while _ends:
            with suppress(OSError):
                os.close(_ends.pop())
        for method in list(_beginnings):
            begin = method()
            if isinstance(begin, MethodType):
                self._leave_behind(dict(vars(begin.__self__)))
                begin()

    def _leave_behind(self, things: dict[str, object]) -> None:
        """Never let go of them, not even when the process ends."""
        if self._ctypes is not None:
            self._ctypes.pythonapi.Py_IncRef(self._ctypes.py_object(things))


if hasattr(os, "register_at_fork"):
    _fork = _Fork()
    os.register_at_fork(
        before=_fork.before, after_in_parent=_fork.after, after_in_child=_fork.in_child
    )
