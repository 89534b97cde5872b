"""How fast what has ended goes, and what stays behind of it: nothing should."""

from __future__ import annotations

import secrets
import time

import msgspec

from flowfabric.app import App
from flowfabric.cli.bench.preload import preload
from flowfabric.core.policy import Policy, RetentionPolicy, encode_policy
from flowfabric.engine.retention_trimmer import RetentionTrimmer
from flowfabric.store.upkeep import LASTING, Upkeep

MEMBERS = 10
# Of so many executions one flow is made as well.
EACH = 100


class Purging(msgspec.Struct, frozen=True, kw_only=True):
    """Executions and flows that went per second, and records that are left of them."""

    purged_per_s: float
    left_behind: int


async def run(url: str, n: int) -> Purging:
    """Half a cycle first: executions that have ended, and flows whose members have."""
    keep = RetentionPolicy(0, 0, 0, 0, 0)
    app = App(url, namespace=f"bench-{secrets.token_hex(4)}", retention="0s")
    await app.connect()
    before = await _rows(app)
    await preload(app, n, policy=encode_policy(Policy(retention_policy=keep)))
    await _flows(app, n // EACH)
    trimmer = RetentionTrimmer(app.engine.store, app.engine.clock)
    began = time.perf_counter()
    went = 0
    while (swept := await trimmer.run_once()).processed:
        went += swept.processed
    seconds = time.perf_counter() - began
    left = await _rows(app) - before
    await app.close()
    return Purging(purged_per_s=went / seconds, left_behind=left)


async def _flows(app: App, count: int) -> None:
    @app.task
    async def never() -> None: ...

    for _ in range(count):
        graph = app.graph("purged")
        node = graph.add(never)
        for _ in range(MEMBERS - 1):
            node = graph.add(never, after=[node])
        await (await graph.submit()).cancel()
    await app.engine.dispatcher.drain()


async def _rows(app: App) -> int:
    store = app.engine.store
    if not isinstance(store, Upkeep):
        raise TypeError(f"the records of {type(store).__name__} cannot be counted")
    return sum(part.rows for part in await store.sizes() if part.name not in LASTING)
