"""What can be asked about flows beside their own rows. Nothing here writes."""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

import msgspec

from flowfabric.core.flow.model import START, Edge, Flow
from flowfabric.core.flow.views import FlowQuery, Members, Sight, View
from flowfabric.core.ids import ExecutionId, FlowId, parse_execution_id
from flowfabric.core.model import Execution, Want, without_token
from flowfabric.core.states import State
from flowfabric.engine.looking import look, look_at_whole
from flowfabric.engine.reading import PAGE_LIMIT, Page, member_names
from flowfabric.store.clock import Clock
from flowfabric.store.protocol import Store


class Direction(StrEnum):
    """Edges that a member waits for, or those that others wait for it by."""

    INCOMING = "incoming"
    OUTGOING = "outgoing"


class FlowPage(msgspec.Struct, frozen=True):
    """One page; `cursor` leads to the next and is None on the last."""

    items: list[Flow]
    cursor: FlowId | None


class FlowReading:
    """The reading verbs about flows, edges and members."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def describe(self, id: FlowId) -> Flow | None:
        """The flow; None if there is none such, or it is still being submitted."""
        flow = (await look(self._store, Sight(flow=id))).flow
        return flow if flow is not None and flow.is_open else None

    async def find(self, query: FlowQuery) -> FlowPage:
        """A page of flows in the order of their ids."""
        limit = min(query.limit, PAGE_LIMIT)
        if limit < 1:
            return FlowPage([], None)
        found = await self._store.find_flows(msgspec.structs.replace(query, limit=limit + 1))
        return FlowPage(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def members(
        self, id: FlowId, *, states: tuple[State, ...] = (), after: str = "", limit: int = 100
    ) -> Page:
        """A page of its members in these states (none: in all), in the order of their ids."""
        limit = min(limit, PAGE_LIMIT)
        if limit < 1:
            return Page([], None)
        page = Members(states=states, after=after, limit=limit + 1)
        view = await self._whole(Sight(flow=id, members=page))
        rows = [
            without_token(view.heads[each]) for each in view.members[:limit] if each in view.heads
        ]
        cursor = view.members[limit - 1] if len(view.members) > limit else None
        named = await member_names(self._store, (row.id for row in rows))
        return Page(rows, cursor, named)

    async def everybody(self, id: FlowId, states: tuple[State, ...] = ()) -> list[ExecutionId]:
        """All its members in these states (none: in all), in the order of their ids."""
        found: list[ExecutionId] = []
        while True:
            after = found[-1] if found else ""
            page = Members(states=states, after=after, limit=PAGE_LIMIT)
            some = (await look(self._store, Sight(flow=id, members=page))).members
            found += some
            if len(some) < PAGE_LIMIT:
                return found

    async def flow_of(self, id: str) -> FlowId | None:
        """The flow of an execution, if it is a member of one."""
        row = await self._head(parse_execution_id(id))
        return FlowId(row.flow) if row is not None and row.flow else None

    async def edge(
        self, flow: FlowId, upstream: ExecutionId, downstream: ExecutionId, group: str = START
    ) -> Edge | None:
        view = await self._whole(Sight(flow=flow, entering=[downstream]))
        key = (downstream, group, upstream)
        return next((edge for edge in view.edges if edge.key == key), None)

    async def edges(self, id: str, direction: Direction) -> list[Edge]:
        """All edges of a member on one side; none for whoever is in no flow."""
        id = parse_execution_id(id)
        flow = await self.flow_of(id)
        if flow is None:
            return []
        match direction:
            case Direction.INCOMING:
                return (await self._whole(Sight(flow=flow, entering=[id]))).edges
            case Direction.OUTGOING:
                view = await self._whole(Sight(flow=flow, whole=True))
                return [edge for edge in view.edges if edge.upstream == id]
            case _:
                assert_never(direction)

    async def _whole(self, sight: Sight) -> View:
        return await look_at_whole(self._store, sight, self._clock.now_ms())

    async def _head(self, id: ExecutionId) -> Execution | None:
        loaded = (await self._store.load(Want(ids=[id])))[0]
        return None if loaded is None else loaded.head
