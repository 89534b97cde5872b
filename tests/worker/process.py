"""A program of its own for tests with real processes: `python process.py URL DRAIN`.

It works on the store until it is told to stop, and says on standard output what it does.
"""

from __future__ import annotations

import asyncio
import os
import sys

import flowfabric as ff


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def make(url: str, drain: str = "30s", lease_ttl: str = "30s") -> tuple[ff.App, ff.Task[str]]:
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

    return app, work


if __name__ == "__main__":
    asyncio.run(make(*sys.argv[1:])[0].work())
    say("bye")
