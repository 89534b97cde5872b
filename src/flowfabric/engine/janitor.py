"""Janitor: every sweeper there is, each on its own loop."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

from flowfabric.engine.cancel_reconciler import CancelReconciler
from flowfabric.engine.dependency_reconciler import DependencyReconciler
from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.engine.flow_projector import FlowProjector
from flowfabric.engine.index_reconciler import IndexReconciler
from flowfabric.engine.intervals import Intervals, seconds_of
from flowfabric.engine.loop import Loop
from flowfabric.engine.retention_trimmer import RetentionTrimmer
from flowfabric.engine.sibling_reconciler import SiblingReconciler
from flowfabric.engine.sweeping import Chore, Done, Scope, Sweeper
from flowfabric.engine.telemetry import Telemetry
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store


class Shed(NamedTuple):
    """What a chore can be made of."""

    store: Store
    clock: FollowingClock
    counts: Telemetry
    scope: Scope | None = None


CHORES: dict[str, Callable[[Shed], Chore]] = {
    "dependency_reconciler": lambda shed: DependencyReconciler(
        shed.store,
        shed.clock,
        Dispatcher(shed.store, shed.clock, shed.counts),
        scope=shed.scope,
    ),
    "cancel_reconciler": lambda shed: CancelReconciler(shed.store, shed.clock, scope=shed.scope),
    "flow_projector": lambda shed: FlowProjector(shed.store, shed.clock, scope=shed.scope),
    "index_reconciler": lambda shed: IndexReconciler(shed.store, shed.clock, scope=shed.scope),
    "edge_cancel_reconciler": lambda shed: SiblingReconciler(
        shed.store, shed.clock, counts=shed.counts, scope=shed.scope
    ),
    "retention_trimmer": lambda shed: RetentionTrimmer(
        shed.store, shed.clock, counts=shed.counts, scope=shed.scope
    ),
}

NO_INTERVALS: Intervals = {}


class Janitor:
    """Every sweeper there is. `intervals` says which runs how often; 0 switches one off."""

    def __init__(self, shed: Shed, intervals: Intervals = NO_INTERVALS) -> None:
        owner = secrets.token_hex(8)
        seconds = seconds_of(intervals, CHORES)
        self.sweepers = [
            Sweeper(make(shed), shed.store, shed.clock, owner=owner, interval_seconds=seconds[name])
            for name, make in CHORES.items()
        ]

    @property
    def loops(self) -> list[Loop]:
        return [sweeper.loop for sweeper in self.sweepers]

    async def run_once(self) -> dict[str, Done]:
        """Each sweeper once, also those that are switched off; answers what each did."""
        return {sweeper.name: await sweeper.run_once() for sweeper in self.sweepers}
