"""Threads for plain functions that do not keep a process from ending.

The interpreter waits at its exit for the threads of `ThreadPoolExecutor`, for ever if a function
never returns. These are daemon threads: what still runs when the process ends, ends with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Call = Callable[[], None]


class DaemonThreads(Executor):
    """Up to `limit` threads, made when they are needed and kept for the next call."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._made = 0
        self._is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                answer = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(answer)

        with self._lock:
            if self._is_closed:
                raise RuntimeError("the threads of the worker are shut down")
            self._calls.put(call)
            self._grow()
        return future

    def _grow(self) -> None:
        if self._idle.acquire(blocking=False) or self._made == self._limit:
            return
        self._made += 1
        name = f"{self._name}_{self._made}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            # What the call was about must not live until the next one comes.
            del call
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and end threads when they are idle; nothing waits for them."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in range(self._made):
                    self._calls.put(None)
