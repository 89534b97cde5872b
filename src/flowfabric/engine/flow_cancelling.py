"""Cancel of flows: asked for, waited for, and what of it is still to be done.

A member is owed a cancel until it has ended, in whatever way; its end is the acknowledgement, and
there is no other book to keep. Whoever waits lends a hand, so that waiting works in a process that
runs no dispatcher.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

import msgspec

from flowfabric.core import names
from flowfabric.core.flow.cancel import cancel_flow, owed_states
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState, LineKind
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.engine.flow_reading import FlowReading
from flowfabric.engine.flow_writes import FlowWrites
from flowfabric.errors import Conflict, ResultTimeout

OP = "cancel_flow"
PAGE = 1_000
PAUSE_SECONDS = 0.005
PAUSE_MAX_SECONDS = 0.1


class CancelStatus(StrEnum):
    CANCELLED = "cancelled"  # nobody is left who is owed a cancel
    SCHEDULED = "cancellation_scheduled"  # members are cancelled in the background


class FlowCancel(msgspec.Struct, frozen=True):
    """What the cancel of a flow did; `members` is everybody in the flow.

    `cancelled`: those that it ended. Who does not wait for it hears of none.
    """

    policy: CancelPolicy
    members: list[ExecutionId]
    status: CancelStatus = CancelStatus.SCHEDULED
    cancelled: list[ExecutionId] = msgspec.field(default_factory=list)


class Backlog(msgspec.Struct, frozen=True):
    """What the cancel of a flow has to do yet: `owed` members, up to a limit, and whether anybody
    has it on the list. Acknowledged are those that have ended and were counted."""

    requested_ms: int | None
    is_listed: bool
    owed: list[ExecutionId]
    acknowledged: int


class FlowCancelling:
    def __init__(self, read: FlowReading, writes: FlowWrites, dispatcher: Dispatcher) -> None:
        self._read = read
        self._writes = writes
        self._dispatcher = dispatcher

    async def cancel(
        self, id: FlowId, policy: CancelPolicy, reason: str, *, wait_ms: int | None = None
    ) -> FlowCancel:
        checked = names.note(reason, "reason") if reason else ""

        def decide(flow: Flow, _: View, now_ms: int) -> tuple[Changeset, None]:
            return cancel_flow(flow, now_ms, policy, checked), None

        await self._writes.change(Sight(flow=id), decide)
        flow, _ = await self._writes.view(Sight(flow=id))
        members = await self._read.everybody(id)
        states = owed_states(flow)
        owed = await self._read.everybody(id, states) if states else []
        if wait_ms is None:
            status = CancelStatus.SCHEDULED if owed else CancelStatus.CANCELLED
            return FlowCancel(policy, members, status)
        await self.wait(id, wait_ms)
        ended = await self._cancelled_since(id, flow.cancelled_ms or 0)
        return FlowCancel(policy, members, CancelStatus.CANCELLED, ended)

    async def _cancelled_since(self, id: FlowId, since_ms: int) -> list[ExecutionId]:
        """Who was cancelled with the flow. A dispatcher may have been at it before anybody could
        look who is owed one, so it is read from how they ended."""
        found: list[ExecutionId] = []
        after: str | None = ""
        while after is not None:
            page = await self._read.members(id, states=(State.CANCELLED,), after=after, limit=PAGE)
            found += [row.id for row in page.items if (row.ended_ms or 0) >= since_ms]
            after = page.cursor
        return found

    async def wait(self, id: FlowId, wait_ms: int) -> None:
        """Until the flow is cancelled and nobody is owed a cancel any more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        pause = PAUSE_SECONDS
        while not await self._is_done(id):
            left = until - loop.time()
            if left <= 0:
                raise ResultTimeout(
                    f"flow {id} is not cancelled after {wait_ms} ms",
                    hint="it goes on; `backlog` says who is left",
                    details={"op": OP, "elapsed_ms": wait_ms},
                )
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, PAUSE_MAX_SECONDS)

    async def _is_done(self, id: FlowId) -> bool:
        """Whether it is; if not, what can be done about it now has been done."""
        flow, view = await self._writes.view(Sight(flow=id, lines=True))
        if flow.state is not FlowState.CANCELLED:
            return False
        line = next((each for each in view.lines if each.kind is LineKind.CANCEL_FLOW), None)
        if line is not None:
            try:
                await self._dispatcher.dispatch(line)
            except Conflict:
                # Others are at it: the next look tells how far they came.
                return False
        return not (await self.backlog(id, limit=1)).owed

    async def backlog(self, id: FlowId, *, limit: int = PAGE) -> Backlog:
        flow, view = await self._writes.view(Sight(flow=id, lines=True))
        is_listed = any(line.kind is LineKind.CANCEL_FLOW for line in view.lines)
        states = owed_states(flow)
        owed: list[ExecutionId] = []
        if states:
            rows = (await self._read.members(id, states=states, limit=limit)).items
            owed = [row.id for row in rows]
        return Backlog(flow.cancelled_ms, is_listed, owed, flow.ended)
