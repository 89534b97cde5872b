"""Several dispatchers on the same flows, in threads of their own, as other processes would be:
nobody is stuck and nothing is counted twice, also when every lease of a flow is lost at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from flowfabric.core.flow.graph import Link, Plan
from flowfabric.core.flow.model import GroupState
from flowfabric.core.flow.views import Pending, Turn
from flowfabric.core.ids import FlowId
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.engine.engine import Engine
from flowfabric.store import Store, open_store
from flowfabric.testing import FaultyStore, VirtualClock
from flowfabric.testing.conformance.steps import in_threads
from flowfabric.testing.flows import flow_id, member, plan
from tests.conftest import Size
from tests.flow.desk import FlowDesk
from tests.servers import store_url

DISPATCHERS = 8
# Far beyond what anything here takes: only a test that would hang for ever meets it.
PATIENCE_SECONDS = 60.0


class Forgetful(FaultyStore):
    """Takes flows without keeping them, and lets all have looked before the first one writes."""

    def __init__(self, inner: Store, all_looked: threading.Barrier) -> None:
        super().__init__(inner)
        self._all_looked: threading.Barrier | None = all_looked

    async def pending(self, turn: Turn) -> list[Pending]:
        return await self.inner.pending(msgspec.structs.replace(turn, until_ms=0, lines=7))

    async def commit_each(self, batch: Sequence[Changeset], now_ms: int) -> list[bool]:
        if self._all_looked is not None:
            waiting, self._all_looked = self._all_looked, None
            waiting.wait(PATIENCE_SECONDS)
        return await self.inner.commit_each(batch, now_ms)


def fan_in(flow: FlowId, width: int) -> Plan:
    names = list(range(1_000, 1_000 + width))
    edges = [Link(member(name, flow), member("x", flow)) for name in names]
    return plan([*names, "x"], edges, flow=flow)


@pytest.mark.lab
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_fan_in_is_counted_exactly_by_many_dispatchers(
    desk: FlowDesk, store_kind: str, tmp_path: Path, size: Size, is_lost: bool
) -> None:
    flows = [flow_id(number) for number in range(1, 11 if size == "long" else 4)]
    width = 120 if size == "long" else 40
    for flow in flows:
        await desk.draw(fan_in(flow, width))
    await desk.dispatch()
    while leases := await desk.claim(500):
        for lease in leases:
            await desk.engine.complete(lease, b"1")

    all_looked = threading.Barrier(DISPATCHERS)

    async def dispatch(number: int) -> None:
        store = await _own(desk.store, store_kind, tmp_path, desk.clock)
        lossy = Forgetful(store, all_looked) if is_lost else store
        engine = Engine(lossy, clock=desk.clock)
        for _ in range(3 * width):
            await engine.dispatcher.run_once()
            if not [line for flow in flows for line in await FlowDesk.lines(desk, flow)]:
                break
        if store is not desk.store:
            await store.close()

    in_threads(DISPATCHERS, dispatch)
    for flow in flows:
        group = await desk.group("x", flow)
        assert (group.succeeded, group.n, group.state) == (width, width, GroupState.SATISFIED)
        assert await desk.state("x", flow) is State.WAITING
        assert await desk.counters(flow) == {"completed": width}
        assert await desk.lines(flow) == []


async def _own(store: Store, kind: str, path: Path, clock: VirtualClock) -> Store:
    if kind == "memory":
        return store
    own = open_store(store_url(kind, path / "store.db"), clock=clock)
    await own.migrate()
    return own
