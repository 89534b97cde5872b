"""A process of the lab: `python program.py URL worker|engine FILE`.

A worker writes down each piece of work that it has done, on disk, before it says so to the store.
An engine serves no tasks: it only looks after timers, flows and what is left lying.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.chaos.clock import follow_the_wall

if __name__ == "__main__":
    # Before anything else takes the clock as it is.
    follow_the_wall()

import flowfabric as ff
from flowfabric.core.policy import Fixed, RetryPolicy
from tests.chaos.pace import rest

LEASE = "5s"


def make(url: str, file: str = "") -> tuple[ff.App, ff.Task[..., str]]:
    """The app with its one task, the same in the lab and in the processes it starts."""
    app = ff.App(url, lease_ttl=LEASE, drain="2s", concurrency=10)

    @app.task(retries=RetryPolicy(3, Fixed(200)))
    async def work(context: ff.Context, seconds: float, bad: int) -> str:
        """Takes a while, and fails `bad` times before it does anything."""
        await rest(seconds)
        if context.retries < bad:
            raise RuntimeError("not yet")
        write_down(file, f"{context.id} {context.attempt}\n")
        return f"{context.id} {context.attempt}"

    return app, work


def write_down(file: str, line: str) -> None:
    place = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(place, line.encode())
        os.fsync(place)
    finally:
        os.close(place)


def read_back(file: Path) -> set[tuple[str, int]]:
    """Which attempts have written that they were done."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {(id, int(attempt)) for id, attempt in (line.rsplit(" ", 1) for line in lines)}


def serve(url: str, role: str, file: str) -> None:
    app = make(url, file)[0] if role == "worker" else ff.App(url, drain="2s")
    asyncio.run(app.work())


if __name__ == "__main__":
    serve(*sys.argv[1:])
