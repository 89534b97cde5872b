"""Cancel of flows: asked for, waited for, and what of it is still to be done.

A member is owed a cancel until it has ended, in whatever way; its end is the acknowledgement, and
there is no other book to keep. Waiting lends a hand, so that it works in a process that runs no
dispatcher.

The flow is flipped by the caller. If others keep changing it, the wish is left in its outbox, which
needs no agreement with them, and a dispatcher flips it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import NamedTuple

import msgspec

from flowfabric.core import names
from flowfabric.core.flow.cancel import (
    Request,
    as_cancelled,
    cancel_flow,
    cancel_request,
    cancelled_states,
    is_cancelled_with,
    is_owed_cancel,
    open_request,
    require_same_cancel,
)
from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState, Line, LineKind
from flowfabric.core.flow.views import Members, Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset
from flowfabric.engine.dispatcher import Dispatcher
from flowfabric.engine.flow_writes import FlowWrites
from flowfabric.errors import Conflict, ResultTimeout

OP = "cancel_flow"
PAGE = 1_000
PAUSE_SECONDS = 0.005
PAUSE_MAX_SECONDS = 0.1


class CancelStatus(StrEnum):
    CANCELLED = "cancelled"  # no member is owed a cancel
    SCHEDULED = "cancellation_scheduled"  # members are cancelled in the background
    PARTIALLY = "partially_cancelled"  # the others are, but records that cannot be read are not


class FlowCancel(msgspec.Struct, frozen=True):
    """What the cancel of a flow did, and what a repetition of the same cancel hears again.

    `members`: all of the flow. `cancelled`: those that this cancel has ended so far. `owed`: those
    that it will end. `not_cancelled`: those that it could not end, because their records cannot be
    read; only a caller that waits is told of them, else they are among those that are owed.
    """

    policy: CancelPolicy
    members: list[ExecutionId]
    status: CancelStatus = CancelStatus.SCHEDULED
    cancelled: list[ExecutionId] = msgspec.field(default_factory=list)
    owed: list[ExecutionId] = msgspec.field(default_factory=list)
    not_cancelled: list[ExecutionId] = msgspec.field(default_factory=list)


class Backlog(msgspec.Struct, frozen=True):
    """What the cancel of a flow has to do yet: `owed` members, up to a limit, and whether it is on
    the list of a dispatcher. Acknowledged are those that have ended and were counted."""

    requested_ms: int | None
    is_listed: bool
    owed: list[ExecutionId]
    acknowledged: int


class _Members(NamedTuple):
    """All members of a flow, by what its cancel is to them."""

    everybody: list[ExecutionId]
    cancelled: list[ExecutionId]
    owed: list[ExecutionId]
    unreadable: list[ExecutionId]


class FlowCancelling:
    def __init__(self, writes: FlowWrites, dispatcher: Dispatcher) -> None:
        self._writes = writes
        self._dispatcher = dispatcher

    async def cancel(
        self, id: FlowId, policy: CancelPolicy, reason: str, *, wait_ms: int | None = None
    ) -> FlowCancel:
        """The same policy again is answered with what the first one did; another is refused."""
        checked = names.note(reason, "reason") if reason else ""

        flow, wish, _ = await self._look(id)
        require_same_cancel(flow, wish, policy)
        wishes = [] if wish is None else [wish.line]

        def decide(flow: Flow, _: View, now_ms: int) -> tuple[Changeset | None, None]:
            require_same_cancel(flow, wish, policy)
            if flow.state is FlowState.CANCELLED:
                return None, None
            return cancel_flow(flow, now_ms, policy, checked, wishes=wishes), None

        try:
            await self._writes.change(Sight(flow=id), decide)
        except Conflict:
            await self._leave(id, policy, checked)
        if wait_ms is not None:
            await self.wait(id, wait_ms)
        return await self._answer(id, policy, is_waited_for=wait_ms is not None)

    async def _leave(self, id: FlowId, policy: CancelPolicy, reason: str) -> None:
        """Others keep changing the flow: its outbox takes the wish whatever they do."""

        def decide(now_ms: int) -> Changeset:
            wish = cancel_request(id, now_ms, policy, reason)
            return Changeset(flows=[FlowPatch(id, None, {})], lines=[wish])

        await self._writes.add(id, decide)

    async def _answer(self, id: FlowId, policy: CancelPolicy, *, is_waited_for: bool) -> FlowCancel:
        flow, _, _ = await self._look(id)
        require_same_cancel(flow, None, policy)
        found = await self._sorted(as_cancelled(flow, policy))
        owed, lost = found.owed, found.unreadable
        if policy is CancelPolicy.FLOW_ONLY:
            lost = []
        if not is_waited_for:
            owed, lost = sorted([*owed, *lost]), []
        status = CancelStatus.PARTIALLY if lost else CancelStatus.CANCELLED
        if owed or flow.state is FlowState.OPEN:
            status = CancelStatus.SCHEDULED
        return FlowCancel(policy, found.everybody, status, found.cancelled, owed, lost)

    async def _sorted(self, flow: Flow) -> _Members:
        found = _Members([], [], [], [])
        async for view in self._pages(flow.id):
            found.everybody.extend(view.members)
            for id in view.members:
                row = view.heads.get(id)
                if row is None:
                    found.unreadable.append(id)
                elif is_cancelled_with(flow, row):
                    found.cancelled.append(id)
                elif is_owed_cancel(flow, row):
                    found.owed.append(id)
        return found

    async def _pages(self, id: FlowId, states: tuple[State, ...] = ()) -> AsyncIterator[View]:
        after, is_last = "", False
        while not is_last:
            page = Members(states=states, after=after, limit=PAGE)
            view = (await self._writes.view(Sight(flow=id, members=page)))[1]
            yield view
            is_last = len(view.members) < PAGE
            after = view.members[-1] if view.members else ""

    async def wait(self, id: FlowId, wait_ms: int) -> None:
        """Until the flow is cancelled and no member is owed a cancel any more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        pause = PAUSE_SECONDS
        while not await self._is_done(id):
            left = until - loop.time()
            if left <= 0:
                raise ResultTimeout(
                    f"flow {id} is not cancelled after {wait_ms} ms",
                    hint="the cancel goes on; `backlog()` lists the members that are left",
                    details={"op": OP, "elapsed_ms": wait_ms},
                )
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, PAUSE_MAX_SECONDS)

    async def _is_done(self, id: FlowId) -> bool:
        """Whether it is; if not, what can be done about it now has been done."""
        flow, wish, line = await self._look(id)
        todo = line if wish is None else wish.line
        if todo is not None:
            try:
                await self._dispatcher.dispatch(todo)
            except Conflict:
                # Others are at it: the next look tells how far they came.
                return False
            flow, wish, line = await self._look(id)
        if flow.state is not FlowState.CANCELLED or line is not None:
            return False
        return not await self._owed(flow, 1)

    async def _look(self, id: FlowId) -> tuple[Flow, Request | None, Line | None]:
        """The flow, the wish to cancel it that is open, and the line of its cancel."""
        flow, view = await self._writes.view(Sight(flow=id, lines=True))
        line = next((each for each in view.lines if each.kind is LineKind.CANCEL_FLOW), None)
        return flow, open_request(view.lines), line

    async def backlog(self, id: FlowId, *, limit: int = PAGE) -> Backlog:
        flow, wish, line = await self._look(id)
        requested_ms = flow.cancelled_ms
        if wish is not None and requested_ms is None:
            requested_ms = wish.line.at_ms
            flow = as_cancelled(flow, wish.policy)
        is_listed = wish is not None or line is not None
        return Backlog(requested_ms, is_listed, await self._owed(flow, limit), flow.ended)

    async def _owed(self, flow: Flow, limit: int) -> list[ExecutionId]:
        states = cancelled_states(flow)
        found: list[ExecutionId] = []
        if not states:
            return found
        async for view in self._pages(flow.id, states):
            rows = (view.heads[id] for id in view.members if id in view.heads)
            found += [row.id for row in rows if is_owed_cancel(flow, row)]
            if len(found) >= limit:
                break
        return found[:limit]
