"""A process that listens on a file and looks for others only when it is woken.

It says `ready` when it can be, and `heard` when another process has written; then it writes itself.
No test lives here.
"""

from __future__ import annotations

import asyncio
import sys

from flowfabric.store.hints import Hint
from flowfabric.store.sqlite import SqliteStore, wake, writer
from flowfabric.testing.build import order, submissions

NEVER_SECONDS = 1_000_000.0
ORDER = 99


async def settle(store: SqliteStore) -> None:
    """Until the writer has done what it does after a write: wake others, listen, look."""
    assert store._writer is not None
    for _ in range(2):
        await asyncio.wrap_future(store._writer.submit(lambda _: None, passing=True))


async def write(store: SqliteStore, number: int) -> None:
    now_ms = await store.now()
    await store.insert(submissions([order(number)], now_ms), now_ms)


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def main(path: str) -> None:
    writer.WATCH_SECONDS = writer.IDLE_SECONDS = NEVER_SECONDS
    wake.LISTING_SHARE = 0
    store = SqliteStore(path)
    await store.migrate()
    heard = asyncio.Event()

    def hear(_: Hint) -> None:
        heard.set()

    store.hints.subscribe(hear)
    await settle(store)
    heard.clear()
    say("ready")
    await heard.wait()
    say("heard")
    await write(store, ORDER)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
