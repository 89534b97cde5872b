"""A program of its own whose tasks never end: `python deaf.py URL DRAIN LEASE`.

It works on the store until it is told to stop, and says on standard output what it does.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import NamedTuple

import flowfabric as ff
from tests.worker.process import say


class Program(NamedTuple):
    """The app and its tasks, the same in the test and in the processes it starts."""

    app: ff.App
    swallow: ff.Task[..., None]
    block: ff.Task[..., None]


def make(url: str, drain: str = "30s", lease_ttl: str = "30s") -> Program:
    app = ff.App(url, drain=drain, lease_ttl=lease_ttl)

    @app.task
    async def swallow() -> None:
        say("began swallow")
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                say("swallowed")

    @app.task
    def block() -> None:
        say("began block")
        threading.Event().wait()

    return Program(app, swallow, block)


if __name__ == "__main__":
    told = logging.StreamHandler(sys.stdout)
    told.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger("flowfabric.worker").addHandler(told)
    asyncio.run(make(*sys.argv[1:]).app.work())
    say("bye")
