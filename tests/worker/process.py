"""A program of its own for tests with real processes: `python process.py URL DRAIN LEASE`.

It works on the store until it is told to stop, and says on standard output what it does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import NamedTuple

import flowfabric as ff


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


class Program(NamedTuple):
    """The app and its tasks, the same in the test and in the processes it starts."""

    app: ff.App
    work: ff.Task[..., str]
    forever: ff.Task[..., None]


def make(url: str, drain: str = "30s", lease_ttl: str = "30s") -> Program:
    app = ff.App(url, drain=drain, lease_ttl=lease_ttl)

    @app.task
    async def work(name: str, waits: bool = False) -> str:
        say(f"began {name}")
        if waits:
            # Until the parent writes a line: nothing here depends on time.
            await asyncio.to_thread(sys.stdin.readline)
        return f"{name} done by {os.getpid()}"

    @app.task
    async def forever(name: str) -> None:
        say(f"began {name}")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            say(f"stopped {name}")
            raise

    return Program(app, work, forever)


class StoppingTold(logging.Handler):
    """Says when the worker begins to stop: a signal that comes from then on ends the process."""

    def emit(self, record: logging.LogRecord) -> None:
        if "is stopping" in record.getMessage():
            say("stopping")


if __name__ == "__main__":
    logging.getLogger("flowfabric.worker").addHandler(StoppingTold())
    logging.getLogger("flowfabric.worker").setLevel(logging.INFO)
    asyncio.run(make(*sys.argv[1:]).app.work())
    say("bye")
