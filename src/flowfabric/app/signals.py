"""Signals that end a worker process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_set(stopped: asyncio.Event) -> Iterator[None]:
    """Set the event on the first SIGTERM or SIGINT; a second one ends the process at once.

    Outside the main thread there are no signals. A forked child inherits what handles them here,
    and gives them back to what handled them before.
    """
    loop, process = asyncio.get_running_loop(), os.getpid()
    is_main = threading.current_thread() is threading.main_thread()
    caught = (signal.SIGTERM, signal.SIGINT) if is_main else ()
    before = {number: signal.getsignal(number) for number in caught}

    def heed(number: int, _: object) -> None:
        if os.getpid() == process:
            loop.call_soon_threadsafe(stopped.set)
        else:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)

    for number in caught:
        signal.signal(number, heed)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
