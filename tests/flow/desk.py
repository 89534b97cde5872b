"""A desk for flows: submits plans, ends members by name, dispatches. No test lives here."""

from __future__ import annotations

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.graph import Plan
from flowfabric.core.flow.inputs import Passed
from flowfabric.core.flow.model import Edge, Flow, Group, Line, LineKind
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import FlowId
from flowfabric.core.lifecycle import Failure
from flowfabric.core.model import Execution, Lease
from flowfabric.core.operator import ExpireReason
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.errors import Corrupt
from flowfabric.testing.flow_invariants import Whole
from flowfabric.testing.flows import FLOW, member
from tests.engine.desk import Desk

BROKEN = Failure("broke", fatal=True)


class FlowDesk(Desk):
    """One engine with its dispatcher; members are called by the letters of their plan."""

    def another(self) -> FlowDesk:
        desk = FlowDesk(self.store, self.clock)
        desk._tokens = self._tokens
        return desk

    @property
    def dispatcher(self) -> Dispatcher:
        return self.engine.dispatcher

    async def draw(self, plan: Plan) -> Plan:
        made = await self.engine.flows.submit(plan)
        assert made.created
        return plan

    async def start(self, name: str | int, flow: FlowId = FLOW) -> Lease:
        return await self.take(member(name, flow))

    async def end(self, *names: str | int, outcome: str = "success", flow: FlowId = FLOW) -> None:
        """Run these members to an end, without dispatching it."""
        for name in names:
            id = member(name, flow)
            match outcome:
                case "success":
                    result = f'"{name}"'.encode()
                    await self.engine.complete(await self.take(id), result)
                case "failed":
                    await self.engine.fail(await self.take(id), BROKEN)
                case "cancelled":
                    await self.engine.cancel(id, "enough")
                case "expired":
                    await self.engine.expire(id, ExpireReason.EXECUTION_DEADLINE)
                case _:
                    raise ValueError(outcome)

    async def dispatch(self) -> None:
        await self.dispatcher.drain()

    async def handed(self, lease: Lease) -> list[Passed]:
        """What a member gets from its upstreams, all of which can be read."""
        given = (await self.engine.flows.inputs([lease]))[lease.id]
        assert not isinstance(given, Corrupt)
        return given

    async def die_after_ends(self, flow: FlowId = FLOW) -> None:
        """Act on the ends that are there and die: the flow stays taken, its next lines open."""
        (job,) = await self.dispatcher._take([flow])
        job.lines = [line for line in job.lines if line.kind is LineKind.ENDED]
        assert await self.dispatcher._commit([job]) == [True]

    async def change(self, *groups: Group) -> None:
        """Write these groups as they are."""
        flow = await self.flow(groups[0].flow)
        changes = Changeset(flows=[FlowPatch(flow.id, flow.rev, {})], groups=groups)
        assert await self.store.commit(changes, self.clock.now_ms())

    async def ended(self, *names: str | int, outcome: str = "success", flow: FlowId = FLOW) -> None:
        """Run these members to an end, and dispatch it."""
        await self.end(*names, outcome=outcome, flow=flow)
        await self.dispatch()

    async def state(self, name: str | int, flow: FlowId = FLOW) -> State:
        return (await self.head(member(name, flow))).state

    async def states(self, names: str, flow: FlowId = FLOW) -> dict[str, str]:
        return {name: str(await self.state(name, flow)) for name in names}

    async def member(self, name: str | int, flow: FlowId = FLOW) -> Execution:
        return await self.head(member(name, flow))

    async def flow(self, flow: FlowId = FLOW) -> Flow:
        return await self.engine.flows.flow(flow)

    async def view(self, flow: FlowId = FLOW) -> View:
        return (await self.store.graph([Sight(flow=flow, lines=True, whole=True)]))[0]

    async def lines(self, flow: FlowId = FLOW) -> list[Line]:
        return (await self.view(flow)).lines

    async def edges(self, flow: FlowId = FLOW) -> dict[tuple[str, str], Edge]:
        edges = (await self.engine.flows.picture(flow)).edges
        return {(edge.upstream, edge.downstream): edge for edge in edges}

    async def edge(self, upstream: str, downstream: str, flow: FlowId = FLOW) -> Edge:
        sight = Sight(flow=flow, entering=[member(downstream, flow)])
        edges = (await self.store.graph([sight]))[0].edges
        return next(edge for edge in edges if edge.upstream == member(upstream, flow))

    async def group(self, downstream: str | int, flow: FlowId = FLOW) -> Group:
        sight = Sight(flow=flow, groups=[member(downstream, flow)])
        groups = (await self.store.graph([sight]))[0].groups
        assert len(groups) == 1
        return groups[0]

    async def whole(self, flow: FlowId = FLOW) -> Whole:
        """All records of a flow that nobody writes to meanwhile."""
        seen = await self.engine.flows.picture(flow)
        return Whole(
            flow=seen.flow,
            members=seen.members,
            edges=seen.edges,
            groups=seen.groups,
            lines=await self.lines(flow),
        )

    async def counters(self, flow: FlowId = FLOW) -> dict[str, int]:
        found = await self.flow(flow)
        named = ("completed", "failed", "cancelled", "expired", "skipped")
        return {name: getattr(found, name) for name in named if getattr(found, name)}
