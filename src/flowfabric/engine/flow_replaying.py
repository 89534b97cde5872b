"""Members that run again, alone or with all that depended on their end.

What is small is one commit. What is not begins with one that holds the member and leaves a line;
the dispatcher takes back those that depended on it, and then lets it go.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from flowfabric.core.flow.cancel import require_replayable
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.reopening import hold_back, require_replays, weights
from flowfabric.core.flow.replay import dependants, replay_member
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution
from flowfabric.core.refusal import not_found
from flowfabric.core.requests import answer_of
from flowfabric.core.states import PUBLIC, TERMINAL, PublicState, State
from flowfabric.core.transition import Changeset
from flowfabric.engine import reopening
from flowfabric.engine.conflict import PAUSES_SECONDS
from flowfabric.engine.flow_writes import Again, FlowWrites
from flowfabric.engine.reopening import Graph, whole_graph
from flowfabric.engine.requesting import requested
from flowfabric.errors import Conflict, ExecutionNotTerminal


class _Moved(Exception):
    """The flow is not what the plan was made for."""


class _Plan(NamedTuple):
    """Who runs again with the member, for the flow as it was at this revision."""

    others: set[ExecutionId]
    rev: int


class FlowReplaying:
    """Replay as a guarded change of the member and its flow."""

    def __init__(self, writes: FlowWrites) -> None:
        self._writes = writes

    async def replay(
        self,
        flow: FlowId,
        id: ExecutionId,
        reason: str = "",
        *,
        downstream: bool = False,
        request: str | None = None,
    ) -> PublicState:
        """Run a member again, and with `downstream` everything that depended on its end."""
        again = Again(requested(request, "replay", id, downstream), str, _retell)
        if not downstream:
            return await self._together(flow, id, reason, again)
        for pause in (*PAUSES_SECONDS, None):
            graph = await whole_graph(self._look, flow)
            if graph is not None:
                known = answer_of(graph.flow.requests, again.request)
                if known is not None:
                    return PublicState(known)
                with suppress(_Moved):
                    return await self._with_downstream(graph, id, reason, again)
            if pause is not None:
                await asyncio.sleep(pause)
        raise Conflict(
            f"flow {flow} kept changing",
            code="conflict",
            details={"flow": flow, "kind": "retry_exhausted"},
        )

    async def _look(self, sights: list[Sight]) -> list[View]:
        return [(await self._writes.whole_view(sight))[1] for sight in sights]

    async def _with_downstream(
        self, graph: Graph, id: ExecutionId, reason: str, again: Again[PublicState]
    ) -> PublicState:
        if id in graph.heads and graph.heads[id].state not in TERMINAL:
            raise ExecutionNotTerminal(f"execution {id} is {graph.heads[id].state}")
        others = dependants(id, graph.edges, graph.groups, graph.heads)
        require_replays(others, graph.heads)
        weight = weights([id, *others], graph.edges, graph.groups).total()
        if weight > reopening.PORTION:
            return await self._held(graph.flow.id, id, reason, again)
        plan = _Plan(others, graph.flow.rev)
        return await self._together(graph.flow.id, id, reason, again, plan=plan)

    async def _together(
        self,
        flow: FlowId,
        id: ExecutionId,
        reason: str,
        again: Again[PublicState],
        *,
        plan: _Plan | None = None,
    ) -> PublicState:
        """The member and those of the plan in one commit, if the flow is what it was made for."""
        others = plan.others if plan is not None else set()

        def decide(found: Flow, view: View, now_ms: int) -> tuple[Changeset, PublicState]:
            if plan is not None and found.rev != plan.rev:
                raise _Moved
            work, row = _seen(found, view, now_ms, id)
            replay_member(work, row, view, reason=reason, again=others)
            return _changes(work), _shown(work, id)

        wanted = [id, *sorted(others)]
        # Who waits needs to know what became of those it waits for.
        sight = Sight(flow=flow, heads=wanted, entering=wanted, ends=True, lines=True)
        return await self._writes.change(sight, decide, again)

    async def _held(
        self, flow: FlowId, id: ExecutionId, reason: str, again: Again[PublicState]
    ) -> PublicState:
        def decide(found: Flow, view: View, now_ms: int) -> tuple[Changeset, PublicState]:
            work, row = _seen(found, view, now_ms, id)
            if row.state not in TERMINAL:
                raise ExecutionNotTerminal(f"execution {id} is {row.state}")
            hold_back(work, row, view, reason)
            return _changes(work), _shown(work, id)

        return await self._writes.change(Sight(flow=flow, heads=[id], lines=True), decide, again)


def _retell(known: str, _: View) -> PublicState:
    return PublicState(known)


def _seen(flow: Flow, view: View, now_ms: int, id: ExecutionId) -> tuple[Round, Execution]:
    require_replayable(flow)
    work = Round(flow, now_ms)
    work.look(view)
    row = work.head(id)
    if row is None:
        raise not_found(id)
    return work, row


def _changes(work: Round) -> Changeset:
    # A dispatcher that is at it keeps its lease; its next commit is refused and decided again.
    return work.changeset(busy_until_ms=work.flow.busy_until_ms)


def _shown(work: Round, id: ExecutionId) -> PublicState:
    return PUBLIC[State(str(work.transitions[id].patch["state"]))]
