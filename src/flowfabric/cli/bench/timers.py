"""How late timers are: deadlines spread out in time on a store where nothing else happens."""

from __future__ import annotations

import asyncio
import random
import secrets
from datetime import UTC, datetime

import msgspec

from flowfabric.app import App
from flowfabric.cli.bench.cycle import Percentiles
from flowfabric.cli.bench.flows import percentiles
from flowfabric.core.ids import public_id
from flowfabric.core.states import PublicState
from flowfabric.engine.hints import Hint
from flowfabric.errors import Corrupt

FIRST_MS = 500
GAP_MS = (10, 40)
PATIENCE_SECONDS = 60.0
NOBODY = "unserved"


class Timers(msgspec.Struct, frozen=True):
    lateness_ms: Percentiles


class Watch:
    """When the end of each execution could be seen, by the store's time."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.due: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.all_seen = asyncio.Event()

    def hear(self, hint: Hint) -> None:
        """The store has answered: what ended is there for everybody."""
        now_ms = self._app.engine.clock.now_ms()
        for id in hint.ended:
            self.seen.setdefault(public_id(id), now_ms)
        if self.due and self.due.keys() <= self.seen.keys():
            self.all_seen.set()


async def run(url: str, n: int) -> Timers:
    """Deadlines of executions that nobody runs, each at a time of its own."""
    app = App(url, namespace=f"bench-{secrets.token_hex(4)}")

    @app.task(lane=NOBODY)
    async def never() -> None: ...

    watch = Watch(app)
    async with app.running(lanes=["bench"]):
        hints = app.engine.hints
        hints.subscribe(watch.hear)
        try:
            at_ms = app.engine.clock.now_ms() + FIRST_MS
            due = _spread(at_ms, n)
            handles = await app.start_many(
                never.options(deadline=_moment(each)).bind() for each in due
            )
            watch.due = {handle.id: each for handle, each in zip(handles, due, strict=True)}
            async with asyncio.timeout(PATIENCE_SECONDS + (GAP_MS[1] * n) / 1000):
                await watch.all_seen.wait()
            states = {(await handle.status()).public_state for handle in handles}
        finally:
            hints.unsubscribe(watch.hear)
    if states != {PublicState.EXPIRED}:
        raise Corrupt(f"deadlines have passed, but executions are {', '.join(sorted(states))}")
    return Timers(percentiles([watch.seen[id] - due for id, due in watch.due.items()]))


def _spread(at_ms: int, n: int) -> list[int]:
    gaps = (random.randint(*GAP_MS) for _ in range(n))  # noqa: S311 - no secret
    return [at_ms := at_ms + gap for gap in gaps]


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
