"""Small flows that this process works on, as they are after all that it wrote to them.

Whoever decides from here need not look first. Nothing rests on it being true: what is decided is
written under the `rev` of the flow and of every member that it changes, and a flow that turns out
to have changed elsewhere is forgotten and looked at as any other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from operator import attrgetter

import msgspec

from flowfabric.core.flow.inputs import Passed, passed, passes
from flowfabric.core.flow.model import Edge, EdgeState, Flow, Group
from flowfabric.core.flow.views import View
from flowfabric.core.ids import ExecutionId
from flowfabric.core.model import Execution, Lease
from flowfabric.core.transition import BATCH_LIMIT, Changeset, Transition, patched
from flowfabric.store.hints import Hint, Hints

FLOWS_MAX = 2_000
BYTES_MAX = 128 << 20
RECORD_BYTES = 500
RECORDS_MAX = BATCH_LIMIT
BODY_BYTES_MAX = 4_096

# What an `EdgeKey` says.
_Key = tuple[ExecutionId, str, ExecutionId]

_replace_flow: Callable[..., Flow] = msgspec.structs.replace
_in_order = attrgetter("upstream", "downstream", "group")
_PENDING = EdgeState.PENDING
_NONE: Mapping[str, Group] = {}


class _Known:
    """One flow: its row, its members, and by member the edges and groups around it."""

    def __init__(self, made: Changeset) -> None:
        self.flow = made.new_flows[0]
        self.heads = {each.execution.id: each.execution for each in made.members}
        self.payloads = {
            each.execution.id: each.payload
            for each in made.members
            if len(each.payload) <= BODY_BYTES_MAX
        }
        self.results: dict[tuple[ExecutionId, int], bytes] = {}
        self.bytes = sum(map(len, self.payloads.values())) + RECORD_BYTES * _records(made)
        self.groups: dict[ExecutionId, dict[str, Group]] = {}
        # Plain tuples of texts cost the garbage collector nothing, however many there are.
        self.edges: dict[_Key, Edge] = {}
        self.entering: dict[ExecutionId, tuple[_Key, ...]] = {}
        self.leaving: dict[ExecutionId, tuple[_Key, ...]] = {}
        for group in made.groups:
            self.groups.setdefault(group.downstream, {})[group.name] = group
        for edge in made.edges:
            upstream, downstream = edge.upstream, edge.downstream
            key = (downstream, edge.group, upstream)
            self.edges[key] = edge
            self.entering[downstream] = (*self.entering.get(downstream, ()), key)
            self.leaving[upstream] = (*self.leaving.get(upstream, ()), key)

    def view(self, ended: Sequence[Execution]) -> View:
        """What a look at the edges that leave these members would show."""
        edges: list[Edge] = []
        groups: list[Group] = []
        heads: dict[ExecutionId, Execution] = {}
        for end in ended:
            for key in self.leaving.get(end.id, ()):
                edge = self.edges[key]
                if edge.state is _PENDING:
                    edges.append(edge)
        if len(edges) > 1:
            edges.sort(key=_in_order)
        for id in dict.fromkeys([edge.downstream for edge in edges]):
            groups += self.groups.get(id, _NONE).values()
            if (head := self.heads.get(id)) is not None:
                heads[id] = head
        for end in ended:
            heads[end.id] = end
        return View(flow=self.flow, edges=edges, groups=groups, heads=heads)

    def write(self, changes: Changeset, heads: Sequence[Execution]) -> None:
        """What a commit has made of it; `heads` are some of its members as they are now."""
        patch = changes.flows[0].patch
        self.flow = _replace_flow(self.flow, **patch, rev=self.flow.rev + 1)
        if len(heads) < len(changes.transitions):
            self._move(changes, {head.id for head in heads})
        for head in heads:
            self.heads[head.id] = head
        for became in changes.resolved:
            key = (became.downstream, became.group, became.upstream)
            edge = self.edges.get(key)
            if edge is not None:
                self.edges[key] = became.of(edge)
        for group in changes.groups:
            self.groups.setdefault(group.downstream, {})[group.name] = group

    def _move(self, changes: Changeset, besides: Container[ExecutionId]) -> None:
        for each in changes.transitions:
            if each.id not in besides and each.id in self.heads:
                self.heads[each.id] = patched(self.heads[each.id], each.patch)

    def keep_result(self, end: Transition) -> None:
        """Of an end that was written; a long one is read when it is needed."""
        attempt = end.attempt
        result = None if attempt is None else attempt.result
        if attempt is not None and result is not None and len(result) <= BODY_BYTES_MAX:
            self.results[attempt.execution, attempt.attempt] = result
            self.bytes += len(result)

    def inputs(self, lease: Lease) -> list[Passed] | None:
        """What this member is handed; None if it is not known, or has changed since its release."""
        known = self.heads.get(lease.head.id)
        # Set free and claimed in one write, or in two.
        if known is None or lease.head.rev - known.rev not in (0, 1):
            return None
        results = self.results
        handing: list[Edge] = []
        for key in self.entering.get(known.id, ()):
            edge = self.edges[key]
            if passes(edge):
                if (edge.upstream, edge.attempt) not in results:
                    return None
                handing.append(edge)
        return passed(handing, self.groups.get(known.id, _NONE), results)


class KnownFlows:
    """Nothing is kept until somebody who works here asks for it.

    A flow with open lines is left to the dispatcher: what ended first is acted on first.
    """

    def __init__(self, hints: Hints | None = None) -> None:
        self.is_kept = False
        self._hints = hints or Hints()
        self._flows: dict[str, _Known] = {}
        self._shared: dict[str, None] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """From now on flows that are made here are also worked on here."""
        self.is_kept = True
        self._hints.subscribe(self._hear)

    def _hear(self, hint: Hint) -> None:
        for flow in hint.flows:
            self.forget(flow)

    def end(self) -> None:
        self.is_kept = False
        self._hints.unsubscribe(self._hear)
        with self._lock:
            self._flows.clear()
            self._bytes = 0

    def keep(self, made: Changeset) -> None:
        """A flow that was just made here, or read, if it is small and all of it is in this
        changeset."""
        if not self.is_kept or _records(made) > RECORDS_MAX:
            return
        with self._lock:
            known = _Known(made)
            self._bytes += known.bytes
            self._flows[known.flow.id] = known
            while len(self._flows) > FLOWS_MAX or self._bytes > BYTES_MAX:
                self._drop(next(iter(self._flows)))

    def _drop(self, flow: str) -> None:
        known = self._flows.pop(flow, None)
        self._bytes -= 0 if known is None else known.bytes

    def views(self, ended: Mapping[str, Sequence[Execution]]) -> dict[str, View]:
        """By flow what a look at what follows from the ends of these members would show, of those
        that are known."""
        with self._lock:
            known = self._flows
            return {flow: known[flow].view(mine) for flow, mine in ended.items() if flow in known}

    def payloads(self, flow: str) -> Mapping[ExecutionId, bytes]:
        """Of its members, but for long ones."""
        known = self._flows.get(flow)
        return {} if known is None else known.payloads

    def knows(self, flow: str) -> bool:
        return flow in self._flows

    def write(
        self,
        changes: Changeset,
        ends: Sequence[Transition] = (),
        heads: Sequence[Execution] = (),
    ) -> None:
        """A commit that this process has made; what is settled is not needed any more."""
        seen = changes.flows[0]
        with self._lock:
            known = self._flows.get(seen.id)
            if known is None:
                return
            is_over = seen.patch.get("settled") or _leaves_lines(changes)
            if is_over or known.flow.rev != seen.rev or changes.members or changes.edges:
                self._drop(seen.id)
                return
            before = known.bytes
            for end in ends:
                known.keep_result(end)
            self._bytes += known.bytes - before
            known.write(changes, heads)

    def forget(self, flow: str) -> None:
        with self._lock:
            self._drop(flow)

    def is_wanted(self, flow: str) -> bool:
        """Whether it should be read: it is not known, and nobody else works on it that we know."""
        return self.is_kept and flow not in self._flows and flow not in self._shared

    def leave(self, flow: str) -> None:
        """Others work on it too: it would be known wrongly again and again."""
        with self._lock:
            self._drop(flow)
            self._shared[flow] = None
            if len(self._shared) > FLOWS_MAX:
                del self._shared[next(iter(self._shared))]

    def inputs(self, lease: Lease) -> list[Passed] | None:
        if not lease.head.flow:
            return None
        with self._lock:
            known = self._flows.get(lease.head.flow)
            return None if known is None else known.inputs(lease)


def is_for_dispatchers(flow: Flow) -> bool:
    """Whether more than its ends has to be looked after: a deadline, or work that failed."""
    return bool(flow.failures) or flow.due_ms is not None


def _records(made: Changeset) -> int:
    return len(made.members) + len(made.edges) + len(made.groups)


def _leaves_lines(changes: Changeset) -> bool:
    for transition in changes.transitions:
        if transition.line is not None:
            return True
    return bool(changes.lines)
