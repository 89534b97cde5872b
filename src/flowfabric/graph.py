"""Graph: a flow that is known in advance.

    g = app.graph("etl")
    rows = g.add(fetch, url)
    done = g.add(load, rows)            # a node as an argument draws an edge and passes its result
    run = await g.submit()
    print(await run.result(done))

Nothing is written before `submit`, which writes everything or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import ParamSpec, TypeVar, overload

import msgspec

from flowfabric.client.client import Client
from flowfabric.client.flow_handle import FlowHandle
from flowfabric.core import names
from flowfabric.core.duration import Span, when
from flowfabric.core.exact import flag
from flowfabric.core.flow.digest import Said, digest_of
from flowfabric.core.flow.graph import Link, Plan, Policy, quorum_of
from flowfabric.core.flow.inputs import PLACES
from flowfabric.core.flow.model import START, EdgeKind, GroupKey, Join, OnSatisfied
from flowfabric.core.ids import FlowId
from flowfabric.core.policy import DEFAULT, RetentionPolicy
from flowfabric.errors import InvalidInput
from flowfabric.node import UPSTREAMS, After, Choice, Condition, Given, Node, Upstream
from flowfabric.task import Home, Task, TaskOf
from flowfabric.worker.inputs import escaped

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
P = ParamSpec("P")
R = TypeVar("R")


_LEAVES = frozenset({str, int, float, bool, bytes, type(None)})


class Edge(msgspec.Struct, gc=False):
    upstream: Node[object]
    downstream: Node[object]
    group: str
    kind: EdgeKind
    argument: str = ""


class _Waits(msgspec.Struct, gc=False):
    """What a node waits for, while it is being added."""

    node: Node[object]
    edges: dict[tuple[Node[object], str], Edge] = msgspec.field(default_factory=dict)
    policies: dict[tuple[Node[object], str], Policy] = msgspec.field(default_factory=dict)


class Graph:
    """Collects nodes and edges; `submit` makes a flow of them, once."""

    def __init__(
        self,
        name: str,
        home: Home,
        *,
        deadline: datetime | Span | None = None,
        retention: RetentionPolicy = DEFAULT.retention_policy,
    ) -> None:
        self.name = names.task_name(name, "name")
        self.home = home
        self._deadline = when(deadline, "deadline")
        self._retention = retention
        # Which place each node has; they are told apart by what they are, not by a name.
        self._nodes: dict[Node[object], int] = {}
        self._edges: list[Edge] = []
        self._policies: dict[tuple[Node[object], str], Policy] = {}
        # Those that were given a name, to find them by.
        self._named: dict[str, Node[object]] = {}
        self._is_submitted = False

    # A type checker takes the first that fits: plain arguments as the function takes them, else
    # arguments by their places, each of which may be a node.
    @overload
    def add(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Node[R]: ...
    @overload
    def add(self, task: TaskOf[Callable[[], R]], /, *, after: After) -> Node[R]: ...
    @overload
    def add(
        self, task: TaskOf[Callable[[A], R]], a: Given[A], /, *, after: After = ()
    ) -> Node[R]: ...
    @overload
    def add(
        self, task: TaskOf[Callable[[A, B], R]], a: Given[A], b: Given[B], /, *, after: After = ()
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: TaskOf[Callable[[A, B, C], R]],
        a: Given[A],
        b: Given[B],
        c: Given[C],
        /,
        *,
        after: After = (),
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: TaskOf[Callable[[A, B, C, D], R]],
        a: Given[A],
        b: Given[B],
        c: Given[C],
        d: Given[D],
        /,
        *,
        after: After = (),
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: TaskOf[Callable[[A, B, C, D, E], R]],
        a: Given[A],
        b: Given[B],
        c: Given[C],
        d: Given[D],
        e: Given[E],
        /,
        *,
        after: After = (),
    ) -> Node[R]: ...
    @overload
    def add(
        self,
        task: TaskOf[Callable[[A, B, C, D, E, F], R]],
        a: Given[A],
        b: Given[B],
        c: Given[C],
        d: Given[D],
        e: Given[E],
        f: Given[F],
        /,
        *,
        after: After = (),
    ) -> Node[R]: ...

    def add(self, task: object, /, *args: object, **kwargs: object) -> object:
        """Add a member that calls this task, with the options of the task; `options(name=...)`
        names it in this graph.

        It waits for every node among its arguments, and for those in `after`, unless the task has a
        parameter of that name.
        """
        self._require_open()
        if not isinstance(task, Task):
            raise _no_task(task)
        self.home.require(task.home, task.name)
        after = () if "after" in task.handler.names else kwargs.pop("after", ())
        return self._add(task, task.handler.bind(args, kwargs), after)

    def _add(self, task: Task[..., R], values: Mapping[str, object], after: object) -> Node[R]:
        found: list[tuple[str, Upstream]] = []
        # The name of a parameter has nothing that a path would have to escape.
        plain = {name: _plain(value, name, found) for name, value in values.items()}
        later = {path.partition("/")[0] for path, _ in found}
        request = task.request({**values, **{name: plain[name] for name in later}}, later)
        self._require_new(request.name)
        node: Node[R] = Node(
            request.name or f"{task.name}-{len(self._nodes)}",
            request,
            task.handler.result.decode,
            task.handler.result.needs,
        )
        for path, source in found:
            _require_readable(task, path, source)
        others = () if after == () else _listed(after, "after")
        if found or others:
            self._hold(_Waits(node), found, others)
        self._nodes[node] = len(self._nodes)
        if request.name:
            self._named[request.name] = node
        return node

    def _require_new(self, name: str) -> None:
        if name in self._named:
            raise InvalidInput(
                f"graph {self.name!r} already has a member {name!r}",
                field="name",
                hint="choose another name",
            )

    def any_of(self, *nodes: Node[R] | Iterable[Node[R]], let_run: bool = False) -> Choice[R]:
        """Wait for the first that succeeds; the others are cancelled, unless `let_run`."""
        return Choice(self._several(nodes), Policy(Join.ANY_OF, 1, _rest(let_run)))

    def quorum(
        self, k: int, *nodes: Node[R] | Iterable[Node[R]], let_run: bool = False
    ) -> Choice[list[R]]:
        """Wait for the first k that succeed; as an argument, the list of their results."""
        chosen = self._several(nodes)
        return Choice(chosen, Policy(Join.QUORUM, quorum_of(k, len(chosen)), _rest(let_run)))

    def _several(self, given: Sequence[object]) -> list[Node[object]]:
        """The nodes of a choice, each once, said one by one or as a list."""
        chosen: dict[Node[object], None] = {}
        for each in _listed(given[0] if len(given) == 1 else given, "nodes"):
            if not isinstance(each, Node):
                raise InvalidInput(
                    f"a choice cannot wait for {each!r}",
                    field="nodes",
                    hint="pass nodes, which `add` returned; a choice waits for their success",
                )
            self._require_member(each)
            chosen[each] = None
        if not chosen:
            raise InvalidInput(
                "the choice has no nodes", field="nodes", hint="pass at least one node"
            )
        return list(chosen)

    def _hold(
        self, waits: _Waits, found: Iterable[tuple[str, Upstream]], after: Iterable[object]
    ) -> None:
        for path, upstream in found:
            self._wait(waits, upstream, path)
        for other in after:
            self._wait(waits, other, "")
        self._edges += waits.edges.values()
        self._policies |= waits.policies

    def _wait(self, waits: _Waits, upstream: object, place: str) -> None:
        if isinstance(upstream, Node):
            self._draw(waits, Condition(upstream, EdgeKind.SUCCESS_ONLY), START, place)
        elif isinstance(upstream, Choice):
            group = f"{START}.{len(waits.policies) + 1}"
            waits.policies[waits.node, group] = upstream.policy
            for each in upstream.nodes:
                self._draw(waits, Condition(each, EdgeKind.SUCCESS_ONLY), group, place)
        elif isinstance(upstream, Condition):
            _require_result(upstream, place)
            self._draw(waits, upstream, START, place)
        else:
            raise InvalidInput(
                f"{upstream!r} is not a node", field="after", hint="pass what `add` returned"
            )

    def _draw(self, waits: _Waits, on: Condition, group: str, place: str) -> None:
        upstream, kind = on.node, on.kind
        self._require_member(upstream)
        edge = waits.edges.get((upstream, group))
        if edge is None:
            waits.edges[upstream, group] = Edge(upstream, waits.node, group, kind, place)
            return
        if edge.kind is not kind:
            raise InvalidInput(
                f"{waits.node!r} waits for {upstream!r} with two kinds of edges",
                field="after",
                hint="choose one",
            )
        edge.argument = PLACES.join(filter(None, (edge.argument, place)))

    def _require_member(self, node: Node[object]) -> None:
        if node not in self._nodes:
            raise InvalidInput(
                f"{node!r} is not in this graph", field="after", hint="add it to this graph"
            )

    def _require_open(self) -> None:
        if self._is_submitted:
            raise InvalidInput(
                f"graph {self.name!r} was already submitted", field="graph", hint="build a new one"
            )

    async def submit(self, *, idempotency_key: str | None = None) -> FlowHandle:
        """Write the whole flow. With a key, submitting the same graph again returns the flow."""
        self._require_open()
        if not self._nodes:
            raise InvalidInput(
                f"graph {self.name!r} has no members", field="graph", hint="add some with `add`"
            )
        key = None if idempotency_key is None else names.idempotency_key(idempotency_key)
        client = await self.home.connect()
        plan = self._plan(client, client.mint_flow(key), is_keyed=key is not None)
        for node, order in zip(self._nodes, plan.orders, strict=True):
            node._id = order.id
        handle = await client.submit_flow(plan, {name: n.decode for name, n in self._named.items()})
        self._is_submitted = True
        return handle

    def _plan(self, client: Client, flow: FlowId, *, is_keyed: bool) -> Plan:
        # One moment for all: what is counted from it means the same in every submit.
        now_ms = client.now_ms()
        requests = [node.request for node in self._nodes]
        orders = client.member_orders(flow, requests, is_keyed=is_keyed, now_ms=now_ms)
        ids = {node: order.id for node, order in zip(self._nodes, orders, strict=True)}
        plan = Plan(
            id=flow,
            namespace=client.namespace,
            name=self.name,
            orders=orders,
            links=[
                Link(ids[e.upstream], ids[e.downstream], e.kind, e.group, e.argument)
                for e in self._edges
            ],
            policies={
                GroupKey(ids[node], group): policy
                for (node, group), policy in self._policies.items()
            },
            deadline_ms=None if self._deadline is None else self._deadline.at(now_ms),
            retention=self._retention,
            keep_until_ms=now_ms + DEFAULT.dedup_window_ms if is_keyed else 0,
        )
        # Only a key can mean another flow than this one.
        if not is_keyed:
            return plan
        said = {
            order.id: Said(request.delay, request.deadline)
            for request, order in zip(requests, orders, strict=True)
        }
        return msgspec.structs.replace(plan, digest=digest_of(plan, now_ms, self._deadline, said))


def _rest(let_run: bool) -> OnSatisfied:
    return OnSatisfied.LET_RUN if flag(let_run, "let_run") else OnSatisfied.CANCEL_REMAINING


def _no_task(task: object) -> InvalidInput:
    hint = "decorate it with @app.task" if callable(task) else "pass a task made by @app.task"
    if isinstance(task, Coroutine):
        task.close()
        hint = "pass the task and its arguments separately: graph.add(task, ...)"
    return InvalidInput(f"{task!r} is not a task", field="task", hint=hint)


def _listed(given: object, field: str) -> Sequence[object]:
    """What may be said alone or as a list."""
    if isinstance(given, UPSTREAMS):
        return [given]
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        return list(given)
    raise InvalidInput(
        f"expected nodes, got {given!r}", field=field, hint="pass what `add` returned, or a list"
    )


def _require_result(on: Condition, place: str) -> None:
    if place and on.kind is not EdgeKind.COMPLETION:
        raise InvalidInput(
            f"`.failed` and `.ended` only order work; they carry no result (got {on.node!r})",
            field=place,
            hint="pass it in `after`, or use `node.optional`",
        )


def _require_readable(task: Task[..., R], path: str, source: Upstream) -> None:
    """What is passed to a parameter without annotation arrives as plain JSON."""
    name = path.partition("/")[0]
    if not task.handler.arguments.is_unsaid(name):
        return
    nodes = source.nodes if isinstance(source, Choice) else (source,)
    for each in nodes:
        node = each.node if isinstance(each, Condition) else each
        if node.needs:
            raise InvalidInput(
                f"task {task.name!r}: {node!r} passes {node.needs}, "
                "but the parameter has no annotation",
                field=name,
                hint="annotate the parameter with the type that it takes",
            )


def _plain(value: object, path: str, found: list[tuple[str, Upstream]]) -> object:
    """The value with nothing where nodes stand; they and their places are put aside."""
    if type(value) in _LEAVES:
        return value
    if isinstance(value, UPSTREAMS):
        found.append((path, value))
        return None
    if isinstance(value, Mapping):
        return {
            key: _plain(each, f"{path}/{escaped(str(key))}", found) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(each, f"{path}/{place}", found) for place, each in enumerate(value)]
    return value
