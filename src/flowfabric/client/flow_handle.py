"""FlowHandle: one flow from the outside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from flowfabric.client.handle import Handle
from flowfabric.client.results import Results
from flowfabric.core.duration import duration_ms
from flowfabric.core.flow.cancel import CANCELLED
from flowfabric.core.flow.model import CancelPolicy, Flow
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Event
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow_cancelling import FlowCancel
from flowfabric.engine.flows import Picture
from flowfabric.errors import ResultTimeout

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Member(Protocol[R_co]):
    """A node of the graph that the flow was made from."""

    @property
    def id(self) -> ExecutionId: ...

    def decode(self, body: bytes) -> R_co: ...


class FlowHandle:
    """Refers to a flow by its id; nodes of its graph name its members."""

    def __init__(
        self, id: FlowId, engine: Engine, results: Results, members: Sequence[ExecutionId]
    ) -> None:
        self.id = id
        self._engine = engine
        self._results = results
        self._members = tuple(members)

    def __repr__(self) -> str:
        return f"FlowHandle({self.id!r})"

    def handle(self, node: Member[R]) -> Handle[R]:
        """The handle of one member."""
        return Handle(node.id, self._engine, self._results, node.decode)

    async def result(self, node: Member[R], timeout_seconds: float | None = None) -> R:
        """Wait for one member. Returns what it returned, or raises how else it ended."""
        return await self.handle(node).result(timeout_seconds)

    async def wait(self, timeout_seconds: float | None = None) -> Flow:
        """Until every member has ended, however; answers the flow with its counters."""
        limit = None
        if timeout_seconds is not None:
            limit = duration_ms(timeout_seconds, "timeout_seconds") / 1000
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*(self._results.wait(id) for id in self._members))
        except TimeoutError:
            raise ResultTimeout(f"flow {self.id} has not ended in {limit} s") from None
        return await self.status()

    async def status(self) -> Flow:
        """The flow as it is now; counters follow the ends of members by a few milliseconds."""
        return await self._engine.flows.flow(self.id)

    async def graph(self) -> Picture:
        """Members, edges and groups as they are now."""
        return await self._engine.flows.picture(self.id)

    async def cancel(
        self,
        reason: str = CANCELLED,
        *,
        policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL,
    ) -> FlowCancel:
        """Take no more members and cancel those that have not ended."""
        return await self._engine.flows.cancel(self.id, CancelPolicy(policy), reason)

    async def events(self, node: Member[object]) -> list[Event]:
        """What happened to one member so far, oldest first."""
        return await self.handle(node).events()
