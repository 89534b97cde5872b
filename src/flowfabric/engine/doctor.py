"""Doctor: looks through a store and names what is wrong. It repairs nothing.

Other processes go on meanwhile: a verdict is about one row, or about what was seen of a flow in one
moment, so that nobody is called stuck for having been on the way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence

from flowfabric.core.explain import explain
from flowfabric.core.flow.views import Pending, Sight, Turn, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.lifecycle import UNREAD
from flowfabric.core.model import Execution, Lane, Malformed, Query
from flowfabric.core.promise import broken_promise, broken_wait
from flowfabric.core.states import TERMINAL, State
from flowfabric.engine.deep_look import DeepLook
from flowfabric.engine.diagnosis import Diagnosis, DutyState, Finding, Kind
from flowfabric.engine.lanes import SERVING
from flowfabric.engine.progress import Queues, stalled
from flowfabric.engine.registry import Registry
from flowfabric.engine.sweeping import report_of
from flowfabric.engine.unsettled import unsettled_flows
from flowfabric.errors import Corrupt, FlowFabricError, Refused
from flowfabric.printing import one_line, with_public_ids
from flowfabric.store.clock import FollowingClock
from flowfabric.store.damage import unreadable_id
from flowfabric.store.protocol import Store
from flowfabric.store.upkeep import Hinderable, Upkeep

PAGE = 500
FAR_MS = 10**14
FLOWS = 100
LOOK_AT_LINES = 50
# What is served within these was never late: a timekeeper and a dispatcher need no longer.
TIMER_GRACE_MS = 5_000
LINE_GRACE_MS = 15_000
# Beyond its interval a duty may be under way, or be taken over from somebody who died.
DUTY_GRACE_MS = 30_000
# Work that can be done is done within these, or nobody does it.
STALL_GRACE_MS = 30_000
CLAIM_GRACE_MS = 60_000
# What others do to the server for no longer is not worth a word.
HINDRANCE_GRACE_MS = 60_000

OPEN = tuple(state for state in State if state not in TERMINAL)


async def require_store(store: Store) -> None:
    """To look at a store must not make one."""
    if isinstance(store, Upkeep) and await store.unmigrated():
        raise Refused(
            "the store is not set up, or has an older version", hint="run `ff db migrate`"
        )


class Doctor:
    """One examination of one store."""

    def __init__(
        self,
        store: Store,
        clock: FollowingClock,
        *,
        hindrance_grace_ms: int = HINDRANCE_GRACE_MS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._hindrance_grace_ms = hindrance_grace_ms
        self._findings: list[Finding] = []
        self._executions = 0
        self._flows: dict[FlowId, list[ExecutionId]] = {}
        self._queues = Queues()
        self._timers_lag_ms = 0
        self._dispatch_lag_ms = 0
        self._duties: list[DutyState] = []

    async def examine(self, *, deep: bool = False) -> Diagnosis:
        """`deep`: also what is over, and what the database can say about its own pages."""
        self._clock.follow(await self._store.now())
        await self._part("executions", self._look_at_rows())
        await self._part("flows", self._find_troubled_flows())
        await self._part("flows", self._look_at_flows())
        await self._part("timers", self._look_at_timers())
        await self._part("dispatch", self._look_at_dispatch())
        await self._part("lanes", self._look_at_queues())
        await self._part("duties", self._look_at_duties())
        await self._part("server", self._look_at_others())
        if deep:
            await self._part("store", DeepLook(self._store, self._found).examine())
        return Diagnosis(
            executions=self._executions,
            flows=len(self._flows),
            timers_lag_ms=self._timers_lag_ms,
            dispatch_lag_ms=self._dispatch_lag_ms,
            duties=self._duties,
            findings=list(dict.fromkeys(self._findings)),
        )

    async def _part(self, name: str, look: Awaitable[None]) -> None:
        """A part of the examination that fails is a finding, and no reason to skip the others."""
        try:
            await look
        except Exception as error:
            problem = str(error) if isinstance(error, FlowFabricError) else repr(error)
            self._found(Kind.UNEXAMINED, name, f"could not be examined: {problem}")

    async def _look_at_rows(self) -> None:
        async for row in self._open_rows():
            self._executions += 1
            self._look_at(row)

    def _found(self, kind: Kind, subject: str, sentence: str) -> None:
        told = (with_public_ids(one_line(text)) for text in (subject, sentence))
        self._findings.append(Finding(kind, *told))

    async def _open_rows(self) -> AsyncIterator[Execution]:
        """Every execution that is not over; one that cannot be read is named and passed."""
        after: ExecutionId | None = None
        limit = PAGE
        while True:
            try:
                page = await self._store.find(Query(states=OPEN, after=after, limit=limit))
            except Corrupt as error:
                if limit > 1:
                    limit = max(limit // 8, 1)
                    continue
                after = self._unreadable(error, after)
                if after is None:
                    return
                continue
            for row in page:
                yield row
            if len(page) < limit:
                return
            after, limit = page[-1].id, PAGE

    def _unreadable(self, error: Corrupt, after: ExecutionId | None) -> ExecutionId | None:
        id = ExecutionId(unreadable_id(error))
        self._found(Kind.UNREADABLE, id or "an execution", str(error))
        return id if id and id != after else None

    def _look_at(self, row: Execution) -> None:
        now_ms = self._clock.now_ms()
        self._queues.see(row)
        if row.flow:
            waiting = self._flows.setdefault(FlowId(row.flow), [])
            if row.state is State.BLOCKED_DEPENDENCIES:
                waiting.append(row.id)
        elif row.state is State.BLOCKED_DEPENDENCIES:
            told = "is blocked on dependencies but belongs to no flow"
            self._found(Kind.STUCK, row.id, told)
        if row.parked:
            self._found(Kind.PARKED, row.id, explain(row, now_ms).sentence)
        elif row.failures:
            self._found(Kind.FAILING, row.id, f"its timer failed {row.failures} times")
        if row.outcome_category == UNREAD and row.state is not State.ACTIVE:
            self._found(Kind.STALLED, row.id, explain(row, now_ms).sentence)
        problem = broken_promise(row, now_ms)
        if problem:
            self._found(Kind.STUCK, row.id, problem)

    async def _find_troubled_flows(self) -> None:
        """Also flows that no open execution leads to: all have ended, and that is not counted."""
        after = ""
        while True:
            flows, cursor, lost = await unsettled_flows(self._store, after, PAGE)
            for flow in flows:
                self._flows.setdefault(flow.id, [])
            if lost and not flows:
                self._found(Kind.UNREADABLE, cursor or "a flow", "it cannot be read")
            if cursor <= after:
                return
            after = cursor

    async def _look_at_flows(self) -> None:
        sights = [
            Sight(flow=flow, heads=some, entering=some, ends=True, lines=True)
            for flow, waiting in self._flows.items()
            for some in _parts(waiting)
        ]
        for start in range(0, len(sights), FLOWS):
            some = sights[start : start + FLOWS]
            views = await self._store.graph(some)
            for sight, view in zip(some, views, strict=True):
                self._look_at_flow(sight, view)

    def _look_at_flow(self, sight: Sight, view: View) -> None:
        if view.flow is not None and view.flow.parked:
            self._found(Kind.PARKED, sight.flow, f"flow: {view.flow.parked}")
        elif view.flow is not None and view.flow.failures:
            told = f"flow: its dispatch failed {view.flow.failures} times"
            self._found(Kind.FAILING, sight.flow, told)
        problem = stalled(view, self._clock.now_ms(), STALL_GRACE_MS)
        if problem:
            self._found(Kind.STALLED, sight.flow, problem)
        for each in view.unreadable:
            self._found(Kind.UNREADABLE, sight.flow, f"{each.kind} {each.name}: {each.problem}")
        for id in sight.entering:
            head = view.heads.get(id)
            problem = broken_wait(head, view) if head is not None else ""
            if problem:
                self._found(Kind.STUCK, id, problem)

    async def _look_at_timers(self) -> None:
        for row in (await self._store.due(FAR_MS, PAGE)).rows:
            if isinstance(row, Malformed):
                told = f"its timer failed {row.failures} times: {row.problem}"
                self._found(Kind.UNREADABLE, row.id, told)
                continue
            lag_ms = self._timers_lag_ms = max(self._clock.now_ms() - (row.due_ms or 0), 0)
            if lag_ms > TIMER_GRACE_MS:
                told = f"its timer passed {lag_ms} ms ago; is an engine running?"
                self._found(Kind.LATE, row.id, told)
            return

    async def _look_at_dispatch(self) -> None:
        now_ms = self._clock.now_ms()
        # A lease that is over at once: to look at a flow is not to take it from anybody.
        turn = Turn(limit=LOOK_AT_LINES, now_ms=now_ms, until_ms=0)
        pending = await self._store.pending(turn)
        readable = [each for each in pending if isinstance(each, Pending)]
        lines = [(line.at_ms, each.flow.id) for each in readable for line in each.lines]
        at_ms, flow = min(lines, default=(now_ms, ""))
        lag_ms = self._dispatch_lag_ms = max(now_ms - at_ms, 0)
        is_known = any(each.subject == flow for each in self._findings)
        if lag_ms > LINE_GRACE_MS and not is_known:
            told = f"has had open work for {lag_ms} ms; is an engine running?"
            self._found(Kind.LATE, flow, told)

    async def _look_at_queues(self) -> None:
        """Lanes that hand out work which nobody takes."""
        lanes: list[Lane] = []
        while page := await self._store.lanes(lanes[-1].name if lanes else "", PAGE):
            lanes += page
        for lane in lanes:
            if lane.problem:
                self._found(Kind.UNREADABLE, f"lane {lane.name}", lane.problem)
        serving = {lane.name for lane in lanes if lane.state in SERVING}
        registry = Registry(self._store, self._clock)
        workers = {name: await registry.live(name) for name in self._queues.namespaces}
        now_ms = self._clock.now_ms()
        for queue in self._queues.unclaimed(now_ms, CLAIM_GRACE_MS, serving, workers):
            held = Query(
                namespace=queue.namespace,
                lane=queue.lane,
                kind=queue.task,
                states=(State.ACTIVE,),
                limit=1,
            )
            # Somebody may have begun to work while the rows were read.
            if queue.is_unserved or not await self._store.find(held):
                self._found(Kind.STALLED, f"lane {queue.lane}", queue.sentence)

    async def _look_at_others(self) -> None:
        if isinstance(self._store, Hinderable):
            for each in await self._store.hindrances(self._hindrance_grace_ms):
                self._found(Kind.SLOWED, each.subject, each.sentence)

    async def _look_at_duties(self) -> None:
        now_ms = self._clock.now_ms()
        for shift in await self._store.shifts([], now_ms):
            report = report_of(shift)
            lag_ms = max(now_ms - report.last_ms - report.interval_ms, 0) if report.last_ms else 0
            self._duties.append(
                DutyState(
                    shift.name,
                    report.last_ms,
                    report.duration_ms,
                    report.processed,
                    report.errors,
                    lag_ms,
                )
            )
            if report.errors:
                told = f"its last cycle failed for {report.errors} records; see the log"
                self._found(Kind.FAILING, shift.name, told)
            # With nothing to do for anybody there need not be an engine.
            if lag_ms > DUTY_GRACE_MS and self._executions:
                told = f"last ran {lag_ms + report.interval_ms} ms ago; is an engine running?"
                self._found(Kind.LATE, shift.name, told)


def _parts(ids: Sequence[ExecutionId]) -> list[Sequence[ExecutionId]]:
    """At most so many at a time; a flow of which nobody waits is looked at as well."""
    return [ids[start : start + PAGE] for start in range(0, len(ids), PAGE)] or [[]]
