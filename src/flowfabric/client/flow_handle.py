"""FlowHandle: one flow from the outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeVar

from flowfabric.client.handle import Connect, Desk, Handle
from flowfabric.client.listing import Listing
from flowfabric.client.member_handle import MemberHandle, MemberName
from flowfabric.client.plain import decode_plain
from flowfabric.client.public_ids import shown
from flowfabric.core import names
from flowfabric.core.duration import Span, duration_ms
from flowfabric.core.exact import word
from flowfabric.core.flow.cancel import CANCELLED
from flowfabric.core.flow.model import CancelPolicy, Flow
from flowfabric.core.flow.summary import FlowSnapshot
from flowfabric.core.ids import ExecutionId, FlowId, PartitionCounts, parse_execution_id
from flowfabric.core.model import Event
from flowfabric.core.states import PublicState, State
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow_cancelling import Backlog, FlowCancel
from flowfabric.engine.flows import Picture
from flowfabric.engine.reading import Snapshot
from flowfabric.errors import ResultTimeout

# How often one who waits looks whether the flow can end at all.
LOOK_SECONDS = 5.0
PAGE = 500

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


Decoders = Mapping[str, Callable[[bytes], object]]
NO_DECODERS: Decoders = MappingProxyType({})


class Member(Protocol[R_co]):
    """A node of the graph that the flow was made from."""

    @property
    def id(self) -> str: ...

    def decode(self, body: bytes) -> R_co: ...


class FlowHandle:
    """A flow, known by its id; its members are found by node or by name."""

    def __init__(
        self,
        id: FlowId,
        connect: Connect,
        members: Sequence[ExecutionId] = (),
        *,
        counts: Callable[[], PartitionCounts],
        named: Decoders = NO_DECODERS,
    ) -> None:
        self._id = id
        self._connect = connect
        self._members = tuple(members)
        self._counts = counts
        self._named = named

    @property
    def id(self) -> FlowId:
        """A UUID."""
        return self._id

    async def _engine(self) -> Engine:
        return (await self._connect()).engine

    def __repr__(self) -> str:
        return f"FlowHandle({self.id!r})"

    def __getitem__(self, name: str) -> Handle[object]:
        """The handle of the member that has this name in its graph, in any process.

        Where the graph was submitted its result has the types of its task; elsewhere it is plain
        JSON. That the flow has no such member is found out when the handle is used.
        """
        found = MemberName(self.id, names.member_name(name))
        decode = self._named.get(found.name, decode_plain)
        return MemberHandle(found, self._connect, decode, counts=self._counts)

    def handle(self, node: Member[R]) -> Handle[R]:
        """The handle of one member."""
        return Handle(parse_execution_id(node.id), self._connect, node.decode)

    async def result(self, node: Member[R], timeout: Span | None = None) -> R:
        """Wait for one member. Returns what it returned, or raises how else it ended."""
        return await self.handle(node).result(timeout)

    async def wait(self, timeout: Span | None = None) -> Flow:
        """Until every member has ended, however; answers the flow with its counters.

        Members are those that were submitted, or those that the flow has now. An unreadable
        record of the flow raises `Corrupt`, because the flow might never end.
        """
        limit = None if timeout is None else duration_ms(timeout, "timeout") / 1000
        desk = await self._connect()
        try:
            async with asyncio.timeout(limit):
                members = self._members or await desk.engine.flows.members(self.id)
                await self._all_ended(desk, members)
        except TimeoutError:
            raise ResultTimeout(
                f"flow {self.id} has not ended within {limit} s",
                hint="it goes on; call `wait()` again, or `members()` for what is left",
            ) from None
        return await desk.engine.flows.counted(self.id)

    async def _all_ended(self, desk: Desk, members: Sequence[ExecutionId]) -> None:
        ends = asyncio.gather(*(desk.results.wait(id) for id in members))
        try:
            while not (await asyncio.wait([ends], timeout=LOOK_SECONDS))[0]:
                await desk.engine.flows.require_readable(self.id)
            await ends
        finally:
            ends.cancel()

    async def status(self) -> FlowSnapshot:
        """The flow as it is now: what its members make of it, how many are in which state."""
        return await (await self._engine()).flows.status(self.id)

    def members(self, *, states: Iterable[State | str] = ()) -> Listing[Snapshot]:
        """Its members in these states (none: in all), in the order of their ids."""
        wanted = tuple(word(State, each, "states") for each in states)
        return Listing(lambda: self._member_pages(wanted))

    async def _member_pages(self, states: tuple[State, ...]) -> AsyncIterator[list[Snapshot]]:
        engine = await self._engine()
        after: str | None = ""
        while after is not None:
            page = await engine.flows.read.members(self.id, states=states, after=after, limit=PAGE)
            yield [shown(each) for each in await engine.read.snapshots(page.items)]
            after = page.cursor

    async def graph(self) -> Picture:
        """Members, edges and groups as they are now."""
        return shown(await (await self._engine()).flows.picture(self.id))

    async def cancel(
        self,
        reason: str = CANCELLED,
        *,
        policy: CancelPolicy | str = CancelPolicy.CANCEL_ALL,
        wait: Span | None = None,
    ) -> FlowCancel:
        """Take no more members and cancel those that have not ended.

        `policy`: `cancel_all`, `cancel_pending` (running members may finish and are not retried) or
        `flow_only`. Without `wait` members are cancelled in the background, and the answer names
        those that are `owed` a cancel; with it, those that were `cancelled`, or `ResultTimeout` is
        raised. Repeating it with the same policy returns what the first call did; another policy is
        refused.
        """
        wait_ms = None if wait is None else duration_ms(wait, "wait")
        wanted = word(CancelPolicy, policy, "policy")
        done = await (await self._engine()).flows.cancel(self.id, wanted, reason, wait_ms=wait_ms)
        return shown(done)

    async def backlog(self) -> Backlog:
        """What its cancel has to do yet: who is owed one, how many have acknowledged."""
        return shown(await (await self._engine()).flows.backlog(self.id))

    async def replay(
        self,
        node: Member[object],
        reason: str = "",
        *,
        downstream: bool = False,
        request: str | None = None,
    ) -> PublicState:
        """Run a finished member again; with `downstream` also all members that depend on it.

        To repeat the call after an error, pass the same `request` to both: then it runs again once.
        """
        return await self.handle(node).replay(reason, downstream=downstream, request=request)

    def events(self, node: Member[object]) -> Listing[Event]:
        """What happened to one member so far, oldest first."""
        return self.handle(node).events()
