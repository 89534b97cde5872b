"""Doctor: looks through a store and names what is wrong. It repairs nothing.

Other processes go on meanwhile: a verdict is about one row, or about what was seen of a flow in one
moment, so that nobody is called stuck for having been on the way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import StrEnum

import msgspec

from flowfabric.core.explain import explain
from flowfabric.core.flow.views import Pending, Sight, Turn, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution, Malformed, Query
from flowfabric.core.promise import broken_promise, broken_wait
from flowfabric.core.states import TERMINAL, State
from flowfabric.engine.sweeping import report_of
from flowfabric.engine.unsettled import unsettled_flows
from flowfabric.errors import Corrupt, Refused
from flowfabric.printing import one_line
from flowfabric.store.clock import FollowingClock
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
# What others do to the server for no longer is not worth a word.
HINDRANCE_GRACE_MS = 60_000

OPEN = tuple(state for state in State if state not in TERMINAL)


class Kind(StrEnum):
    STUCK = "stuck"  # nothing will ever wake it
    PARKED = "parked"  # failed too often; an operator must look
    FAILING = "failing"  # failed, and is tried again later
    UNREADABLE = "unreadable"
    LATE = "late"  # somebody should have served it by now
    SLOWED = "slowed"  # a warning: all goes on, but slower the longer this lasts


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, in one sentence."""

    kind: Kind
    subject: str
    sentence: str


class DutyState(msgspec.Struct, frozen=True):
    """When a duty last ran, by whatever engine, and how long it is overdue."""

    name: str
    last_ms: int
    duration_ms: int
    processed: int
    errors: int
    lag_ms: int


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    executions: int
    flows: int
    timers_lag_ms: int
    dispatch_lag_ms: int
    duties: list[DutyState]
    findings: list[Finding]

    @property
    def is_well(self) -> bool:
        return all(each.kind is Kind.SLOWED for each in self.findings)


async def require_store(store: Store) -> None:
    """To look at a store must not make one."""
    if isinstance(store, Upkeep) and await store.unmigrated():
        raise Refused("this store is not set up, or is of an older version", hint="ff db migrate")


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

    async def examine(self) -> Diagnosis:
        self._clock.follow(await self._store.now())
        async for row in self._open_rows():
            self._executions += 1
            self._look_at(row)
        await self._find_troubled_flows()
        await self._look_at_flows()
        timers_lag_ms = await self._timers_lag_ms()
        dispatch_lag_ms = await self._dispatch_lag_ms()
        await self._look_at_others()
        return Diagnosis(
            executions=self._executions,
            flows=len(self._flows),
            timers_lag_ms=timers_lag_ms,
            dispatch_lag_ms=dispatch_lag_ms,
            duties=await self._duties(),
            findings=self._findings,
        )

    def _found(self, kind: Kind, subject: str, sentence: str) -> None:
        self._findings.append(Finding(kind, one_line(subject), one_line(sentence)))

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
        id = error.details.get("execution")
        self._found(Kind.UNREADABLE, str(id or "an execution"), str(error))
        return ExecutionId(id) if isinstance(id, str) and id != after else None

    def _look_at(self, row: Execution) -> None:
        now_ms = self._clock.now_ms()
        if row.flow:
            waiting = self._flows.setdefault(FlowId(row.flow), [])
            if row.state is State.BLOCKED_DEPENDENCIES:
                waiting.append(row.id)
        elif row.state is State.BLOCKED_DEPENDENCIES:
            self._found(Kind.STUCK, row.id, "waits for upstreams, and is of no flow")
        if row.parked:
            self._found(Kind.PARKED, row.id, explain(row, now_ms).sentence)
        elif row.failures:
            self._found(Kind.FAILING, row.id, f"its timer failed {row.failures} times")
        problem = broken_promise(row, now_ms)
        if problem:
            self._found(Kind.STUCK, row.id, problem)

    async def _find_troubled_flows(self) -> None:
        """Flows that no open execution leads to: all have ended, and that is not dispatched."""
        after = ""
        while True:
            flows, cursor, lost = await unsettled_flows(self._store, after, PAGE)
            for flow in flows:
                if flow.parked or flow.failures:
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
        for each in view.unreadable:
            self._found(Kind.UNREADABLE, sight.flow, f"{each.kind} {each.name}: {each.problem}")
        for id in sight.entering:
            head = view.heads.get(id)
            problem = broken_wait(head, view) if head is not None else ""
            if problem:
                self._found(Kind.STUCK, id, problem)

    async def _timers_lag_ms(self) -> int:
        for row in (await self._store.due(FAR_MS, PAGE)).rows:
            if isinstance(row, Malformed):
                told = f"its timer failed {row.failures} times: {row.problem}"
                self._found(Kind.UNREADABLE, row.id, told)
                continue
            lag_ms = max(self._clock.now_ms() - (row.due_ms or 0), 0)
            if lag_ms > TIMER_GRACE_MS:
                told = f"its timer passed {lag_ms} ms ago; is an engine running?"
                self._found(Kind.LATE, row.id, told)
            return lag_ms
        return 0

    async def _dispatch_lag_ms(self) -> int:
        now_ms = self._clock.now_ms()
        # A lease that is over at once: to look at a flow is not to take it from anybody.
        turn = Turn(limit=LOOK_AT_LINES, now_ms=now_ms, until_ms=0)
        pending = await self._store.pending(turn)
        readable = [each for each in pending if isinstance(each, Pending)]
        lines = [(line.at_ms, each.flow.id) for each in readable for line in each.lines]
        at_ms, flow = min(lines, default=(now_ms, ""))
        lag_ms = max(now_ms - at_ms, 0)
        if lag_ms > LINE_GRACE_MS:
            told = f"has had something to do for {lag_ms} ms; is an engine running?"
            self._found(Kind.LATE, flow, told)
        return lag_ms

    async def _look_at_others(self) -> None:
        if isinstance(self._store, Hinderable):
            for each in await self._store.hindrances(self._hindrance_grace_ms):
                self._found(Kind.SLOWED, each.subject, each.sentence)

    async def _duties(self) -> list[DutyState]:
        now_ms = self._clock.now_ms()
        states: list[DutyState] = []
        for shift in await self._store.shifts([], now_ms):
            report = report_of(shift)
            lag_ms = max(now_ms - report.last_ms - report.interval_ms, 0) if report.last_ms else 0
            states.append(
                DutyState(
                    shift.name,
                    report.last_ms,
                    report.duration_ms,
                    report.processed,
                    report.errors,
                    lag_ms,
                )
            )
            # With nothing to do for anybody there need not be an engine.
            if lag_ms > DUTY_GRACE_MS and self._executions:
                told = f"last ran {lag_ms + report.interval_ms} ms ago; is an engine running?"
                self._found(Kind.LATE, shift.name, told)
        return states


def _parts(ids: Sequence[ExecutionId]) -> list[Sequence[ExecutionId]]:
    """At most so many at a time; a flow of which nobody waits is looked at as well."""
    return [ids[start : start + PAGE] for start in range(0, len(ids), PAGE)] or [[]]
