"""Clients of the simulation: they submit, cancel, replay, grow and look, whatever comes to mind.

Who gets no answer asks again with the same ids, or goes away. Refusals are answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.graph import Plan
from flowfabric.core.flow.model import START, CancelPolicy, GroupKey
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.lifecycle import Order
from flowfabric.core.operator import ExpireReason
from flowfabric.core.states import TERMINAL, LaneState, Reason, State
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow_cancelling import CancelStatus
from flowfabric.errors import (
    Conflict,
    Invalid,
    NotFound,
    Refused,
    ResultTimeout,
    StoreUnavailable,
)
from flowfabric.testing.simulation.ledger import Broken
from flowfabric.testing.simulation.process import Process
from flowfabric.testing.simulation.wishes import HOME, LANES, Wishes, is_crooked

# So many executions that have not ended are enough for anybody.
CROWD = 70
RECENT = 60
ANSWERS = (Refused, NotFound, Invalid, Conflict)
TRIES = 4
# Far longer than any dispatcher stays away.
CANCEL_MS = 600_000


class Client:
    """One client, as long as there is trouble; `engine` if it shares one with others, and then it
    mostly submits flows."""

    def __init__(self, process: Process, wishes: Wishes, engine: Engine | None = None) -> None:
        self._process = process
        self._world = process.world
        self._chance = process.world.chance
        self._engine = engine or Engine(process.store, clock=process.clock)
        self._wishes = wishes
        self._acts: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (30, self._submit),
            (20 if engine is None else 200, self._submit_flow),
            (5, self._cancel),
            (8, self._cancel_flow),
            (8, self._replay),
            (4, self._change),
            (3, self._pause),
            (3, self._grow),
            (1, self._close_lane),
            (4, self._look),
        ]

    def begin(self) -> None:
        self._process.begin(self._run())

    async def _run(self) -> None:
        weights = [weight for weight, _ in self._acts]
        while not self._world.is_calm:
            await self._world.timeline.rest(self._chance.random())
            act = self._chance.choices(self._acts, weights)[0][1]
            try:
                await act()
            except StoreUnavailable:
                self._world.ledger.counts["unanswered"] += 1
            except ANSWERS:
                self._world.ledger.counts["refused"] += 1

    async def _persist(self, call: Callable[[], Awaitable[object]]) -> None:
        """Until there is an answer, or patience runs out."""
        for _ in range(self._chance.randint(1, TRIES)):
            try:
                await call()
                return
            except StoreUnavailable:
                await self._world.timeline.rest(self._chance.random() * 2)

    # -- making -----------------------------------------------------------------------------

    async def _submit(self) -> None:
        if self._world.store.crowd < CROWD:
            orders = [self._wishes.order() for _ in range(self._chance.randint(1, 4))]
            await self._persist(lambda: self._submit_these(orders))

    async def _submit_these(self, orders: list[Order]) -> None:
        for answer in await self._engine.submit(orders):
            if answer.error is None:
                self._acknowledged(answer.id)

    def _acknowledged(self, id: ExecutionId) -> None:
        if not self._world.is_kept(id):
            raise Broken(f"{id} was acknowledged, and is not there")
        self._world.ledger.submitted(id)

    async def _submit_flow(self) -> None:
        """A new one, or one that somebody began, who may be at it still or dead."""
        begun = self._world.ledger.begun
        if begun and self._chance.random() < 0.4:
            plan = self._chance.choice(list(begun.values()))
        elif self._world.store.crowd < CROWD:
            plan = self._wishes.plan()
        else:
            return
        begun[plan.id] = plan
        await self._persist(lambda: self._submit_this(plan))

    async def _submit_this(self, plan: Plan) -> None:
        try:
            await self._engine.flows.submit(plan)
        except ANSWERS:
            self._world.ledger.begun.pop(plan.id, None)
            raise
        self._world.ledger.begun.pop(plan.id, None)
        if is_crooked(plan.policies.values()):
            raise Broken(f"flow {plan.id} has half a member in a quorum, and was accepted")
        self._world.ledger.flows[plan.id] = [order.id for order in plan.orders]
        self._world.ledger.counts["flows"] += 1
        for order in plan.orders:
            self._acknowledged(order.id)

    async def _grow(self) -> None:
        flow = self._some_flow()
        if flow is None or self._world.store.crowd >= CROWD:
            return
        order = self._wishes.member(flow)
        known = [row.id for row in self._world.store.members_of(flow)]
        links, policy = self._wishes.links(known, order.id)
        policies = {GroupKey(order.id, START): policy} if links and policy else {}
        new = Addition(orders=[order], links=links, policies=policies)
        await self._engine.flows.build.add(flow, new, request=self._world.request())
        self._acknowledged(order.id)

    # -- changing ---------------------------------------------------------------------------

    def _some(self, *, ended: bool) -> ExecutionId | None:
        rows = list(self._world.store.rows.values())[-RECENT:]
        fitting = [row.id for row in rows if (row.state in TERMINAL) is ended]
        return self._chance.choice(fitting) if fitting else None

    def _some_flow(self) -> FlowId | None:
        flows = self._world.store.flow_ids[-RECENT // 3 :]
        return self._chance.choice(flows) if flows else None

    def _running_flow(self) -> FlowId | None:
        """One that is worked on at this moment."""
        rows = list(self._world.store.rows.values())[-RECENT:]
        flows = [FlowId(row.flow) for row in rows if row.flow and row.state is State.ACTIVE]
        return self._chance.choice(flows) if flows else None

    async def _cancel(self) -> None:
        id = self._some(ended=False)
        if id is not None:
            await self._engine.cancel(id, "not needed", request=self._world.request())

    async def _cancel_flow(self) -> None:
        """Now and then it waits, and then nothing of the flow may be left that could start."""
        flow = self._running_flow() or self._some_flow()
        if flow is None:
            return
        policy = self._chance.choice((*CancelPolicy, *[CancelPolicy.CANCEL_PENDING] * 3))
        wait_ms = CANCEL_MS if self._chance.random() < 0.5 else None
        try:
            done = await self._engine.flows.cancel(flow, policy, wait_ms=wait_ms)
        except ResultTimeout as error:
            raise Broken(f"flow {flow} was not cancelled in {CANCEL_MS} ms") from error
        self._world.ledger.counts["flows cancelled"] += 1
        if wait_ms is not None and done.status is not CancelStatus.CANCELLED:
            raise Broken(f"the cancel of flow {flow} is said to be {done}")

    def _departing(self) -> ExecutionId | None:
        """One that may go at this moment, itself or with its flow."""
        store, now_ms = self._world.store, self._world.timeline.now_ms()
        for row in store.rows.values():
            flow = store.flow_of(FlowId(row.flow)) if row.flow else None
            purge_ms = flow.purge_ms if flow is not None else row.purge_ms
            if purge_ms is not None and purge_ms <= now_ms:
                return row.id
        return None

    async def _replay(self) -> None:
        id = self._departing() if self._chance.random() < 0.7 else None
        id = id or self._some(ended=True)
        if id is not None:
            downstream = self._chance.random() < 0.5
            request = self._world.request()
            await self._engine.replay(id, "again", downstream=downstream, request=request)

    async def _change(self) -> None:
        id = self._some(ended=False)
        if id is None:
            return
        request = self._world.request()
        match self._chance.randrange(4):
            case 0:
                priority = self._chance.randint(-9, 9)
                await self._engine.change_priority(id, priority, request=request)
            case 1:
                await self._engine.revoke(id, request=request)
            case 2:
                reason = ExpireReason.EXECUTION_DEADLINE
                await self._engine.expire(id, reason, request=request)
            case _:
                await self._engine.set_tags(id, {"seen": "yes"}, request=request)

    async def _pause(self) -> None:
        """An operator holds something back for a while. If he dies meanwhile, others free it."""
        id = self._some(ended=False)
        if id is not None:
            paused = Reason.PAUSED_BY_OPERATOR
            await self._engine.block(id, paused, request=self._world.request())
            await self._world.timeline.rest(self._chance.random() * 5)
            await self._engine.unblock(id, paused, request=self._world.request())

    async def _close_lane(self) -> None:
        lane = self._chance.choice((*LANES, HOME))
        await self._engine.set_lane(lane, self._chance.choice(list(LaneState)))
        await self._world.timeline.rest(self._chance.random() * 5)
        await self._persist(lambda: self._engine.set_lane(lane, LaneState.ACTIVE))

    # -- looking ----------------------------------------------------------------------------

    async def _look(self) -> None:
        flow, id = self._some_flow(), self._some(ended=False)
        if flow is not None:
            await self._engine.flows.counted(flow)
        if id is not None:
            await self._engine.read.explain(id)
