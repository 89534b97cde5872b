"""Engines of the simulation: the real loops of timekeeper, dispatcher and every sweeper."""

from __future__ import annotations

from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.engine.intervals import SECONDS
from flowfabric.engine.janitor import CHORES, Shed
from flowfabric.engine.known_flows import KnownFlows
from flowfabric.engine.sweeping import Sweeper
from flowfabric.engine.telemetry import Telemetry
from flowfabric.engine.timekeeper import Timekeeper
from flowfabric.store.clock import FollowingClock
from flowfabric.testing.simulation.process import Process

# Many sweeps in little time: what they repair or break shows sooner.
SECONDS_MAX = 1.5


def begin_engine(process: Process, known: KnownFlows | None = None) -> None:
    """All duties, each on its loop; `known` are flows that somebody in this process works on."""
    store, counts = process.store, Telemetry()
    clock = store.caller_clock = store.caller_clock or FollowingClock(process.clock)
    timekeeper = Timekeeper(store, clock, counts=counts)
    dispatcher = Dispatcher(store, clock, counts, known)
    shed = Shed(store, clock, counts)
    sweepers = [
        Sweeper(
            make(shed),
            store,
            clock,
            owner=process.name,
            interval_seconds=min(SECONDS[name], SECONDS_MAX),
        )
        for name, make in CHORES.items()
    ]
    process.hints.subscribe(timekeeper.hear)
    process.hints.subscribe(dispatcher.hear)
    for loop in (timekeeper.loop, dispatcher.loop, *(sweeper.loop for sweeper in sweepers)):
        process.begin(loop.run())
