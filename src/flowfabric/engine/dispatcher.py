"""Dispatcher: what the ends of members make possible happens at once.

It is woken by hints and works from them, and at the instant of the next timer: deadlines, what was
put back, leases of processes that crashed. A poll now and then is the net under lost hints. A flow
is leased while it is worked on, so that dispatchers do not get into each other's way; if a lease is
lost, the flow's `rev` decides, and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping, Sequence

from flowfabric.core.flow.dispatch import Advanced, NoOp
from flowfabric.core.flow.model import Flow, Line, LineKind, Unreadable, is_free
from flowfabric.core.flow.views import LINES_LIMIT, Pending, Sight, Turn, View, name_of
from flowfabric.core.ids import ExecutionId, FlowId, parse_uuid
from flowfabric.engine import dispatch_log, telemetry
from flowfabric.engine.conflict import PAUSES_SECONDS, persistently
from flowfabric.engine.direct import Found, look
from flowfabric.engine.flow_leases import FlowLeases
from flowfabric.engine.isolation import STORE_TROUBLE, isolated
from flowfabric.engine.known_flows import KnownFlows
from flowfabric.engine.loop import Loop
from flowfabric.engine.round_size import FLOWS, RoundSize
from flowfabric.engine.rounds import Job, Outlived, Rounds
from flowfabric.engine.telemetry import Telemetry
from flowfabric.errors import Conflict, FlowFabricError, InvalidInput
from flowfabric.store.clock import FollowingClock
from flowfabric.store.hints import Hint
from flowfabric.store.protocol import Store

LEASE_MS = 4_000
NET_SECONDS = 5.0
FLIGHTS = 2
BACK_MS = 20
# How soon a flow that another dispatcher holds is asked for again, the longer it is held.
BUSY_SECONDS = (0.02, 0.02, 0.04, 0.06)


class Dispatcher:
    """The loop over flows with something to do. Any number of them may run on one store."""

    def __init__(
        self,
        store: Store,
        clock: FollowingClock,
        counts: Telemetry | None = None,
        known: KnownFlows | None = None,
    ) -> None:
        self.counts = counts or Telemetry()
        self.loop = Loop("dispatcher", self._round, every_seconds=NET_SECONDS)
        self._store = store
        self._clock = clock
        self._rounds = Rounds(store, self.counts, known)
        self._leases = FlowLeases(store, clock)
        self._size = RoundSize()
        self._ended: dict[FlowId, list[ExecutionId]] = {}
        # By flow how often it was found to be held by another dispatcher.
        self._hinted: dict[FlowId, int] = {}
        # How many hints were heard that do not say which flows they are about.
        self._unnamed = 0
        self._working: set[FlowId] = set()
        self._after = ""
        self._is_asked = True
        self._net_at = 0.0
        # When the next flow has something to do by itself, as far as is known.
        self._turn_ms: int | None = None
        self._is_turn_known = False
        self._heard = asyncio.Event()

    def hear(self, hint: Hint) -> None:
        for line in hint.lines:
            if _is_flow_id(line.flow):
                self._ended.setdefault(line.flow, []).append(ExecutionId(line.execution))
        for flow in hint.flows:
            if flow not in self._ended:
                self._hinted[flow] = 0
        if hint.foreign and not hint.flows:
            self._is_asked = True
            self._unnamed += 1
        if hint.turn_ms is not None and (self._turn_ms is None or hint.turn_ms < self._turn_ms):
            self._turn_ms = hint.turn_ms
            self.loop.wake()
        if hint.flows or hint.foreign:
            self._heard.set()
            self.loop.wake()

    async def _round(self) -> float:
        """Work as long as there is any, on some flows while the store writes others."""
        flights: set[asyncio.Task[None]] = set()
        try:
            while not self.loop.is_stopping:
                self._heard.clear()
                jobs = await self._next()
                if jobs:
                    flights.add(asyncio.get_running_loop().create_task(self._work(jobs)))
                if not flights:
                    break
                if not jobs or len(flights) >= FLIGHTS:
                    flights = await self._landed(flights)
        finally:
            await asyncio.gather(*flights)
        if not self._hinted:
            return await self._pause()
        return BUSY_SECONDS[min(*self._hinted.values(), len(BUSY_SECONDS) - 1)]

    async def _pause(self) -> float:
        """Until a flow has something to do by itself; asked anew after a look at everything."""
        now_ms = self._clock.now_ms()
        if not self._is_turn_known:
            self._turn_ms = await self._store.next_turn(now_ms)
            self._is_turn_known = True
        if self._turn_ms is None:
            return NET_SECONDS
        return min(max((self._turn_ms - now_ms) / 1000, 0.001), NET_SECONDS)

    def _is_turn(self) -> bool:
        return self._turn_ms is not None and self._turn_ms <= self._clock.now_ms()

    async def _next(self) -> list[Job]:
        now = asyncio.get_running_loop().time()
        is_net = self._is_asked or now >= self._net_at or self._is_turn()
        if is_net:
            self._is_asked, self._net_at = False, now + NET_SECONDS
            self._is_turn_known, self._turn_ms = False, None
        try:
            jobs = await self._find(everything=is_net)
        except FlowFabricError:
            self._is_asked |= is_net
            raise
        # A full round leaves more behind than this process was told of.
        self._is_asked |= is_net and len(jobs) >= FLOWS
        return jobs

    async def _landed(self, flights: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Those still under way when one is done or, if there is room for another, when there may
        be something to do."""
        told = asyncio.get_running_loop().create_task(self._heard.wait())
        waits = flights if len(flights) >= FLIGHTS else {*flights, told}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
        for flight in done & flights:
            flight.result()
        return flights - done

    async def drain(self) -> int:
        """Until nothing is left that can be done now; answers how many rounds did something."""
        rounds = 0
        while await self.run_once():
            rounds += 1
        return rounds

    async def run_once(self, *, everything: bool = True) -> int:
        """What was hinted at, and with `everything` whatever else is there; answers how many flows
        that were."""
        jobs = await self._find(everything=everything)
        await self._work(jobs)
        return len(jobs)

    async def _find(self, *, everything: bool) -> list[Job]:
        """Flows to work on: those that were hinted at, and with `everything` all others."""
        here = [flow for flow in self._ended if flow not in self._working]
        ended = {flow: self._ended.pop(flow) for flow in here[:FLOWS]}
        unnamed = self._unnamed
        try:
            taken = await self._taken(everything=everything)
            mine = {job.flow.id for job in taken}
            direct = {flow: ids for flow, ids in ended.items() if flow not in mine}
            found = await self._look_at(direct)
            for job in found.jobs:
                job.unnamed = unnamed
        except Exception:
            self._hinted |= dict.fromkeys(ended, 0)
            raise
        self._hinted |= dict.fromkeys(found.others, 0)
        jobs = [*taken, *found.jobs]
        self._working.update(job.flow.id for job in jobs)
        return jobs

    async def _look_at(self, ended: Mapping[FlowId, Sequence[ExecutionId]]) -> Found:
        try:
            return await look(self._store, ended, self._clock.now_ms())
        except STORE_TROUBLE:
            raise
        except Exception as error:
            # One of them cannot be seen so; each is taken in its turn.
            dispatch_log.not_seen(list(ended), error)
            return Found([], list(ended))

    async def _taken(self, *, everything: bool) -> list[Job]:
        named = [flow for flow in self._known() if flow not in self._working][:FLOWS]
        # A hint that is heard from here on may be about something that the look does not see.
        asked = {flow: self._hinted.pop(flow) for flow in named}
        try:
            taken, lost = await isolated(named, self._take)
            for flow, error in lost:
                dispatch_log.failed(flow, error)
            await self._miss(asked, {job.flow.id for job in taken})
            if everything and len(taken) < FLOWS:
                taken = [*taken, *await self._take()]
        except Exception:
            self._hinted = asked | self._hinted
            raise
        return taken

    def _known(self) -> list[FlowId]:
        """What was hinted at; an id that no flow can have is told of and forgotten."""
        for flow in [flow for flow in self._hinted if not _is_flow_id(flow)]:
            dispatch_log.no_flow(flow)
            del self._hinted[flow]
        return list(self._hinted)

    async def _miss(self, asked: Mapping[FlowId, int], taken: Container[FlowId]) -> None:
        """A flow that was hinted at and could not be taken has nothing to do, or another dispatcher
        holds it. That one may not have seen what the hint is about: ask again until it lets go."""
        missed = {flow: times for flow, times in asked.items() if flow not in taken}
        if not missed:
            return
        now_ms = self._clock.now_ms()
        pairs = await self._seen(list(missed), lines=1, now_ms=now_ms)
        for flow, view in pairs:
            times = missed[flow]
            if view.flow is not None and view.flow.busy_until_ms > now_ms:
                self._hinted.setdefault(flow, times + 1)
            elif view.flow is not None and is_free(view.flow, now_ms) and view.lines:
                self._hinted.setdefault(flow, 0)

    async def _take(self, only: Sequence[FlowId] = ()) -> list[Job]:
        unnamed = self._unnamed

        async def once(_: int) -> list[Pending | Unreadable]:
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
            self._after = name_of(found[-1]) if found else ""
        now_ms = self._clock.now_ms()
        for each in found:
            bad = [each] if isinstance(each, Unreadable) else each.unreadable
            self._rounds.lose(FlowId(name_of(each)), bad)
        # One without anything that can be read is left alone until its lease ends.
        pending = [each for each in found if isinstance(each, Pending)]
        return [
            Job(p.flow, p.lines, now_ms, is_all=_is_whole(p), unnamed=unnamed)
            for p in pending
            if _has_work(p, now_ms)
        ]

    async def _work(self, jobs: Sequence[Job]) -> None:
        """Rounds until each of these flows has nothing left to do."""
        mine = {job.flow.id for job in jobs}
        try:
            while jobs:
                jobs = await self._go_on(await self._attempt(jobs))
        finally:
            self._working -= mine
            self._heard.set()

    async def _attempt(self, jobs: Sequence[Job]) -> list[Job]:
        """One round of each, as many at once as the last ones had time for; answers those that are
        not done, because there is more or by a conflict."""
        left: list[Job] = []
        for some in self._size.cut(jobs):
            left.extend(await self._attempt_some(some))
        return left

    async def _attempt_some(self, jobs: Sequence[Job]) -> list[Job]:
        began_ms = self._clock.now_ms()
        try:
            answers = await self._commit(jobs)
        except Outlived:
            self._size.shrink(jobs)
            self._hinted |= {job.flow.id: 0 for job in jobs if not job.is_leased}
            return [job for job in jobs if job.is_leased]
        except STORE_TROUBLE as error:
            # Nobody's fault but the store's: their leases end, and they are found again.
            self.counts.count(telemetry.FAILURES, by=len(jobs))
            for job in jobs:
                dispatch_log.failed(job.flow.id, error)
                self._hinted.setdefault(job.flow.id, 0)
            raise
        except Exception as error:
            return await self._in_halves(jobs, error)
        self._size.grow(self._clock.now_ms() - began_ms)
        left: list[Job] = []
        lost: list[Job] = []
        for job, done in zip(jobs, answers, strict=True):
            if done:
                job.tries = 0
                left += [] if job.is_done else [job]
                if job.is_done:
                    self._leave(job.flow.id, job.unnamed)
            else:
                lost.append(job)
        return left + await self._again(lost)

    def _leave(self, flow: FlowId, unnamed: int) -> None:
        """Nothing is left of what was seen. A hint that was heard since may be about more, and
        whoever else heard it found the flow held: ask once more."""
        if self._unnamed > unnamed:
            self._hinted.setdefault(flow, 0)

    async def _commit(self, jobs: Sequence[Job]) -> list[bool]:
        async def once(_: int) -> list[bool]:
            self.counts.count(telemetry.ROUNDS, by=len(jobs))
            return await self._rounds.run(jobs, self._clock.now_ms, LEASE_MS)

        return await persistently(self._clock, once)

    async def _again(self, lost: Sequence[Job]) -> list[Job]:
        """Somebody was faster: try with what is there now, a few times, then leave it for later."""
        self.counts.count(telemetry.CONFLICTS, by=len(lost))
        again = [job for job in lost if job.is_leased and job.tries < len(PAUSES_SECONDS)]
        self._hinted |= {job.flow.id: 0 for job in lost if not job.is_leased}
        await self._give_back([job for job in lost if job.is_leased and job not in again])
        for job in again:
            job.tries += 1
        if again:
            await asyncio.sleep(PAUSES_SECONDS[again[0].tries - 1])
        return again

    async def _give_back(self, jobs: Sequence[Job]) -> None:
        """Let go of flows that others keep changing: a lease of ours would only hold them up."""
        if not jobs:
            return
        for job in jobs:
            self._hinted[job.flow.id] = 0
        ours = await self._leases.still_ours([job.flow for job in jobs])
        await self._let_go(ours, BACK_MS)

    async def _let_go(self, flows: Sequence[Flow], for_ms: int = 0) -> None:
        """A lease that could not be ended ends by itself: the flow is asked for until it does."""
        left = await self._leases.let_go(flows, for_ms)
        self._hinted |= {flow.id: 0 for flow in left}

    async def _in_halves(self, jobs: Sequence[Job], error: Exception) -> list[Job]:
        """One of them is the trouble: it must not keep the others back."""
        if len(jobs) > 1:
            middle = len(jobs) // 2
            first = await self._attempt(jobs[:middle])
            return [*first, *await self._attempt(jobs[middle:])]
        await self._fail(jobs[0].flow.id, error)
        return []

    async def _fail(self, id: FlowId, error: Exception) -> None:
        self.counts.count(telemetry.FAILURES)
        dispatch_log.failed(id, error)
        await self._leases.put_back(id, error)

    async def _go_on(self, jobs: Sequence[Job]) -> list[Job]:
        """These flows as they are now, with the lines they have now."""
        if not jobs:
            return []
        unnamed, now_ms = self._unnamed, self._clock.now_ms()
        most = LINES_LIMIT + 1
        mine = {job.flow.id: job for job in jobs}
        pairs = await self._seen(list(mine), lines=most, now_ms=now_ms)
        found: list[Job] = []
        idle: list[Flow] = []
        for flow, view in pairs:
            job = mine[flow]
            lines, is_all = view.lines[:LINES_LIMIT], len(view.lines) < most
            if view.flow is not None and lines:
                found.append(
                    Job(
                        view.flow,
                        lines,
                        now_ms,
                        tries=job.tries,
                        sums=job.sums,
                        is_all=is_all,
                        unnamed=unnamed,
                    )
                )
            elif view.flow is not None and view.flow.busy_until_ms > now_ms:
                idle.append(view.flow)
        # What comes next must not wait until a lease ends that nobody uses.
        await self._let_go(idle)
        for each in idle:
            self._leave(each.id, unnamed)
        return found

    async def _seen(
        self, flows: Sequence[FlowId], *, lines: int, now_ms: int
    ) -> list[tuple[FlowId, View]]:
        """Each as it is now, with so many of its lines; one that cannot be seen fails alone."""

        async def look_at(some: Sequence[FlowId]) -> list[tuple[FlowId, View]]:
            sights = [Sight(flow=flow, due_lines=lines, now_ms=now_ms) for flow in some]
            return list(zip(some, await self._store.graph(sights), strict=True))

        seen, lost = await isolated(flows, look_at)
        for flow, error in lost:
            await self._fail(flow, error)
        return seen

    async def dispatch(self, line: Line | None) -> Advanced | NoOp:
        """Act on one line, and on what follows from it. None is the end of a solo execution."""
        if line is None or not line.flow:
            return Advanced(0)
        if not _is_flow_id(line.flow):
            dispatch_log.no_flow(line.flow)
            return NoOp("invalid flow id")
        taken = await self._take([line.flow])
        jobs = _only(line, taken)
        if taken and not jobs:
            await self._let_go([taken[0].flow])
        tries = 0
        while jobs:
            if (await self._commit(jobs))[0]:
                left = await self._go_on(jobs)
                if not any(answer.goes_on for answer in jobs[0].answers):
                    await self._work(left)
                    return _outcome(line, jobs[0])
            elif tries == len(PAUSES_SECONDS):
                raise _kept_changing(line.flow)
            else:
                self.counts.count(telemetry.CONFLICTS)
                await asyncio.sleep(PAUSES_SECONDS[tries])
                tries += 1
                left = await self._go_on(jobs)
            jobs = _only(line, left)
        return NoOp("the outbox entry is gone, or another engine holds the flow")


def _kept_changing(flow: FlowId) -> Conflict:
    return Conflict(f"flow {flow} kept changing", details={"flow": flow, "kind": "retry_exhausted"})


def _outcome(line: Line, job: Job) -> Advanced | NoOp:
    """What became of the line in all its rounds."""
    if line.id in job.sums:
        return job.sums[line.id][0]
    return next((answer.outcome for answer in job.answers), Advanced(0))


def _is_flow_id(text: str) -> bool:
    try:
        parse_uuid(text, "flow_id")
    except InvalidInput:
        return False
    return True


def _has_work(pending: Pending, now_ms: int) -> bool:
    due_ms = pending.flow.due_ms
    return bool(pending.lines) or (due_ms is not None and due_ms <= now_ms)


def _is_whole(pending: Pending) -> bool:
    """Whether the flow has no other lines than those that were read."""
    return len(pending.lines) + len(pending.unreadable) < LINES_LIMIT


def _only(line: Line, jobs: Sequence[Job]) -> list[Job]:
    """The job of this line alone, if it is still there, and of one that all others wait for."""
    for job in jobs:
        job.lines = [
            each for each in job.lines if each.id == line.id or each.kind is LineKind.REOPEN
        ]
    return [job for job in jobs if job.lines]
