"""What operators do to executions that they do not hold. Part of the engine's verbs.

They take an id in either spelling, look first, and are decided again when another was faster.
Each call is one request with a token of its own: a caller that repeats it after an error passes the
same `request` to both calls, and what the first did is not done twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from flowfabric.core import exact, names, operator, refusal
from flowfabric.core.ids import ExecutionId, FlowId, parse_execution_id
from flowfabric.core.model import Execution, Lease, Want
from flowfabric.core.operator import ExpireReason, RevokeOutcome, Source
from flowfabric.core.requests import Request
from flowfabric.core.retention import Departure, Purge, Purged
from flowfabric.core.states import PUBLIC, LaneState, PublicState, Reason, State
from flowfabric.core.transition import Transition
from flowfabric.engine.conflict import Decide, Done, decide_and_commit, persistently
from flowfabric.engine.flows import Flows
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.reading import Reading
from flowfabric.engine.requesting import requested
from flowfabric.errors import Conflict, ExecutionNotFound, Refused
from flowfabric.store.clock import FollowingClock
from flowfabric.store.protocol import Store

T = TypeVar("T")

OPERATOR = "operator"
# Each call to the store removes at most 5,000 entries.
PURGE_PAGES = 1_000


class Overseeing:
    """The verbs of operators."""

    store: Store
    clock: FollowingClock
    lanes: Lanes
    read: Reading
    flows: Flows

    async def adopt(self, id: str) -> Lease:
        """The lease as the store has it, with its token, which no reading verb returns: an operator
        can then act in place of the holder."""
        id = parse_execution_id(id)
        loaded = (await self.store.load(Want(ids=[id], payload=True)))[0]
        if loaded is None:
            raise refusal.not_found(id)
        lease = Lease(loaded.head, loaded.payload)
        error = refusal.refusal_of_lease(loaded.head, lease, self.clock.now_ms())
        if error is not None:
            raise error
        return lease

    async def cancel(
        self,
        id: str,
        reason: str = "",
        *,
        source: Source = Source.OPERATOR,
        lease: Lease | None = None,
        request: str | None = None,
    ) -> PublicState:
        """End it as cancelled. A running worker hears of it at its next renewal, or sooner.

        An execution that is already cancelled is answered as such, unless `lease` is a wrong one.
        """

        def decision(row: Execution, now_ms: int) -> Transition | PublicState:
            if row.state is State.CANCELLED and _may_cancel(row, source, lease):
                return PublicState.CANCELLED
            return operator.cancel(row, now_ms, reason, source=source, lease=lease)

        id = parse_execution_id(id)
        await self._decide(id, requested(request, "cancel", id, source), decision)
        return PublicState.CANCELLED

    async def expire(self, id: str, reason: ExpireReason, *, request: str | None = None) -> bool:
        """End it as expired; False if it had already ended, or does not exist."""

        def decision(row: Execution, now_ms: int) -> Transition | bool:
            transition = operator.expire(row, now_ms, reason)
            return False if transition is None else transition

        id = parse_execution_id(id)
        try:
            done = await self._decide(id, requested(request, "expire", id, reason), decision)
        except ExecutionNotFound:
            return False
        return isinstance(done, Done)

    async def revoke(
        self,
        id: str,
        reason: str = OPERATOR,
        *,
        worker: str | None = None,
        request: str | None = None,
    ) -> RevokeOutcome:
        """Revoke the lease; with `worker`, only if that worker holds it."""
        id = parse_execution_id(id)
        done = await self._decide(
            id,
            requested(request, "revoke", id, worker),
            lambda row, now_ms: operator.revoke(row, now_ms, reason, worker=worker),
        )
        return done if isinstance(done, RevokeOutcome) else RevokeOutcome(True, done.epoch)

    async def replay(
        self,
        id: str,
        reason: str = "",
        *,
        downstream: bool = False,
        request: str | None = None,
    ) -> PublicState:
        """Run a finished execution again; with `downstream` also all members that depend on it."""
        id = parse_execution_id(id)
        wanted = requested(request, "replay", id, downstream)
        flow = (await self.read.load(id)).head.flow
        if flow:
            return await self.flows.replaying.replay(
                FlowId(flow), id, reason, downstream=downstream, request=wanted.token
            )
        return await self._change(
            id, wanted, lambda row, now_ms: operator.replay(row, now_ms, reason)
        )

    async def change_priority(self, id: str, priority: int, *, request: str | None = None) -> None:
        """Move a waiting execution in its queue; one with this priority stays where it is."""
        id, wanted = parse_execution_id(id), names.priority(priority)
        await self._decide(
            id,
            requested(request, "change_priority", id, wanted),
            lambda row, now_ms: (
                None
                if operator.has_priority(row, wanted)
                else operator.change_priority(row, now_ms, wanted)
            ),
        )

    async def block(
        self, id: str, reason: Reason, *, detail: str = "", request: str | None = None
    ) -> PublicState:
        """Block it, for a reason that `explain` shows."""
        id = parse_execution_id(id)
        return await self._change(
            id,
            requested(request, "block", id, reason),
            lambda row, now_ms: (
                PUBLIC[row.state]
                if operator.is_blocked_for(row, reason)
                else operator.block(row, now_ms, reason, detail=detail)
            ),
        )

    async def unblock(
        self, id: str, expected: Reason | None = None, *, request: str | None = None
    ) -> PublicState:
        """Remove the block; refused if there is none, or if it is not the expected one."""
        id = parse_execution_id(id)
        return await self._change(
            id,
            requested(request, "unblock", id, expected),
            lambda row, now_ms: operator.unblock(row, now_ms, expected),
        )

    async def pause(
        self, id: ExecutionId, reason: str = "", *, request: str | None = None
    ) -> PublicState:
        """Keep it from starting until `resume`; refused while it runs and after its end."""
        return await self.block(id, Reason.PAUSED_BY_OPERATOR, detail=reason, request=request)

    async def resume(self, id: ExecutionId, *, request: str | None = None) -> PublicState:
        """Undo `pause`; what is not paused is answered as it is."""
        return await self._change(
            id,
            requested(request, "resume", id),
            lambda row, now_ms: (
                operator.unblock(row, now_ms, Reason.PAUSED_BY_OPERATOR)
                if row.paused
                else PUBLIC[row.state]
            ),
        )

    async def set_tags(
        self, id: str, tags: Mapping[str, str], *, request: str | None = None
    ) -> int:
        """Set tags and keep those with other keys; returns how many were set."""
        id, checked = parse_execution_id(id), names.tags(tags)
        await decide_and_commit(
            self.store,
            self.clock,
            Want(ids=[id], tags=True),
            lambda loaded, now_ms: (
                None
                if checked and operator.has_tags(loaded.tags, checked)
                else operator.set_tags(loaded.head, now_ms, checked, known=loaded.tags)
            ),
            request=requested(request, "set_tags", id, checked),
        )
        return len(checked)

    async def purge(self, id: ExecutionId) -> None:
        """Delete a finished execution with all that is kept beside it, before its retention is
        over. One whose idempotency key still counts stays until that ends; what is not there is
        gone already."""
        try:
            await self._decide(id, requested(None, "purge", id), operator.purge)
        except ExecutionNotFound:
            return
        for _ in range(PURGE_PAGES):
            loaded = (await self.store.load(Want(ids=[parse_execution_id(id)])))[0]
            if loaded is None:
                return
            await self._purge_page(Departure(loaded.head.id, loaded.head.rev))
        raise Conflict(f"execution {id} kept changing while it was deleted")

    async def _purge_page(self, seen: Departure) -> None:
        async def once(_: bool) -> Purged:
            return await self.store.purge(Purge(now_ms=self.clock.now_ms(), executions=[seen]))

        if seen.id in (await persistently(self.clock, once)).kept:
            raise Refused(
                f"the idempotency key of execution {seen.id} is still valid",
                hint="it is deleted after the key expires",
            )

    async def set_lane(self, name: str, state: LaneState) -> None:
        """Pause, resume, drain or disable a lane. Other processes follow within a second."""
        await self.lanes.set(names.lane_name(name), exact.word(LaneState, state, "state"))

    async def _decide(self, id: ExecutionId, request: Request, decide: Decide[T]) -> Done | T:
        return await decide_and_commit(
            self.store,
            self.clock,
            Want(ids=[id]),
            lambda loaded, now_ms: decide(loaded.head, now_ms),
            request=request,
        )

    async def _change(
        self, id: ExecutionId, request: Request, decide: Decide[PublicState]
    ) -> PublicState:
        done = await self._decide(id, request, decide)
        return PUBLIC[done.state] if isinstance(done, Done) else done


def _may_cancel(row: Execution, source: Source, lease: Lease | None) -> bool:
    """Whether who asks could have cancelled it: a holder shows the lease that the cancel ended,
    whose epoch rose by one and whose token stayed."""
    if source is not Source.LEASE_HOLDER:
        return True
    return lease is not None and (row.lease_token, row.epoch) == (lease.token, lease.epoch + 1)
