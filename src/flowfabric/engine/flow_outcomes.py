"""Reads what is needed to judge the outcome of a flow in which not everything succeeded.

Nothing of a flow without bad ends is read, and no edge of one whose only bad ends are the losers
of its races.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowfabric.core.flow.outcome import FlowOutcome, is_absorbed, is_loser
from flowfabric.core.flow.views import Members, Sight
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution
from flowfabric.core.states import State
from flowfabric.store.protocol import Store

PAGE = 500
_BAD = (State.FAILED, State.CANCELLED, State.EXPIRED)


class FlowOutcomes:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def judge(self, flow: FlowId, ending: Iterable[Execution] = ()) -> FlowOutcome:
        """The outcome of a flow whose members have all ended; `ending`: those whose ends are not
        written yet. Still pending if something of it cannot be read."""
        bad = await self._members(flow, _BAD)
        if bad is None:
            return FlowOutcome.PENDING
        bad |= {row.id: row for row in ending if row.state in _BAD}
        if all(is_loser(row) for row in bad.values()):
            return FlowOutcome.SUCCESS
        skipped = await self._members(flow, (State.SKIPPED,))
        view = (await self._store.graph([Sight(flow=flow, whole=True)]))[0]
        if skipped is None or view.unreadable:
            return FlowOutcome.PENDING
        absorbed = is_absorbed(bad.values(), skipped, view.edges)
        return FlowOutcome.SUCCESS if absorbed else FlowOutcome.FAILED

    async def _members(
        self, flow: FlowId, states: tuple[State, ...]
    ) -> dict[ExecutionId, Execution] | None:
        found: dict[ExecutionId, Execution] = {}
        after = ""
        while True:
            page = Members(states=states, after=after, limit=PAGE)
            view = (await self._store.graph([Sight(flow=flow, members=page)]))[0]
            if view.unreadable:
                return None
            found |= view.heads
            if len(view.members) < PAGE:
                return found
            after = view.members[-1]
