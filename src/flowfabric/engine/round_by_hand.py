"""One round of everything that engines do by themselves, for a store that has none running."""

from __future__ import annotations

from collections import Counter

import msgspec

from flowfabric.engine.engine import Engine
from flowfabric.engine.janitor import Janitor, Shed
from flowfabric.engine.telemetry import LINES_DONE
from flowfabric.engine.timekeeper import Timekeeper

ROUNDS_MAX = 10_000


class Repaired(msgspec.Struct, frozen=True):
    """What one duty did."""

    name: str
    processed: int
    errors: int


async def run(engine: Engine) -> list[Repaired]:
    """Timers until none is due, flows until none has anything to do, then each sweeper once."""
    done = await _timers(engine)
    counts = engine.dispatcher.counts
    before = counts.value(LINES_DONE)
    await engine.dispatcher.drain()
    done.append(Repaired("dispatch", counts.value(LINES_DONE) - before, 0))
    swept = await Janitor(Shed(engine.store, engine.clock, counts)).run_once()
    return done + [Repaired(name, each.processed, each.errors) for name, each in swept.items()]


async def _timers(engine: Engine) -> list[Repaired]:
    keeper = Timekeeper(engine.store, engine.clock)
    served: Counter[str] = Counter()
    errors = 0
    for _ in range(ROUNDS_MAX):
        sweep = await keeper.run_once()
        served.update(sweep.duties)
        errors = errors + sweep.errors
        if not sweep.again:
            break
    failed = [Repaired("timers", 0, errors)] if errors else []
    return [Repaired(name, count, 0) for name, count in sorted(served.items())] + failed
