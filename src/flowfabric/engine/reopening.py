"""The walk over everybody who depended on a replayed member: one portion per round of dispatch.

Who is left is found by reading the whole graph, so it is remembered from round to round, for as
long as nobody else writes to the flow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from flowfabric.core.flow.model import Edge, Flow, Group, Line
from flowfabric.core.flow.reopening import let_go, reopen, weights
from flowfabric.core.flow.replay import Opened, deepest_first, dependants
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import Members, Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.store.protocol import Store

PORTION = BATCH_LIMIT
PAGE = 500
PLANS_MAX = 8

Look = Callable[[list[Sight]], Awaitable[list[View]]]


class Graph(msgspec.Struct, frozen=True):
    """A whole flow as it was at one revision."""

    flow: Flow
    heads: dict[ExecutionId, Execution]
    edges: list[Edge]
    groups: list[Group]


class Walk(msgspec.Struct, frozen=True):
    """Who is to be taken back yet, in this order, if the flow is still of this revision."""

    line: str
    rev: int
    left: Sequence[tuple[ExecutionId, int]]


async def whole_graph(look: Look, id: FlowId) -> Graph | None:
    """All of a flow, a page at a time; None if somebody wrote to it meanwhile, or it is gone."""
    found: Graph | None = None
    after = ""
    while True:
        (page,) = await look([Sight(flow=id, members=Members(after=after, limit=PAGE))])
        (near,) = await look([Sight(flow=id, entering=page.members)])
        if page.flow is None or near.flow is None:
            return None
        found = found or Graph(page.flow, {}, [], [])
        if {page.flow.rev, near.flow.rev} != {found.flow.rev}:
            return None
        found.heads.update(page.heads)
        found.edges.extend(near.edges)
        found.groups.extend(near.groups)
        if len(page.members) < PAGE:
            return found
        after = page.members[-1]


class Reopening:
    """Does the part of a round that a line of the kind `reopen` asks for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._walks: dict[FlowId, Walk] = {}
        self._next: dict[FlowId, Walk] = {}

    async def go_on(self, work: Round, line: Line) -> None:
        """The next portion. Nothing, if the flow was written to: then neither can this round."""
        flow = work.flow
        self._next.pop(flow.id, None)
        if flow.due_ms is not None and flow.due_ms <= work.now_ms:
            return
        walk = self._walks.get(flow.id)
        if walk is None or (walk.line, walk.rev) != (line.id, flow.rev):
            walk = await self._plan(flow, line)
        if walk is None:
            return
        self._walks[flow.id] = walk
        portion = _portion(walk.left)
        view = await self._around(flow, portion or [ExecutionId(line.execution)])
        if view is None:
            return
        work.look(view)
        left = walk.left
        if not portion:
            let_go(work, line, view)
        else:
            again = {ExecutionId(line.execution), *(id for id, _ in walk.left)}
            taken = {ExecutionId(line.execution): line.generation}
            if reopen(work, line, portion, view, Opened(again, taken, PORTION)):
                left = walk.left[len(portion) :]
        self._next[flow.id] = Walk(line.id, flow.rev + 1, left)

    def written(self, flow: FlowId, *, is_done: bool) -> None:
        """What became of the round."""
        self._walks.pop(flow, None)
        after = self._next.pop(flow, None)
        if is_done and after is not None and after.left:
            if len(self._walks) >= PLANS_MAX:
                self._walks.clear()
            self._walks[flow] = after

    async def _plan(self, flow: Flow, line: Line) -> Walk | None:
        graph = await whole_graph(self._store.graph, flow.id)
        if graph is None or graph.flow.rev != flow.rev:
            return None
        again = dependants(ExecutionId(line.execution), graph.edges, graph.groups)
        weight = weights(again, graph.edges, graph.groups)
        order = deepest_first(again, graph.edges)
        return Walk(line.id, flow.rev, [(id, weight[id]) for id in order])

    async def _around(self, flow: Flow, ids: Sequence[ExecutionId]) -> View | None:
        """These members, what enters them, and those it comes from, a page at a time."""
        (near,) = await self._store.graph(
            [Sight(flow=flow.id, heads=ids, entering=ids, lines=True)]
        )
        ends = sorted({edge.upstream for edge in near.edges} - near.heads.keys())
        pages = [ends[start : start + PAGE] for start in range(0, len(ends), PAGE)]
        far = await self._store.graph([Sight(flow=flow.id, heads=page) for page in pages])
        if any(view.flow is None or view.flow.rev != flow.rev for view in (near, *far)):
            return None
        heads = {id: head for view in (near, *far) for id, head in view.heads.items()}
        return msgspec.structs.replace(near, heads=heads)


def _portion(left: Sequence[tuple[ExecutionId, int]]) -> list[ExecutionId]:
    """As many as fit into one commit; one that does not fit goes alone."""
    found: list[ExecutionId] = []
    room = PORTION
    for id, weight in left:
        room -= weight
        if found and room < 0:
            break
        found.append(id)
    return found
