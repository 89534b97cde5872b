"""Random graphs that are cancelled at a random moment, while members run, stumble and are lost:
nothing starts any more, everything ends, and the cancel says exactly whom it ended."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from flowfabric.core.flow.model import CancelPolicy, LineKind
from flowfabric.core.ids import FlowId
from flowfabric.core.states import TERMINAL
from flowfabric.engine.flow_cancelling import CancelStatus, FlowCancel
from flowfabric.errors import FlowAlreadyTerminal
from flowfabric.store import Store
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flows import flow_id
from flowfabric.testing.invariants import broken_promises
from tests.conftest import SIZE
from tests.flow.test_random_graphs import PROGRESS_EVERY, Play, World, world_of

WAIT_MS = 20_000
COMES_BACK = ("delay", "release", "revoke", "goes on")


class CancelledPlay(Play):
    """Does what its world says; at a place of its own it cancels the flow."""

    def __init__(
        self, store: Store, clock: VirtualClock, world: World, flow: FlowId, *, seed: int
    ) -> None:
        super().__init__(store, clock, world, flow, is_known=seed % 2 == 1)
        self._chance = Random(seed)
        self._policy = self._chance.choice(
            [CancelPolicy.CANCEL_PENDING, CancelPolicy.CANCEL_PENDING, CancelPolicy.CANCEL_ALL]
        )

    async def run(self) -> None:
        await self.begin()
        place = self._chance.randrange(len(self.world.acts) + 1)
        for act, pick in self.world.acts[:place]:
            await getattr(self, act)(pick)
        first = await self.cancel_flow()
        await self.come_back()
        for act, pick in self.world.acts[place:]:
            await self.refused(act, pick)
            await self.is_sound()
        while await self.moves():
            pass
        await self.is_said_exactly(first)

    async def cancel_flow(self) -> FlowCancel:
        """In the end it has reached every member; sometimes members come back before."""
        cancel = self.desk.engine.flows.cancel
        if self._chance.random() < 0.3:
            await cancel(self.flow, self._policy)
            await self.come_back()
        done = await cancel(self.flow, self._policy, wait_ms=WAIT_MS)
        assert done.status is CancelStatus.CANCELLED
        kinds = {line.kind for line in await self.desk.lines(self.flow)}
        assert LineKind.CANCEL_FLOW not in kinds
        await self.is_sound()
        return done

    async def come_back(self) -> None:
        """Some of those that run come back unfinished."""
        for lease in self.held[: self._chance.randrange(len(self.held) + 1)]:
            row = await self.desk.head(lease.id)
            if row.epoch != lease.epoch or row.state in TERMINAL:
                continue
            engine = self.desk.engine
            match self._chance.choice(COMES_BACK):
                case "delay":
                    await engine.delay(lease, self.desk.clock.now_ms() + WAIT_MS)
                case "release":
                    await engine.release(lease)
                case "revoke":
                    await engine.revoke(lease.id)
                case _:
                    continue
            self.held.remove(lease)

    async def refused(self, act: str, pick: int) -> None:
        if act == "replay":
            if (await self.desk.head(self.id(pick))).state in TERMINAL:
                with pytest.raises(FlowAlreadyTerminal):
                    await self.desk.engine.replay(self.id(pick))
            return
        await getattr(self, act)(pick)

    async def claim(self, pick: int) -> None:
        held = len(self.held)
        await super().claim(pick)
        if (await self.desk.flow(self.flow)).cancelled_ms is not None:
            assert len(self.held) == held

    async def is_said_exactly(self, first: FlowCancel) -> None:
        """Whom the cancel ended is told again and again; whoever came back later is added."""
        again = await self.desk.engine.flows.cancel(self.flow, self._policy, wait_ms=WAIT_MS)
        assert set(first.cancelled) <= set(again.cancelled)
        for id in again.cancelled:
            assert (await self.desk.history(id)).count("cancelled") >= 1
        members = (await self.desk.engine.flows.picture(self.flow)).members
        assert {row.state for row in members} <= TERMINAL
        assert (await self.desk.flow(self.flow)).settled


def worlds(kind: str) -> range:
    small = {"memory": 200, "sqlite": 15}.get(kind, 5)
    return range(small * 20 if SIZE == "long" else small)


@pytest.mark.lab
async def test_nothing_starts_in_a_random_graph_that_was_cancelled(
    store: Store, store_kind: str, clock: VirtualClock, progress: Callable[[str], None]
) -> None:
    for seed in worlds(store_kind):
        if seed and seed % PROGRESS_EVERY == 0:
            progress(f"{seed} graphs")
        play = CancelledPlay(store, clock, world_of(seed), flow_id(seed + 1), seed=seed)
        try:
            await play.run()
        except Exception as error:
            error.add_note(f"seed {seed}: {play.world}")
            raise
    assert await broken_promises(store, clock.now_ms()) == []
