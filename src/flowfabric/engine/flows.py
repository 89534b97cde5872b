"""Flows: submitting whole graphs, looking at them, cancelling them.

A small graph is one commit. A big one is staged in portions that nobody sees, and the last commit
opens it: at that moment everything is there, before it nothing is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from flowfabric.core.exact import word
from flowfabric.core.flow.cancel import CANCELLED
from flowfabric.core.flow.dispatch import Advanced, NoOp
from flowfabric.core.flow.gaps import missing_members
from flowfabric.core.flow.graph import Drawn, Plan, draw, lateness
from flowfabric.core.flow.inputs import Passed
from flowfabric.core.flow.model import (
    CancelPolicy,
    Edge,
    Flow,
    Group,
    Line,
    LineKind,
)
from flowfabric.core.flow.summary import FlowSnapshot, Summary, is_unjudged, snapshot
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import ExecutionId, FlowId, PartitionCounts
from flowfabric.core.model import Execution, Lease, without_token
from flowfabric.core.transition import Changeset
from flowfabric.engine.batcher import Batcher
from flowfabric.engine.conflict import persistently
from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.engine.flow_building import FlowBuilding
from flowfabric.engine.flow_cancelling import (
    PAUSE_MAX_SECONDS,
    PAUSE_SECONDS,
    Backlog,
    FlowCancel,
    FlowCancelling,
)
from flowfabric.engine.flow_outcomes import FlowOutcomes
from flowfabric.engine.flow_reading import FlowReading
from flowfabric.engine.flow_replaying import FlowReplaying
from flowfabric.engine.flow_staging import SMALL, FlowStaging, require_same
from flowfabric.engine.flow_writes import FlowWrites
from flowfabric.engine.inputs import Inputs, inputs
from flowfabric.engine.isolation import isolated
from flowfabric.engine.known_flows import KnownFlows
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.learning import Learning
from flowfabric.engine.looking import look, require_whole
from flowfabric.errors import (
    Conflict,
    InvalidInput,
    LaneClosed,
    StoreUnavailable,
)
from flowfabric.store.clock import FollowingClock
from flowfabric.store.damage import unreadable_part
from flowfabric.store.protocol import Store

TOGETHER = 2 * SMALL
# While the store writes some, the next are drawn.
FLIGHTS = 2
PAGE = 1_000


class SubmittedFlow(msgspec.Struct, frozen=True):
    """The flow that exists now; `created` is False when an earlier submit made it."""

    id: FlowId
    created: bool


class Picture(msgspec.Struct, frozen=True):
    """A whole flow in one moment."""

    flow: Flow
    members: list[Execution]
    edges: list[Edge]
    groups: list[Group]


class Flows:
    """The verbs about flows."""

    def __init__(
        self,
        store: Store,
        clock: FollowingClock,
        lanes: Lanes,
        dispatcher: Dispatcher,
        *,
        known: KnownFlows,
    ) -> None:
        self._kept = known
        self.learning = Learning(store, known)
        self.counts = PartitionCounts()
        self._store = store
        self._clock = clock
        self._lanes = lanes
        self._dispatcher = dispatcher
        self._writes = FlowWrites(store, clock)
        self._staging = FlowStaging(store, clock)
        self._outcomes = FlowOutcomes(store)
        self._submits: Batcher[Plan, bool] = Batcher(
            self._submit, limit=TOGETHER, weigh=_size, in_flight=FLIGHTS
        )
        self.build = FlowBuilding(self._writes, lanes)
        self.replaying = FlowReplaying(self._writes)
        self.read = FlowReading(store, clock)
        self._cancelling = FlowCancelling(self._writes, dispatcher)

    async def submit(self, plan: Plan) -> SubmittedFlow:
        """Make the whole flow, or nothing. Repeating it answers the flow that is there."""
        closed = await self._lanes.closed({order.lane for order in plan.orders})
        for lane, state in closed.items():
            raise LaneClosed(f"lane '{lane}' is {state}", field="lane")
        late = lateness(plan, self._clock.now_ms())
        if late is not None:
            return await self._known(plan, late)
        if _size(plan) > SMALL:
            return SubmittedFlow(plan.id, created=await self._staging.stage(plan, self.counts))
        done = await self._submits.submit(plan)
        return SubmittedFlow(plan.id, created=True) if done else await self._known(plan)

    async def _submit(self, plans: Sequence[Plan]) -> list[bool | Exception]:
        """Small graphs of many callers in one call; one that is refused spoils no other."""
        answers: dict[int, bool | Exception] = {}
        left = dict(enumerate(plans))
        while left:
            some = _apart(left)
            made = await self._submit_apart(some)
            answers |= made
            left = {place: plan for place, plan in left.items() if place not in some}
        return [answers[place] for place in range(len(plans))]

    async def _submit_apart(self, plans: Mapping[int, Plan]) -> dict[int, bool | Exception]:
        async def once(_: int) -> dict[int, bool | Exception]:
            now_ms = self._clock.now_ms()
            answers: dict[int, bool | Exception] = {}
            drawn: dict[int, Changeset] = {}
            for place, plan in plans.items():
                try:
                    drawn[place] = _whole(draw(plan, now_ms, self.counts))
                except Exception as error:
                    answers[place] = error
            made, lost = await isolated(list(drawn.items()), self._make)
            return answers | dict(made) | {place: error for (place, _), error in lost}

        return await persistently(self._clock, once)

    async def _make(self, drawn: Sequence[tuple[int, Changeset]]) -> list[tuple[int, bool]]:
        batch = [changes for _, changes in drawn]
        made = await self._store.commit_each(batch, self._clock.now_ms())
        for changes, is_made in zip(batch, made, strict=True):
            if is_made:
                self._kept.keep(changes)
        return [(place, is_made) for (place, _), is_made in zip(drawn, made, strict=True)]

    async def _known(
        self, plan: Plan, late: InvalidInput | StoreUnavailable | None = None
    ) -> SubmittedFlow:
        """Something of it was there: the same flow, another one, or a member of its own. If it is
        too late to make it, only a whole flow is an answer."""
        view = await look(self._store, Sight(flow=plan.id))
        if view.flow is None:
            raise late or InvalidInput(
                "a member already exists", field="execution_id", hint="mint new ids"
            )
        require_same(view.flow, plan)
        if not view.flow.is_open:
            raise late or Conflict(f"flow {plan.id} is being removed", details={"flow": plan.id})
        return SubmittedFlow(plan.id, created=False)

    async def flow(self, id: FlowId) -> Flow:
        """The flow itself, or `FlowNotFound`."""
        return (await self._writes.view(Sight(flow=id)))[0]

    async def status(self, id: FlowId) -> FlowSnapshot:
        """The flow and how its members stand, counted in the same moment."""
        flow, view = await self._writes.view(Sight(flow=id, tally=True, lines=True))
        seen = snapshot(flow, view.tally, self._clock.now_ms(), view.lines)
        if not is_unjudged(seen):
            return seen
        return msgspec.structs.replace(seen, outcome=await self._outcomes.judge(id))

    async def summary(self, id: FlowId) -> Summary:
        """How many of its members are in which public state now, and what that makes of it."""
        return (await self.status(id)).summary

    async def counted(self, id: FlowId) -> Flow:
        """The flow once its counters know of the ends that have happened; whoever asks helps.

        Ends that are put off because of trouble are not waited for.
        """
        pause = PAUSE_SECONDS
        while True:
            flow, view = await self._writes.view(Sight(flow=id, lines=True))
            now_ms = self._clock.now_ms()
            due = [line for line in view.lines if line.next_try_ms <= now_ms]
            ended = [line for line in due if line.kind is LineKind.ENDED]
            if not ended or flow.parked or flow.next_try_ms > now_ms:
                return flow
            if isinstance(await self._dispatched(ended[0]), NoOp):
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_SECONDS)

    async def _dispatched(self, line: Line) -> Advanced | NoOp:
        try:
            return await self._dispatcher.dispatch(line)
        except Conflict:
            return NoOp("other engines are changing the flow")

    async def picture(self, id: FlowId) -> Picture:
        """All of it: members, edges, groups."""
        flow, view = await self._writes.whole_view(Sight(flow=id, whole=True))
        ids = await self.members(id)
        heads: dict[ExecutionId, Execution] = {}
        groups: list[Group] = []
        for start in range(0, len(ids), PAGE):
            some = ids[start : start + PAGE]
            _, part = await self._writes.whole_view(Sight(flow=id, heads=some, groups=some))
            heads |= part.heads
            groups.extend(part.groups)
        everything = Sight(flow=id, whole=True, entering=ids, ends=True)
        seen = View(flow=flow, edges=view.edges, groups=groups, heads=heads, members=ids)
        require_whole(everything, seen, self._clock.now_ms())
        members = [without_token(heads[each]) for each in ids]
        return Picture(flow, members, view.edges, groups)

    async def require_readable(self, id: FlowId) -> None:
        """`Corrupt` if a record of the flow cannot be read: then it may never end."""
        await self.picture(id)

    async def members(self, id: FlowId) -> list[ExecutionId]:
        """Everybody in it, in the order of their ids; `Corrupt` if there should be more."""
        before = (await self._writes.view(Sight(flow=id)))[0]
        found = await self.read.everybody(id)
        after = (await self._writes.view(Sight(flow=id)))[0]
        # Whoever joins meanwhile may be in a page that was read before.
        if before.rev == after.rev:
            for lost in missing_members(after, len(found), self._clock.now_ms()):
                raise unreadable_part(id, lost)
        return found

    async def cancel(
        self,
        id: FlowId,
        policy: CancelPolicy = CancelPolicy.CANCEL_ALL,
        reason: str = CANCELLED,
        *,
        wait_ms: int | None = None,
    ) -> FlowCancel:
        """Take no more members, and cancel those that the policy names: in the background, or at
        most so long while the caller waits. `ResultTimeout` says that it goes on without him."""
        wanted = word(CancelPolicy, policy, "policy")
        return await self._cancelling.cancel(id, wanted, reason, wait_ms=wait_ms)

    async def wait_cancelled(self, id: FlowId, wait_ms: int) -> None:
        """Until somebody has cancelled the flow and nobody is owed a cancel any more."""
        await self._cancelling.wait(id, wait_ms)

    async def backlog(self, id: FlowId, *, limit: int = PAGE) -> Backlog:
        """What the cancel of a flow has to do yet."""
        return await self._cancelling.backlog(id, limit=limit)

    async def inputs(self, leases: Sequence[Lease]) -> Inputs:
        """What these members are handed by their upstreams: the same in every attempt. Whoever
        cannot be handed all of it has the error instead."""
        found: Inputs = {**self.known_inputs(leases)}
        unknown = [lease for lease in leases if lease.id not in found]
        return found | await inputs(self._store, unknown, self.learning.begin)

    def known_inputs(self, leases: Sequence[Lease]) -> dict[ExecutionId, list[Passed]]:
        """The same for those whose flow is known here, without asking anybody."""
        return {
            lease.head.id: given
            for lease in leases
            if (given := self._kept.inputs(lease)) is not None
        }

    async def owed(self, id: FlowId, limit: int = PAGE) -> list[ExecutionId]:
        """Members of a cancelled flow that its cancel has not reached yet."""
        return (await self.backlog(id, limit=limit)).owed


def _size(plan: Plan) -> int:
    """How many records it has: members, edges, and a group for each that waits."""
    return len(plan.orders) + len(plan.links) + len({link.downstream for link in plan.links})


def _apart(plans: Mapping[int, Plan]) -> dict[int, Plan]:
    """Those that have no record in common; the same flow twice is for two calls."""
    found: dict[int, Plan] = {}
    seen: set[str] = set()
    for place, plan in plans.items():
        ids = {str(plan.id), *(order.id for order in plan.orders)}
        if seen.isdisjoint(ids):
            found[place] = plan
        seen |= ids
    return found


def _whole(drawn: Drawn) -> Changeset:
    return Changeset(
        new_flows=[drawn.flow], members=drawn.members, edges=drawn.edges, groups=drawn.groups
    )
