"""Dispatcher: what the ends of members make possible happens at once.

It is woken by hints and works from them; a poll now and then is the net under lost hints, crashed
processes and lines that were put back. A flow is leased while it is worked on, so that dispatchers
do not get into each other's way; if a lease is lost, the flow's `rev` decides, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.dispatch import Advanced, NoOp
from flowfabric.core.flow.model import Line
from flowfabric.core.flow.views import LINES_LIMIT, Pending, Sight, Turn
from flowfabric.core.ids import FlowId
from flowfabric.core.model import Value
from flowfabric.core.transition import Changeset, clip
from flowfabric.engine import telemetry
from flowfabric.engine.conflict import PAUSES_SECONDS, persistently
from flowfabric.engine.loop import AGAIN, Loop
from flowfabric.engine.rounds import Job, Rounds
from flowfabric.engine.telemetry import Telemetry
from flowfabric.errors import Conflict, FlowFabricError, StoreUnavailable
from flowfabric.store.clock import FollowingClock
from flowfabric.store.hints import Hint
from flowfabric.store.protocol import Store

logger = logging.getLogger("flowfabric.dispatcher")

LEASE_MS = 4_000
NET_SECONDS = 5.0
# When what somebody took who then died is free again; he may have taken it a while after the hint.
TAKE_OVER_SECONDS = tuple(LEASE_MS / 1000 + after for after in (0.1, 0.5, 1.5))
FLOWS = 200
BUSY_TRIES = 3
BACK_SECONDS = 0.02
POISON_PAUSE_MS = 1_000
POISON_PAUSE_MAX_MS = 300_000
POISON_LIMIT = 12


class Dispatcher:
    """The loop over flows with something to do. Any number of them may run on one store."""

    def __init__(
        self, store: Store, clock: FollowingClock, counts: Telemetry | None = None
    ) -> None:
        self.counts = counts or Telemetry()
        self.loop = Loop("dispatcher", self._round, every_seconds=NET_SECONDS)
        self._store = store
        self._clock = clock
        self._rounds = Rounds(store, self.counts)
        self._hinted: dict[FlowId, int] = {}
        self._working: set[FlowId] = set()
        self._after = ""
        self._is_asked = True
        self._later: asyncio.TimerHandle | None = None
        self._heard_at = 0.0

    def hear(self, hint: Hint) -> None:
        for flow in hint.flows:
            self._hinted[flow] = 0
        if hint.foreign:
            self._is_asked = True
        if hint.flows or hint.foreign:
            self.loop.wake()
            self._look_later()

    def _look_later(self) -> None:
        """Whoever takes what was heard of may die with it: look when that would be free again."""
        self._heard_at = asyncio.get_running_loop().time()
        if self._later is None:
            self._arm(0)

    def _arm(self, place: int) -> None:
        running, heard_at = asyncio.get_running_loop(), self._heard_at
        at = heard_at + TAKE_OVER_SECONDS[place]
        self._later = running.call_at(at, self._look, heard_at, place)

    def _look(self, since: float, place: int) -> None:
        self._later = None
        self._is_asked = True
        self.loop.wake()
        if self._heard_at > since:
            self._arm(0)
        elif place + 1 < len(TAKE_OVER_SECONDS):
            self._arm(place + 1)

    async def _round(self) -> float:
        asked, self._is_asked = self._is_asked, False
        done = await self.run_once(everything=asked or not self._hinted)
        if done or self._is_asked:
            return AGAIN
        return BACK_SECONDS if self._hinted else NET_SECONDS

    async def drain(self) -> int:
        """Until nothing is left that can be done now; answers how many rounds did something."""
        rounds = 0
        while await self.run_once():
            rounds += 1
        return rounds

    async def run_once(self, *, everything: bool = True) -> int:
        """What was hinted at, and with `everything` whatever else is there; answers how many
        flows were worked on."""
        hinted = [flow for flow in self._hinted if flow not in self._working][:FLOWS]
        taken = await self._take(hinted) if hinted else []
        for flow in hinted:
            self._miss(flow, is_taken=any(job.flow.id == flow for job in taken))
        if everything and len(taken) < FLOWS:
            taken = [*taken, *await self._take()]
        await self._work(taken)
        return len(taken)

    def _miss(self, flow: FlowId, *, is_taken: bool) -> None:
        """A flow that was hinted at and not there is done, or somebody else is at it: his commit
        may not have seen what the hint is about, so ask again a few times."""
        tries = self._hinted.pop(flow, 0) + 1
        if not is_taken and tries < BUSY_TRIES:
            self._hinted[flow] = tries

    async def _take(self, only: Sequence[FlowId] = ()) -> list[Job]:
        async def once(_: int) -> list[Pending]:
            now_ms = self._clock.now_ms()
            turn = Turn(
                limit=FLOWS,
                now_ms=now_ms,
                until_ms=now_ms + LEASE_MS,
                only=only,
                after=self._after,
            )
            return await self._store.pending(turn)

        found = await persistently(self._clock, once)
        if not only:
            self._after = found[-1].flow.id if found else ""
        now_ms = self._clock.now_ms()
        return [Job(each.flow, each.lines, now_ms) for each in found]

    async def _work(self, jobs: Sequence[Job]) -> None:
        """Rounds until each of these flows has nothing left to do."""
        mine = {job.flow.id for job in jobs}
        self._working |= mine
        try:
            while jobs:
                jobs = await self._go_on(await self._attempt(jobs))
        finally:
            self._working -= mine

    async def _attempt(self, jobs: Sequence[Job]) -> list[Job]:
        """One round of each; those that are not done, because there is more or by a conflict."""
        try:
            answers = await self._commit(jobs)
        except StoreUnavailable:
            # Nobody's fault but the store's: their leases end, and they are found again.
            raise
        except FlowFabricError as error:
            return await self._one_by_one(jobs, error)
        left: list[Job] = []
        lost: list[Job] = []
        for job, done in zip(jobs, answers, strict=True):
            if done:
                job.tries = 0
                left += [] if job.is_done else [job]
            else:
                lost.append(job)
        return left + await self._again(lost)

    async def _commit(self, jobs: Sequence[Job]) -> list[bool]:
        async def once(_: int) -> list[bool]:
            now_ms = self._clock.now_ms()
            self.counts.count(telemetry.ROUNDS, by=len(jobs))
            return await self._rounds.run(jobs, now_ms, now_ms + LEASE_MS)

        return await persistently(self._clock, once)

    async def _again(self, lost: Sequence[Job]) -> list[Job]:
        """Somebody was faster: try with what is there now, a few times, then leave it for later."""
        self.counts.count(telemetry.CONFLICTS, by=len(lost))
        again = [job for job in lost if job.tries < len(PAUSES_SECONDS)]
        for job in lost:
            job.tries += 1
            if job not in again:
                self._hinted[job.flow.id] = 0
        if again:
            await asyncio.sleep(PAUSES_SECONDS[again[0].tries - 1])
        return again

    async def _one_by_one(self, jobs: Sequence[Job], error: FlowFabricError) -> list[Job]:
        """One of them is the trouble: it must not keep the others back."""
        if len(jobs) > 1:
            return [left for job in jobs for left in await self._attempt([job])]
        self.counts.count(telemetry.FAILURES)
        logger.warning(
            "dispatch of a flow failed: %s",
            error,
            extra={"flow": jobs[0].flow.id, "error": error.code},
        )
        await self._put_back(jobs[0].flow.id, error)
        return []

    async def _put_back(self, id: FlowId, error: FlowFabricError) -> None:
        """Move the flow forward in time, durably; after a limit it is parked."""
        try:
            flow = (await self._store.graph([Sight(flow=id)]))[0].flow
            if flow is None:
                return
            now_ms = self._clock.now_ms()
            failures = flow.failures + 1
            pause = min(POISON_PAUSE_MS * 2 ** min(failures - 1, 20), POISON_PAUSE_MAX_MS)
            patch: dict[str, Value] = {
                "failures": failures,
                "next_try_ms": now_ms + pause,
                "parked": clip(str(error)) if failures >= POISON_LIMIT else "",
                "busy_until_ms": 0,
            }
            await self._store.commit(Changeset(flows=[FlowPatch(id, flow.rev, patch)]), now_ms)
        except FlowFabricError as again:
            # Its lease ends by itself, and it is tried then.
            logger.warning("a flow could not be put back", extra={"flow": id, "error": again.code})

    async def _go_on(self, jobs: Sequence[Job]) -> list[Job]:
        """These flows as they are now, with the lines they have now."""
        if not jobs:
            return []
        views = await self._store.graph([Sight(flow=job.flow.id, lines=True) for job in jobs])
        now_ms = self._clock.now_ms()
        found: list[Job] = []
        for job, view in zip(jobs, views, strict=True):
            lines = [line for line in view.lines if line.next_try_ms <= now_ms][:LINES_LIMIT]
            if view.flow is not None and lines:
                found.append(Job(view.flow, lines, now_ms, tries=job.tries))
        return found

    async def dispatch(self, line: Line | None) -> Advanced | NoOp:
        """Act on one line, and on what follows from it. None is the end of a solo execution."""
        if line is None:
            return Advanced(0)
        jobs = _only(line, await self._take([line.flow]))
        for pause in (*PAUSES_SECONDS, None):
            if not jobs:
                return NoOp("not there, or somebody is at it")
            if (await self._commit(jobs))[0]:
                await self._work(await self._go_on(jobs))
                return next((answer.outcome for answer in jobs[0].answers), Advanced(0))
            self.counts.count(telemetry.CONFLICTS)
            if pause is not None:
                await asyncio.sleep(pause)
            jobs = _only(line, await self._go_on(jobs))
        raise Conflict(f"flow {line.flow} kept changing", details={"flow": line.flow})


def _only(line: Line, jobs: Sequence[Job]) -> list[Job]:
    """The job of this line alone, if it is still there."""
    for job in jobs:
        job.lines = [each for each in job.lines if each.id == line.id]
    return [job for job in jobs if job.lines]
