"""The worker of one program of a shop: it knows the tasks that it is told, and no others.

No test lives here.
"""

from __future__ import annotations

import asyncio
import sys

import flowfabric as ff
from tests.chaos.pace import rest


def made(url: str, tasks: list[str]) -> ff.App:
    app = ff.App(url, lease_ttl="5s", concurrency=20)
    for name in tasks:
        _register(app, name)
    return app


def _register(app: ff.App, name: str) -> None:
    @app.task(name=name)
    async def work(n: int) -> str:
        await rest(0.005)
        return f"{name} {n}"


if __name__ == "__main__":
    asyncio.run(made(sys.argv[1], sys.argv[2:]).work())
