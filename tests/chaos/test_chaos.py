"""Random flows on every durable store, while workers, engines and servers are killed and stopped:
nothing is lost, nothing completes twice, and in the end nothing is stuck."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowfabric.core.flow.graph import Plan
from flowfabric.core.flow.model import CancelPolicy
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Query
from flowfabric.core.states import State
from flowfabric.engine.doctor import Doctor
from flowfabric.errors import Conflict, Corrupt, InvalidInput, NotFound, Refused, StoreUnavailable
from tests.chaos.account import unfinished, wrong
from tests.chaos.clock import Wall
from tests.chaos.crew import Crew
from tests.chaos.damage import Damage
from tests.chaos.pace import rest
from tests.chaos.places import Place, place_of
from tests.chaos.plans import MEMBERS_MAX, Planner
from tests.chaos.program import make, read_back
from tests.servers import DURABLE

pytestmark = pytest.mark.lab

SECONDS = float(os.environ.get("FLOWFABRIC_CHAOS_SECONDS") or 1_200.0)
SEED = int(os.environ.get("FLOWFABRIC_CHAOS_SEED") or 2026)
TICK_SECONDS = 0.2
TOLD_SECONDS = 60.0
AT_ONCE = 25
PATIENCE_SECONDS = float(os.environ.get("FLOWFABRIC_CHAOS_PATIENCE") or 180.0)
WORKERS, ENGINES = 3, 2
STOPS_SECONDS = (0.5, 8.0)
ANSWERS = (Refused, NotFound, Conflict, StoreUnavailable)
PATIENT_SECONDS = (0.01, 0.3)
JUMP_SECONDS = 3_600.0


class Lab:
    """One store in a storm. What it was told is remembered outside of it."""

    def __init__(self, place: Place, folder: Path, chance: random.Random) -> None:
        self.told: dict[FlowId, list[ExecutionId]] = {}
        self.counts: Counter[str] = Counter()
        self.crew = Crew(place.url, folder, workers=WORKERS, engines=ENGINES)
        self.app, work = make(place.url)
        self.store = self.app.engine.store
        self._place = place
        self._folder = folder
        self._chance = chance
        self._planner = Planner(chance, work, self.app.engine.counts)
        self._unanswered: list[Plan] = []
        self._striking: asyncio.Task[None] | None = None
        self._damage = Damage(self.store, chance)
        self._clock = Wall(folder / "wall")
        self.accepted: list[str] = []

    async def storm(self, duration: float, progress: Callable[[str], None]) -> None:
        now = asyncio.get_running_loop().time
        begin, told = now(), 0.0
        await self.app.connect()
        while (passed := now() - begin) < duration:
            if passed >= told + TOLD_SECONDS:
                told = passed
                progress(f"{passed:.0f} of {duration:.0f} s: {self}")
            await rest(TICK_SECONDS)
            self.crew.tend()
            try:
                await self._submit()
                await self._meddle()
                await self._spoil()
            except ANSWERS:
                self.counts["unanswered or refused"] += 1
            self._misfortune()

    async def _submit(self) -> None:
        """Keep so many flows under way; who gets no answer asks again with the same ids."""
        open_flows = await self.store.find_flows(FlowQuery(unsettled=True, limit=AT_ONCE))
        while len(open_flows) + len(self._unanswered) < AT_ONCE:
            self._unanswered.append(self._planner.plan(self.app.engine.clock.now_ms()))
        while self._unanswered:
            plan = self._unanswered[-1]
            if not await self._is_submitted(plan):
                return
            self._unanswered.pop()

    async def _is_submitted(self, plan: Plan) -> bool:
        """Whether it is: a caller may lose patience, and asks again later with the same ids."""
        patience = self._chance.uniform(*PATIENT_SECONDS)
        is_patient = len(plan.orders) <= MEMBERS_MAX or self._chance.random() < 0.5
        try:
            async with asyncio.timeout(None if is_patient else patience):
                await self.app.engine.flows.submit(plan)
        except TimeoutError:
            self.counts["interrupted"] += 1
            return False
        self.told[plan.id] = [order.id for order in plan.orders]
        return True

    async def _meddle(self) -> None:
        """An operator cancels a flow, or replays what was done with all that followed."""
        luck = self._chance.random()
        flow = self._chance.choice(list(self.told))
        if luck < 0.1:
            policy = self._chance.choice(list(CancelPolicy))
            with self._may_be_damaged(flow):
                await self.app.engine.flows.cancel(flow, policy)
                self.counts[f"cancelled, {policy}"] += 1
        elif luck < 0.2:
            rows = await self.store.find(Query(states=(State.COMPLETED,), limit=20))
            if rows:
                row = self._chance.choice(rows)
                with self._may_be_damaged(FlowId(row.flow)):
                    await self.app.engine.replay(row.id, downstream=True)
                    self.counts["replayed"] += 1

    @contextmanager
    def _may_be_damaged(self, flow: FlowId) -> Iterator[None]:
        """An operator is told of damage, but only where this storm has done some."""
        try:
            yield
        except Corrupt:
            if flow not in self._damage.flows:
                raise
            self.counts["damage told"] += 1

    async def _spoil(self) -> None:
        """What nobody should do: a record that cannot be read, half a member, another time."""
        await self._damage.heal()
        luck = self._chance.random()
        if luck < 0.05:
            damaged = await self._damage.strike()
            self.counts["records damaged"] += damaged
        elif luck < 0.08:
            self.counts["clock jumps"] += 1
            self._clock.jump(self._chance.uniform(-JUMP_SECONDS, JUMP_SECONDS))
        elif luck < 0.11:
            plan = self._planner.fraction(self.app.engine.clock.now_ms())
            try:
                await self.app.engine.flows.submit(plan)
            except InvalidInput:
                self.counts["fractions refused"] += 1
            else:
                self.accepted.append(f"flow {plan.id} was accepted with half a member")

    def _misfortune(self) -> None:
        luck = self._chance.random()
        member = self._chance.choice(self.crew.members)
        if luck < 0.08:
            self.crew.kill(member)
        elif luck < 0.14:
            self.crew.stop(member, self._chance.uniform(*STOPS_SECONDS))
        elif luck < 0.16 and self._place.strike is not None and not self._is_striking:
            self.crew.fates["server killed"] += 1
            self._striking = asyncio.create_task(asyncio.to_thread(self._place.strike))

    @property
    def _is_striking(self) -> bool:
        return self._striking is not None and not self._striking.done()

    async def calm(self) -> None:
        """The storm is over: everybody is there, and has time to finish."""
        if self._striking is not None:
            await self._striking
        await self._damage.heal(all_of_it=True)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._left():
                await rest(TICK_SECONDS)

    async def _left(self) -> bool:
        self.crew.tend()
        try:
            for plan in self._unanswered:
                await self.app.engine.flows.submit(plan)
                self.told[plan.id] = [order.id for order in plan.orders]
            self._unanswered.clear()
            return bool(await unfinished(self.store))
        except StoreUnavailable:
            return True

    async def verdict(self) -> list[str]:
        found = await wrong(self.store, self.told, read_back(self._folder / "done.txt"))
        diagnosis = await Doctor(self.store, self.app.engine.clock).examine()
        problems = [f"doctor: {each.subject}: {each.sentence}" for each in diagnosis.findings]
        return [*self.accepted, *found, *(problems if not diagnosis.is_well else [])]

    async def close(self) -> list[int]:
        codes = await asyncio.to_thread(self.crew.close)
        await self.app.close()
        return codes

    def __str__(self) -> str:
        members = sum(map(len, self.told.values()))
        return (
            f"{len(self.told)} flows with {members} members; {dict(self.counts)}; "
            f"{dict(self.crew.fates)}"
        )


@pytest.mark.parametrize("kind", DURABLE)
async def test_nothing_is_lost_doubled_or_stuck_in_a_storm(
    kind: str, tmp_path: Path, progress: Callable[[str], None]
) -> None:
    chance = random.Random(f"{kind} {SEED}")
    with place_of(kind, tmp_path, chance) as place:
        lab = Lab(place, tmp_path, chance)
        try:
            await lab.storm(SECONDS, progress)
            try:
                await lab.calm()
            except TimeoutError:
                sys.stdout.write("it did not come to rest\n")
            assert await lab.verdict() == []
        finally:
            codes = await lab.close()
    assert codes == [0] * (WORKERS + ENGINES)
    assert lab.told
    sys.stdout.write(f"{kind}, {SECONDS:.0f} s, seed {SEED}: {lab}\n")
