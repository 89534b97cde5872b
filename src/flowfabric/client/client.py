"""Client: mints ids, joins submissions, hands out handles."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID, uuid5

import msgspec

from flowfabric.client.flow_handle import NO_DECODERS, Decoders, FlowHandle
from flowfabric.client.handle import Connect, Handle
from flowfabric.client.results import Results
from flowfabric.core.carried import Carrier, as_tags
from flowfabric.core.duration import When
from flowfabric.core.flow.graph import Plan
from flowfabric.core.flow.member_names import named_uuid
from flowfabric.core.flow.views import FlowQuery
from flowfabric.core.ids import (
    RANDOM_BITS,
    RUN_LENGTH,
    ExecutionId,
    FlowId,
    Namespace,
    execution_id,
    flow_partition,
    key_partition,
    run_of_uuids,
    run_partition,
    uuid7,
)
from flowfabric.core.lifecycle import Order
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.batcher import Batcher
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow_reading import FlowPage
from flowfabric.engine.submissions import Submitted
from flowfabric.errors import FlowFabricError
from flowfabric.forking import begin_here_and_in_children

R = TypeVar("R")

_FLOW_KEYS = UUID("6f1d9d0e-54a5-5c0b-9a55-0f3f1c1a7f10")

RANDOM_BYTES = (RANDOM_BITS + 7) // 8
SPARE_BITS = RANDOM_BYTES * 8 - RANDOM_BITS


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What to run and how; every field already checked. `name`: of a member in its graph."""

    kind: str
    payload: bytes
    lane: str
    name: str = ""
    policy: str = ""
    priority: int = 0
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    key: str | None = None
    delay: When | None = None
    deadline: When | None = None


class Chance:
    """Random bits from the system, fetched in blocks: asking for each id alone is slow."""

    def __init__(self) -> None:
        self._left: list[int] = []

    def bits(self) -> int:
        if not self._left:
            block = os.urandom(RANDOM_BYTES * BATCH_LIMIT)
            starts = range(0, len(block), RANDOM_BYTES)
            self._left = [
                int.from_bytes(block[start : start + RANDOM_BYTES]) >> SPARE_BITS
                for start in starts
            ]
        return self._left.pop()


class Client:
    """Submits and waits through one engine."""

    def __init__(
        self,
        engine: Engine,
        carrier: Carrier | None = None,
        *,
        connect: Connect | None = None,
    ) -> None:
        self.engine = engine
        self.results = Results(engine)
        self._carrier = carrier
        self._connect: Connect = connect or self._here
        begin_here_and_in_children(self._begin)

    def _begin(self) -> None:
        self._submits: Batcher[Order, Submitted] = Batcher(self._submit, limit=BATCH_LIMIT)
        self._chance = Chance()
        self._minted = secrets.randbelow(1 << 16) * RUN_LENGTH

    async def _here(self) -> Client:
        return self

    async def start(self, request: Request, decode: Callable[[bytes], R]) -> Handle[R]:
        """Submit one; calls at the same time share one call to the store."""
        order = self._new_order(request)
        self.results.expect([order.id])
        try:
            submitted = await self._submits.submit(order)
        except BaseException:
            self.results.forget([order.id])
            raise
        return self._handle(order, submitted, decode)

    async def start_many(
        self, requests: Sequence[tuple[Request, Callable[[bytes], R]]]
    ) -> list[Handle[R]]:
        """Submit many, in order. The first refusal is raised when all others are submitted.

        Its details say which executions were made, and how many were refused.
        """
        handles: list[Handle[R]] = []
        refused: list[FlowFabricError] = []
        for start in range(0, len(requests), BATCH_LIMIT):
            batch = requests[start : start + BATCH_LIMIT]
            orders = [self._new_order(request) for request, _ in batch]
            self.results.expect([order.id for order in orders])
            try:
                answers = await self.engine.submit(orders)
            except BaseException:
                self.results.forget([order.id for order in orders])
                raise
            for (_, decode), order, submitted in zip(batch, orders, answers, strict=True):
                try:
                    handles.append(self._handle(order, submitted, decode))
                except FlowFabricError as error:
                    refused.append(error)
        if refused:
            made = [handle.id for handle in handles]
            refused[0].details |= {"started": made, "refused": len(refused)}
            raise refused[0]
        return handles

    def handle(self, id: ExecutionId, decode: Callable[[bytes], R]) -> Handle[R]:
        return Handle(id, self._connect, decode)

    # -- flows ------------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        return self.engine.namespace

    def now_ms(self) -> int:
        return self.engine.clock.now_ms()

    def mint_flow(self, key: str | None) -> FlowId:
        """A new flow, or the one that this key always means."""
        if key is None:
            return FlowId(uuid7(self.now_ms(), self._chance.bits()))
        return FlowId(str(uuid5(_FLOW_KEYS, f"{self.namespace}\0{key}")))

    def member_orders(
        self,
        flow: FlowId,
        requests: Sequence[Request],
        *,
        is_keyed: bool,
        now_ms: int | None = None,
    ) -> list[Order]:
        """New members of a flow. The id of a named one follows from its name; the others of a keyed
        flow are always the same, by their places."""
        now_ms = self.now_ms() if now_ms is None else now_ms
        if is_keyed:
            uuids = [str(uuid5(UUID(flow), str(place))) for place in range(len(requests))]
        else:
            uuids = run_of_uuids(uuid7(now_ms, self._chance.bits()), len(requests))
        for place, request in enumerate(requests):
            if request.name:
                uuids[place] = named_uuid(flow, request.name)
        begin = execution_id(flow_partition(flow, self.engine.counts), "")
        return [
            self._order(request, ExecutionId(begin + uuid), now_ms)
            for request, uuid in zip(requests, uuids, strict=True)
        ]

    async def submit_flow(self, plan: Plan, named: Decoders = NO_DECODERS) -> FlowHandle:
        """Make the whole flow; all its members can be waited for from the beginning. `named`: how
        to read the results of its named members."""
        members = [order.id for order in plan.orders]
        self.results.expect(members)
        made = None
        try:
            made = await self.engine.flows.submit(plan)
        finally:
            if made is None or not made.created:
                self.results.forget(members)
        return self.flow_handle(plan.id, members, named)

    def flow_handle(
        self,
        id: FlowId,
        members: Sequence[ExecutionId] = (),
        named: Decoders = NO_DECODERS,
    ) -> FlowHandle:
        return FlowHandle(
            id, self._connect, members, named=named, counts=lambda: self.engine.counts
        )

    async def flows(self, query: FlowQuery) -> FlowPage:
        """A page of flows in the order of their ids; of this namespace unless another is named."""
        if query.namespace is None:
            query = msgspec.structs.replace(query, namespace=self.namespace)
        return await self.engine.flows.read.find(query)

    async def close(self) -> None:
        await self._submits.drain()
        await self.results.close()

    async def _submit(self, orders: Sequence[Order]) -> Sequence[Submitted | Exception]:
        return await self.engine.submit(orders)

    def _handle(
        self, order: Order, submitted: Submitted, decode: Callable[[bytes], R]
    ) -> Handle[R]:
        if not submitted.created:
            self.results.forget([order.id])
        if submitted.error is not None:
            raise submitted.error
        return self.handle(submitted.id, decode)

    def _new_order(self, request: Request) -> Order:
        now_ms = self.now_ms()
        return self._order(request, self._mint(request.key, now_ms), now_ms)

    def _order(self, request: Request, id: ExecutionId, now_ms: int) -> Order:
        delay, deadline = request.delay, request.deadline
        return Order(
            id=id,
            namespace=self.engine.namespace,
            lane=request.lane,
            kind=request.kind,
            payload=request.payload,
            priority=request.priority,
            policy=request.policy,
            tags=self._carried(request.tags),
            delay_until_ms=None if delay is None else _later(delay, now_ms),
            deadline_ms=None if deadline is None else deadline.at(now_ms),
            key=request.key,
            digest=_digest(request) if request.key else "",
            asked_ms=now_ms,
        )

    def _carried(self, tags: dict[str, str]) -> dict[str, str]:
        """These tags with the context of who submits, if the app has a carrier for it."""
        return tags if self._carrier is None else as_tags(self._carrier.save()) | tags

    def _mint(self, key: str | None, now_ms: int) -> ExecutionId:
        """With a key its partition follows from the key; else runs of ids share a partition."""
        counts = self.engine.counts
        if key is None:
            self._minted += 1
            partition = run_partition(self._minted, counts)
        else:
            partition = key_partition(Namespace(self.engine.namespace), key, counts)
        return execution_id(partition, uuid7(now_ms, self._chance.bits()))


def _later(delay: When, now_ms: int) -> int | None:
    """The moment to wait for; None if it is here."""
    until_ms = delay.at(now_ms)
    return until_ms if until_ms > now_ms else None


def _digest(request: Request) -> str:
    return hashlib.sha256(request.kind.encode() + b"\0" + request.payload).hexdigest()
