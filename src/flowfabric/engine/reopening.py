"""The walk over everybody who depended on a replayed member: one portion per round of dispatch.

Who is left is found by reading the whole graph, so it is remembered from round to round, for as
long as nobody else writes to the flow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from flowfabric.core.flow.model import Edge, Flow, Group, Line
from flowfabric.core.flow.reopening import (
    is_asked_about,
    let_go,
    needed_last,
    reopen,
    to_open,
    weights,
)
from flowfabric.core.flow.replay import Opened, deepest_first, dependants, open_again
from flowfabric.core.flow.round import Round
from flowfabric.core.flow.views import Members, Sight, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.store.protocol import Store

PORTION = BATCH_LIMIT
PAGE = 500
WALKS_MAX = 8

Look = Callable[[list[Sight]], Awaitable[list[View]]]


class Graph(msgspec.Struct, frozen=True):
    """A whole flow as it was at one revision."""

    flow: Flow
    heads: dict[ExecutionId, Execution]
    edges: list[Edge]
    groups: list[Group]


class Walk(msgspec.Struct, frozen=True):
    """Who is to be taken back yet, in this order, if the flow is still of this revision.

    `wide`: of those with more edges than fit into one commit, what is to be opened before.
    """

    line: str
    rev: int
    left: Sequence[tuple[ExecutionId, int]]
    wide: dict[ExecutionId, list[Edge]]


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
        # What was read for a round: one that took too long for its clock is decided again at once.
        self._seen: dict[FlowId, View] = {}
        self._next: dict[FlowId, Walk] = {}

    async def go_on(self, work: Round, line: Line) -> None:
        """The next portion. Nothing, if the flow was written to: then neither can this round."""
        flow = work.flow
        self._next.pop(flow.id, None)
        if flow.due_ms is not None and flow.due_ms <= work.now_ms:
            return
        walk = self._walks.get(flow.id)
        if walk is None or (walk.line, walk.rev) != (line.id, flow.rev):
            self._forget(flow.id)
            walk = await self._plan(flow, line)
        if walk is None:
            return
        self._walks[flow.id] = walk
        view = self._seen.get(flow.id) or await self._look(flow, line, walk)
        if view is None:
            return
        self._seen[flow.id] = view
        work.look(view)
        self._next[flow.id] = _step(work, line, walk, view)

    def written(self, flow: FlowId, *, is_done: bool) -> None:
        """What became of the round."""
        after = self._next.pop(flow, None)
        self._forget(flow)
        if is_done and after is not None and after.line:
            if len(self._walks) >= WALKS_MAX:
                self._walks.clear()
                self._seen.clear()
            self._walks[flow] = after

    def _forget(self, flow: FlowId) -> None:
        self._walks.pop(flow, None)
        self._seen.pop(flow, None)

    async def _plan(self, flow: Flow, line: Line) -> Walk | None:
        graph = await whole_graph(self._store.graph, flow.id)
        if graph is None or graph.flow.rev != flow.rev:
            return None
        root = ExecutionId(line.execution)
        again = dependants(root, graph.edges, graph.groups, graph.heads)
        weight = weights(again, graph.edges, graph.groups)
        order = deepest_first(again, graph.edges)
        heavy = {id for id in again if weight[id] > PORTION}
        wide: dict[ExecutionId, list[Edge]] = {}
        for edge in needed_last(to_open(graph.edges, heavy, {root, *again}), graph.groups):
            wide.setdefault(edge.downstream, []).append(edge)
        return Walk(line.id, flow.rev, [(id, weight[id]) for id in order], wide)

    async def _look(self, flow: Flow, line: Line, walk: Walk) -> View | None:
        """The members of the next portion, what enters them, and those it comes from."""
        again = {ExecutionId(line.execution), *(id for id, _ in walk.left)}
        ids = _portion(walk.left) or [ExecutionId(line.execution)]
        views: list[View] = []
        if not (edges := _some_edges(walk)):
            views = await self._store.graph(
                [Sight(flow=flow.id, heads=ids, entering=ids, lines=True)]
            )
            edges = [edge for edge in views[0].edges if is_asked_about(edge, again)]
        known = views[0].heads.keys() if views else set()
        ends = sorted({edge.upstream for edge in edges} - known)
        pages = [ends[start : start + PAGE] for start in range(0, len(ends), PAGE)]
        far = await self._store.graph([Sight(flow=flow.id, heads=page) for page in pages])
        views = [*views, *far]
        if any(view.flow is None or view.flow.rev != flow.rev for view in views):
            return None
        heads = {id: head for view in views for id, head in view.heads.items()}
        return msgspec.structs.replace(views[0], heads=heads) if views else View(flow=flow)


def _step(work: Round, line: Line, walk: Walk, view: View) -> Walk:
    """Decide the next portion; answers what is left after it."""
    root = ExecutionId(line.execution)
    opened = Opened({root, *(id for id, _ in walk.left)}, {root: line.generation})
    portion = _portion(walk.left)
    if not portion:
        let_go(work, line, view)
        return Walk("", 0, [], {})
    if some := _some_edges(walk):
        open_again(work, some, opened)
        wide = {**walk.wide, portion[0]: walk.wide[portion[0]][len(some) :]}
        return Walk(line.id, walk.rev + 1, walk.left, wide)
    reopen(work, portion, view, opened, reason=line.about)
    return Walk(line.id, walk.rev + 1, walk.left[len(portion) :], walk.wide)


def _some_edges(walk: Walk) -> list[Edge]:
    """Edges of the next member that are opened before it is taken back with the rest of them."""
    edges = walk.wide.get(walk.left[0][0], []) if walk.left else []
    return edges[:PORTION] if len(edges) > PORTION else []


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
