"""Rounds of dispatch: many flows are looked at, decided and committed in a few calls together.

Each flow is its own decision and its own changeset; they only share the trips to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from flowfabric.core.flow.cancel import (
    DEADLINE,
    cancel_flow,
    cancelled_states,
    on_cancel_flow,
    open_request,
)
from flowfabric.core.flow.dispatch import MISSING, Advanced, Answer, NoOp, on_ends
from flowfabric.core.flow.handover import hand_over
from flowfabric.core.flow.model import (
    CancelPolicy,
    Flow,
    FlowState,
    Group,
    GroupKey,
    Line,
    LineKind,
    Unreadable,
    reopening_of,
)
from flowfabric.core.flow.opening import on_open_flow
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.siblings import (
    CHUNK,
    Around,
    cancels_rest,
    on_cancel_siblings,
    owe,
    owed_by,
    still_pending,
)
from flowfabric.core.flow.views import EDGES_LIMIT, Members, Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Claim, Execution
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset, Transition
from flowfabric.engine import dispatch_log, telemetry
from flowfabric.engine.flow_outcomes import FlowOutcomes
from flowfabric.engine.known_flows import KnownFlows
from flowfabric.engine.reopening import Reopening
from flowfabric.engine.telemetry import Telemetry
from flowfabric.store.protocol import Store

PAGE = 500
# A decision that is older than this when it is to be written was about too much at once.
AGE_LIMIT_MS = 1_000
ALL_EDGES = 1_000_000
_PAGED = (LineKind.CANCEL_FLOW, LineKind.OPEN_FLOW)


class Outlived(Exception):
    """Looking and deciding took so long that nothing was written: ask for fewer lines."""


class Job(msgspec.Struct):
    """One flow that this process works on, the lines it acts on, and what came of them.

    `view`: what was seen together with the lines. `is_all`: there are no other lines. `ends`: the
    ends that the lines are about are written in the same commit, and the lines never are; `ended`:
    their members as they are then. `taken`: members that `claim` asks for and these set free, of
    which it `takes_up_to` so many. `unnamed`: how many hints had been heard when the lines were
    read that do not say which flows they are about.
    """

    flow: Flow
    lines: list[Line]
    claimed_ms: int
    tries: int = 0
    answers: Sequence[Answer] = ()
    moved: int = 0
    decided: Sequence[Group] = ()
    is_done: bool = True
    view: View | None = None
    is_leased: bool = True
    is_all: bool = True
    ends: Sequence[Transition] = ()
    ended: Sequence[Execution] = ()
    claim: Claim | None = None
    takes_up_to: int = 0
    among: Mapping[ExecutionId, bytes] = {}
    taken: Sequence[Execution] = ()
    unnamed: int = 0
    # By line what followed from it in earlier rounds, and how many edges they saw.
    sums: dict[str, tuple[Advanced, int]] = {}

    def add(self, answer: Answer, advanced: Advanced) -> tuple[Advanced, int]:
        """All that followed from the line of this answer so far."""
        before, seen = self.sums.get(answer.line.id, (Advanced(0), 0))
        whole = Advanced(before.edges + advanced.edges, before.skipped + advanced.skipped)
        self.sums[answer.line.id] = whole, seen + answer.edges
        return self.sums[answer.line.id]

    def of(self, kind: LineKind) -> list[Line]:
        return [line for line in self.lines if line.kind is kind]

    @property
    def choices(self) -> list[Group]:
        """Decided groups whose other upstreams are to be cancelled."""
        return [group for group in self.decided if cancels_rest(group)]

    @property
    def paged(self) -> Line | None:
        """One line at a time that walks through all members."""
        return next((line for line in self.lines if line.kind in _PAGED), None)

    def walk(self) -> Line | None:
        """A line that all others of its flow wait for: it is worked on alone."""
        found = reopening_of(self.lines)
        if found is not None:
            self.is_all = self.is_all and len(self.lines) == 1
            self.lines = [found]
        return found

    def sight(self) -> Sight:
        ended = [ExecutionId(line.execution) for line in self.of(LineKind.ENDED)]
        siblings = [ExecutionId(line.execution) for line in self.of(LineKind.CANCEL_SIBLINGS)]
        page = self.paged
        members = None
        if page is not None:
            members = Members(states=self._states(page), after=page.about, limit=PAGE)
        return Sight(
            flow=self.flow.id, heads=ended, leaving=ended, groups=siblings, members=members
        )

    def _states(self, page: Line) -> tuple[State, ...]:
        if page.kind is LineKind.CANCEL_FLOW:
            return cancelled_states(self.flow)
        return (State.BLOCKED_DEPENDENCIES, State.BLOCKED_OPERATOR)


class Rounds:
    """Decides for many flows at once. Any number may run: the flow's `rev` keeps them apart."""

    def __init__(self, store: Store, counts: Telemetry, known: KnownFlows | None = None) -> None:
        self._store = store
        self._counts = counts
        self._known = known or KnownFlows()
        self._reopening = Reopening(store)
        self._outcomes = FlowOutcomes(store)

    async def run(
        self, jobs: Sequence[Job], time: Callable[[], int], lease_ms: int = 0
    ) -> list[bool]:
        """One round of each; answers which were committed. A conflict changes nothing.

        Several lines that take too long together are `Outlived`; one by itself never is.
        """
        walks = {
            job.flow.id: walk for job in jobs if not job.ends and (walk := job.walk()) is not None
        }
        views = await self._look(jobs)
        # Lines and revision are of one moment; what was seen later must be of the same one.
        live = [
            (job, view)
            for job, view in zip(jobs, views, strict=True)
            if view.flow is not None and view.flow.rev == job.flow.rev
        ]
        now_ms = time()
        works = await self._decide([job for job, _ in live], [view for _, view in live], now_ms)
        for work in works:
            if work.flow.id in walks:
                await self._reopening.go_on(work, walks[work.flow.id])
        for (job, _), work in zip(live, works, strict=True):
            if work.is_to_be_judged:
                work.outcome = await self._outcomes.judge(work.flow.id, job.ended)
        if time() - now_ms > AGE_LIMIT_MS and weight(jobs) > 1:
            raise Outlived
        busy_until_ms = now_ms + lease_ms if lease_ms else 0
        batch = [
            _changes(job, work, busy_until_ms) for (job, _), work in zip(live, works, strict=True)
        ]
        answers = await self._store.commit_each(batch, now_ms) if batch else []
        done: set[FlowId] = set()
        lines = 0
        for (job, _), work, changes, is_done in zip(live, works, batch, answers, strict=True):
            if is_done:
                done.add(job.flow.id)
                lines += len(work.done)
                self._known.write(changes, job.ends, [*job.ended, *job.taken])
                self._tell(job)
            else:
                self._known.leave(job.flow.id)
        self._counts.count(telemetry.LINES_DONE, by=lines)
        for flow in walks:
            self._reopening.written(flow, is_done=flow in done)
        return [job.flow.id in done for job in jobs]

    async def _look(self, jobs: Sequence[Job]) -> list[View]:
        """What each job needs to see; a look is good for one round."""
        asked = [job for job in jobs if job.view is None]
        seen = await self._store.graph([job.sight() for job in asked]) if asked else []
        fresh = iter(seen)
        views = [next(fresh) if job.view is None else job.view for job in jobs]
        for job in jobs:
            job.view = None
        return views

    async def _decide(self, jobs: Sequence[Job], views: Sequence[View], now_ms: int) -> list[Round]:
        works: list[Round] = []
        for job, view in zip(jobs, views, strict=True):
            work = Round(job.flow, now_ms, job.claimed_ms, has_lines=not job.ends)
            for end in job.ends:
                work.write(end)
            lines = job.lines if job.ends else job.of(LineKind.ENDED)
            ends = on_ends(work, lines, view, EDGES_LIMIT)
            if job.claim is not None:
                job.taken = hand_over(work, job.claim, job.takes_up_to, job.among)
            job.answers, job.decided, job.moved = ends.answers, ends.decided, 0
            for group in ends.strange:
                dispatch_log.strange(group)
            for edge in ends.dangling:
                dispatch_log.leads_nowhere(edge)
            if view.unreadable:
                self.lose(job.flow.id, view.unreadable)
            works.append(work)
        await self._owe(jobs, works)
        await self._look_further(jobs, works, views)
        return works

    async def _owe(self, jobs: Sequence[Job], works: Sequence[Round]) -> None:
        """Groups that were decided and cancel the rest: look who the rest is."""
        choices = [
            (work, groups) for job, work in zip(jobs, works, strict=True) if (groups := job.choices)
        ]
        if not choices:
            return
        around = await self._store.graph(
            [
                Sight(flow=work.flow.id, entering=[group.downstream for group in groups], ends=True)
                for work, groups in choices
            ]
        )
        beyond = await self._store.graph(
            [
                Sight(
                    flow=work.flow.id,
                    leaving=[e.upstream for e in still_pending(view.edges, work.resolved)],
                    edges=ALL_EDGES,
                )
                for (work, _), view in zip(choices, around, strict=True)
            ]
        )
        for (work, groups), near, far in zip(choices, around, beyond, strict=True):
            owe(work, groups, near, far)

    async def _look_further(
        self, jobs: Sequence[Job], works: Sequence[Round], views: Sequence[View]
    ) -> None:
        """Lines that name members only through a group or a page of them."""
        asks = [
            None if job.ends else _further(job, work, view)
            for job, work, view in zip(jobs, works, views, strict=True)
        ]
        if not any(asks):
            return
        wanted = [sight for sight in asks if sight is not None]
        seen = iter(await self._store.graph(wanted) if wanted else [])
        for job, work, view, ask in zip(jobs, works, views, asks, strict=True):
            if ask is not None:
                more = next(seen)
                work.look(more)
                lost = {each.name for each in (*view.unreadable, *more.unreadable)}
                self._act(job, work, view, Around(more.edges, lost))

    def _act(self, job: Job, work: Round, view: View, around: Around) -> None:
        for line in job.of(LineKind.CANCEL_SIBLINGS):
            group = work.group(GroupKey(ExecutionId(line.execution), line.about))
            before = len(owed_by(group)) if group else 0
            cancelled = on_cancel_siblings(work, line, group, around)
            if group is not None and before:
                handled = min(before, CHUNK)
                self._counts.count(telemetry.SIBLINGS_DISPATCHED, group.cancel_reason, handled)
                disposed = telemetry.SIBLINGS_DISPOSITION
                self._counts.count(disposed, "cancelled", cancelled)
                self._counts.count(disposed, "already_terminal", handled - cancelled)
        page = job.paged
        if page is None:
            return
        handle = on_cancel_flow if page.kind is LineKind.CANCEL_FLOW else on_open_flow
        job.moved = handle(work, page, view.members, is_last=len(view.members) < PAGE)

    def _tell(self, job: Job) -> None:
        for group in job.decided:
            self._counts.count(telemetry.GROUP_POLICY, group.join)
        for answer in job.answers:
            match answer.outcome:
                case Advanced() as advanced:
                    whole, edges = advanced, answer.edges
                    if answer.goes_on or job.sums:
                        whole, edges = job.add(answer, advanced)
                    if whole.edges and not answer.goes_on:
                        dispatch_log.dispatched(answer.line, whole, edges)
                case NoOp(reason) if reason == MISSING:
                    dispatch_log.nobody_ended(answer.line)

    def lose(self, flow: str, lost: Sequence[Unreadable]) -> None:
        """Say what cannot be read."""
        for each in lost:
            self._counts.count(telemetry.UNREADABLE, each.kind)
            dispatch_log.unreadable(flow, each)


def weight(jobs: Sequence[Job]) -> int:
    """How many lines they are about; a flow whose own time has come is one, too."""
    return sum(max(len(job.lines), 1) for job in jobs)


def _changes(job: Job, work: Round, busy_until_ms: int) -> Changeset:
    flow = job.flow
    # Lines that are never written are about ends alone.
    wish = None if job.ends else open_request(job.lines)
    if wish is not None:
        if flow.state is FlowState.OPEN:
            job.is_done, job.answers, job.decided = False, (), ()
            return cancel_flow(flow, work.now_ms, wish.policy, wish.reason, wishes=job.lines)
        for line in job.of(LineKind.REQUEST_CANCEL):
            work.finish(line)
    if flow.due_ms is not None and flow.due_ms <= work.now_ms:
        has_ended = 0 < flow.total <= work.ended
        if flow.state is FlowState.OPEN and not has_ended:
            job.is_done, job.answers, job.decided = False, (), ()
            return cancel_flow(flow, work.now_ms, CancelPolicy.CANCEL_ALL, DEADLINE)
        work.patch["due_ms"] = None
    job.is_done = job.is_all and not _is_left(job, work)
    return work.changeset(busy_until_ms=0 if job.is_done else busy_until_ms)


def _is_left(job: Job, work: Round) -> bool:
    """Whether there is more to do with the flow at once: lines that were put back keep nobody else
    from it."""
    handled = len(work.done) + sum(line.next_try_ms > work.now_ms for line in work.lines)
    return len(job.lines) > handled or work.leaves_work


def _further(job: Job, work: Round, view: View) -> Sight | None:
    heads: list[ExecutionId] = []
    for line in job.of(LineKind.CANCEL_SIBLINGS):
        group = work.group(GroupKey(ExecutionId(line.execution), line.about))
        if group is not None:
            heads += [ExecutionId(id) for id in owed_by(group)[:CHUNK]]
    page = job.paged
    if page is None and not job.of(LineKind.CANCEL_SIBLINGS):
        return None
    opening = page is not None and page.kind is LineKind.OPEN_FLOW
    groups = view.members if opening else []
    owed = list(dict.fromkeys(heads))
    return Sight(flow=job.flow.id, heads=owed, leaving=owed, groups=groups, edges=ALL_EDGES)
