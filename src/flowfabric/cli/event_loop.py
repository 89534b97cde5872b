"""Which event loop the commands run in: uvloop where it is installed, else Python's own.

`pip install 'flowfabric[fast]'` installs it. Benches stay on Python's own, so that figures of two
machines can be compared whatever else is installed there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import TypeVar

T = TypeVar("T")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def fastest_loop() -> LoopFactory:
    """What makes the fastest event loop that is installed."""
    try:
        fast = import_module("uvloop")
    except ModuleNotFoundError as error:
        if error.name != "uvloop":
            raise
        return asyncio.new_event_loop
    made: LoopFactory = fast.new_event_loop
    return made


def run(work: Coroutine[None, None, T]) -> T:
    """`asyncio.run` in the fastest event loop."""
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(work)
