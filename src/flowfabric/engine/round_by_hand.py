"""One round of everything that engines do by themselves, for a store that has none running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from flowfabric.engine.engine import Engine
from flowfabric.engine.janitor import Janitor, Shed
from flowfabric.engine.sweeping import Sweeper
from flowfabric.engine.telemetry import LINES_DONE
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.errors import FlowFabricError

ROUNDS_MAX = 10_000


class Repaired(msgspec.Struct, frozen=True):
    """What one duty did; `problem` if it could not be done to its end."""

    name: str
    processed: int
    errors: int
    problem: str = ""


Duty = Callable[[], Awaitable[list[Repaired]]]


async def run(engine: Engine) -> list[Repaired]:
    """Timers until none is due, flows until none has anything to do, then each sweeper once.

    A duty that fails is answered with why, and keeps none of the others from being done.
    """
    janitor = Janitor(Shed(engine.store, engine.clock, engine.dispatcher.counts))
    duties: list[tuple[str, Duty]] = [
        ("timers", partial(_timers, engine)),
        ("dispatch", partial(_dispatch, engine)),
        *((sweeper.name, partial(_sweep, sweeper)) for sweeper in janitor.sweepers),
    ]
    done = [await _guarded(name, duty) for name, duty in duties]
    return [each for some in done for each in some]


async def _guarded(name: str, duty: Duty) -> list[Repaired]:
    try:
        return await duty()
    except Exception as error:
        problem = str(error) if isinstance(error, FlowFabricError) else repr(error)
        return [Repaired(name, 0, 1, problem)]


async def _sweep(sweeper: Sweeper) -> list[Repaired]:
    swept = await sweeper.run_once()
    return [Repaired(sweeper.name, swept.processed, swept.errors)]


async def _dispatch(engine: Engine) -> list[Repaired]:
    counts = engine.dispatcher.counts
    before = counts.value(LINES_DONE)
    await engine.dispatcher.drain()
    return [Repaired("dispatch", counts.value(LINES_DONE) - before, 0)]


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
