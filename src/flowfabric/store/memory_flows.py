"""The tables of flows of the memory store: dicts, and the questions that are asked of them.

Nothing here locks or decides; the store calls it under its lock, after the guards held.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TypeVar, assert_never

import msgspec

from flowfabric.core.flow.changes import FlowPatch, Resolution
from flowfabric.core.flow.model import (
    Edge,
    EdgeKey,
    EdgeState,
    Flow,
    Group,
    Line,
    Unreadable,
    is_free,
)
from flowfabric.core.flow.views import FlowQuery, Members, Pending, Sight, Turn, View
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.model import Execution
from flowfabric.core.retention import Purge
from flowfabric.core.transition import Changeset
from flowfabric.store.damage import unreadable_flow
from flowfabric.store.upkeep import Size

_replace_flow: Callable[..., Flow] = msgspec.structs.replace
_in_order = attrgetter("upstream", "downstream", "group")
_Edges = dict[EdgeKey, Edge]
UNREADABLE = "unreadable"
Record = Flow | Edge | Group | Line
R = TypeVar("R", Edge, Group, Line)


class FlowBook:
    """All flows, and by flow its members, edges, groups and open lines."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}
        self._members: dict[str, dict[ExecutionId, None]] = {}
        self._entering: dict[ExecutionId, _Edges] = {}
        self._leaving: dict[ExecutionId, _Edges] = {}
        self._groups: dict[ExecutionId, dict[str, Group]] = {}
        self._lines: dict[str, dict[tuple[int, str], Line]] = {}
        self._spoilt: dict[tuple[str, str], Unreadable] = {}

    def holds(self, changes: Changeset) -> bool:
        """Whether every flow is as it was seen."""
        if any(flow.id in self._flows for flow in changes.new_flows):
            return False
        revs = [(self._flows.get(seen.id), seen.rev) for seen in changes.flows]
        return all(flow is not None and rev in (None, flow.rev) for flow, rev in revs)

    def write(self, changes: Changeset) -> None:
        for flow in changes.new_flows:
            self._flows[flow.id] = flow
        for change in (each for each in changes.flows if each.rev is not None):
            self._patch(change)
        for edge in changes.edges:
            if edge.key not in self._entering.get(edge.downstream, {}):
                self._put(edge)
        for resolution in changes.resolved:
            self._resolve(resolution)
        for group in changes.groups:
            self._groups.setdefault(group.downstream, {})[group.name] = group
        for line in changes.done:
            self._lines.get(line.flow, {}).pop((line.at_ms, line.id), None)
        self.add_lines(changes.lines)

    def add_lines(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._lines.setdefault(line.flow, {})[line.at_ms, line.id] = line

    def join(self, row: Execution) -> None:
        """A row is a member of the flow that it names."""
        self._members.setdefault(row.flow, {})[row.id] = None

    def is_open(self, id: str) -> bool:
        flow = self._flows.get(id)
        return flow is None or flow.is_open

    def departing(self, now_ms: int, limit: int) -> list[Flow]:
        due = sorted(
            (flow.purge_ms, flow.id)
            for flow in self._flows.values()
            if flow.purge_ms is not None and flow.purge_ms <= now_ms
        )
        return [self._flows[id] for _, id in due[:limit]]

    def departing_members(self, purge: Purge) -> list[ExecutionId]:
        """The members that may go this time."""
        return [
            member
            for flow in self._as_seen(purge)
            for member in sorted(self._members.get(flow.id, {}))[: purge.members]
        ]

    def _as_seen(self, purge: Purge) -> list[Flow]:
        flows = [(self._flows.get(id), rev) for id, rev in purge.flows]
        return [flow for flow, rev in flows if flow is not None and flow.rev == rev]

    def remove(self, purge: Purge, going: Iterable[ExecutionId]) -> list[FlowId]:
        """Remove these members, and flows that have none left; answers which flows are gone. The
        rows of members are the caller's."""
        gone: list[FlowId] = []
        members = set(going)
        for flow in self._as_seen(purge):
            for member in members & self._members.get(flow.id, {}).keys():
                self._forget(flow.id, member)
            if self._members.get(flow.id):
                self._flows[flow.id] = _replace_flow(flow, rev=flow.rev + 1)
                continue
            for table in (self._flows, self._members, self._lines):
                table.pop(flow.id, None)
            gone.append(flow.id)
        return gone

    def _forget(self, flow: FlowId, member: ExecutionId) -> None:
        """Edges go with their downstream."""
        del self._members[flow][member]
        for key in self._entering.pop(member, {}):
            self._leaving.get(key.upstream, {}).pop(key, None)
        self._leaving.pop(member, None)
        self._groups.pop(member, None)
        self._spoilt.pop(("execution", member), None)

    def sizes(self) -> list[Size]:
        return [
            Size("flow", len(self._flows), 0),
            Size("edge", sum(map(len, self._entering.values())), 0),
            Size("edge_group", sum(map(len, self._groups.values())), 0),
            Size("line", sum(map(len, self._lines.values())), 0),
        ]

    def _patch(self, change: FlowPatch) -> None:
        flow = self._flows[change.id]
        self._flows[change.id] = _replace_flow(flow, **{**change.patch, "rev": flow.rev + 1})

    def _put(self, edge: Edge) -> None:
        self._entering.setdefault(edge.downstream, {})[edge.key] = edge
        self._leaving.setdefault(edge.upstream, {})[edge.key] = edge

    def _resolve(self, resolution: Resolution) -> None:
        edge = self._entering.get(resolution.downstream, {}).get(resolution.key)
        if edge is not None:
            self._put(resolution.of(edge))

    def take(self, turn: Turn) -> list[Pending | Unreadable]:
        """Lease flows that have something to do."""
        taken: list[Pending | Unreadable] = []
        for id in self._candidates(turn):
            flow = self._flows.get(id)
            if flow is None or not is_free(flow, turn.now_ms):
                continue
            lines = self._due_lines(id, turn.now_ms, turn.lines)
            if not lines and not (flow.due_ms is not None and flow.due_ms <= turn.now_ms):
                continue
            self._flows[id] = _replace_flow(flow, busy_until_ms=turn.until_ms)
            lost: list[Unreadable] = []
            readable = self._readable(lines, lost)
            bad = self._spoilt.get(("flow", id))
            taken.append(bad or Pending(self._flows[id], readable, lost))
            if len(taken) == turn.limit:
                break
        return taken

    def next_turn(self, now_ms: int) -> int | None:
        flows = [flow for flow in self._flows.values() if not flow.parked]
        times = (at for flow in flows for at in self._times(flow))
        return min((at for at in times if at > now_ms), default=None)

    def _times(self, flow: Flow) -> Iterator[int]:
        lines = self._lines.get(flow.id, {}).values()
        yield flow.next_try_ms
        yield from (line.next_try_ms for line in lines)
        if flow.due_ms is not None:
            yield flow.due_ms
        if lines or flow.due_ms is not None:
            yield flow.busy_until_ms

    def _candidates(self, turn: Turn) -> Iterator[str]:
        if turn.only:
            yield from turn.only
            return
        timed = {id for id, flow in self._flows.items() if flow.due_ms is not None}
        ids = sorted(timed | {id for id, lines in self._lines.items() if lines})
        yield from (id for id in ids if id > turn.after)
        yield from (id for id in ids if id <= turn.after)

    def _due_lines(self, id: str, now_ms: int, limit: int) -> list[Line]:
        due = (item for item in self._lines.get(id, {}).items() if item[1].next_try_ms <= now_ms)
        return [line for _, line in heapq.nsmallest(limit, due)]

    def _seen_lines(self, sight: Sight) -> list[Line]:
        if sight.lines:
            return [line for _, line in sorted(self._lines.get(sight.flow, {}).items())]
        return self._due_lines(sight.flow, sight.now_ms, sight.due_lines)

    def look(self, sight: Sight, row: Callable[[ExecutionId], Execution | None]) -> View:
        flow = self._flows.get(sight.flow)
        bad = self._spoilt.get(("flow", sight.flow))
        if flow is None or bad is not None:
            return View(flow=None, unreadable=[bad] if bad else [])
        lost: list[Unreadable] = []
        edges = self._readable(self._edges(sight), lost)
        groups, wanted = dict.fromkeys(sight.groups), list(sight.heads)
        members = self._page(sight.flow, sight.members, row) if sight.members else []
        upstreams = set(sight.leaving)
        leaving = [edge.downstream for edge in edges if edge.upstream in upstreams]
        groups |= dict.fromkeys((*leaving, *sight.entering))
        wanted += [*leaving, *members]
        if sight.ends:
            entering = set(sight.entering)
            wanted += [edge.upstream for edge in edges if edge.downstream in entering]
        found = {
            id: row(id) for id in dict.fromkeys(wanted) if ("execution", id) not in self._spoilt
        }
        seen = [group for id in groups for _, group in sorted(self._groups.get(id, {}).items())]
        bad_rows = [self._spoilt.get(("execution", id)) for id in dict.fromkeys(wanted)]
        return View(
            flow=flow,
            edges=edges,
            groups=self._readable(seen, lost),
            heads={id: head for id, head in found.items() if head is not None},
            members=members,
            lines=self._readable(self._seen_lines(sight), lost),
            tally=self._tally(sight.flow, row) if sight.tally else {},
            unreadable=[*lost, *(row for row in bad_rows if row is not None)],
        )

    def find(self, query: FlowQuery) -> list[Flow]:
        fitting = (flow for flow in self._flows.values() if flow.is_open and _fits(flow, query))
        found = heapq.nsmallest(query.limit, fitting, key=attrgetter("id"))
        for flow in found:
            if (lost := self._spoilt.get(("flow", flow.id))) is not None:
                raise unreadable_flow(flow.id, lost.problem)
        return found

    def _readable(self, records: list[R], lost: list[Unreadable]) -> list[R]:
        """Those that nobody spoilt; the others are added to what is lost."""
        if not self._spoilt:
            return records
        bad = [self._spoilt.get(_name(record)) for record in records]
        lost += [each for each in bad if each is not None]
        return [record for record, each in zip(records, bad, strict=True) if each is None]

    def _edges(self, sight: Sight) -> list[Edge]:
        if sight.whole:
            ids = self._members.get(sight.flow, {})
            return sorted(
                (edge for id in ids for edge in self._leaving.get(id, {}).values()), key=_in_order
            )
        pending = (
            edge
            for id in set(sight.leaving)
            for edge in self._leaving.get(id, {}).values()
            if edge.state is EdgeState.PENDING
        )
        leaving = heapq.nsmallest(sight.edges, pending, key=_in_order)
        found = {edge.key: edge for edge in leaving}
        for id in sight.entering:
            found |= self._entering.get(id, {})
        return sorted(found.values(), key=_in_order)

    def _page(
        self, flow: FlowId, page: Members, row: Callable[[ExecutionId], Execution | None]
    ) -> list[ExecutionId]:
        found: list[ExecutionId] = []
        for id in sorted(self._members.get(flow, {})):
            head = row(id) if id > page.after else None
            if head is None or (page.states and head.state not in page.states):
                continue
            found.append(id)
            if len(found) == page.limit:
                break
        return found

    def _tally(
        self, flow: FlowId, row: Callable[[ExecutionId], Execution | None]
    ) -> dict[str, int]:
        members = self._members.get(flow, {})
        lost = sum(("execution", id) in self._spoilt for id in members)
        heads = [row(id) for id in members if ("execution", id) not in self._spoilt]
        counts = Counter(str(head.state) for head in heads if head is not None)
        return dict(counts) | ({UNREADABLE: lost} if lost else {})

    def spoil(self, record: Record | ExecutionId, problem: str) -> None:
        """Nobody can read this record any more; without a problem, everybody can again."""
        kind, name = ("execution", record) if isinstance(record, str) else _name(record)
        self._spoilt.pop((kind, name), None)
        if problem:
            self._spoilt[kind, name] = Unreadable(kind, name, problem)


def _name(record: Record) -> tuple[str, str]:
    match record:
        case Flow():
            return "flow", record.id
        case Edge():
            return "edge", f"{record.upstream} {record.downstream} {record.group}"
        case Group():
            return "group", f"{record.downstream} {record.name}"
        case Line():
            return "line", record.id
        case _:
            assert_never(record)


def _fits(flow: Flow, query: FlowQuery) -> bool:
    return (
        flow.id > query.after
        and query.namespace in (None, flow.namespace)
        and query.name in (None, flow.name)
        and (not query.states or flow.state in query.states)
        and not (query.unsettled and flow.settled)
    )
