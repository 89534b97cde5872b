"""Graph: a flow that is known in advance.

    g = app.graph("etl")
    rows = g.add(fetch, url)
    done = g.add(load, rows)            # a node as an argument draws an edge and passes its result
    run = await g.submit()
    print(await run.result(done))

Nothing is written before `submit`, which writes everything or nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Generic, TypeVar, Union

import msgspec

from flowfabric.client.client import Client, Request
from flowfabric.client.flow_handle import FlowHandle
from flowfabric.core import names
from flowfabric.core.duration import Span, when
from flowfabric.core.exact import flag
from flowfabric.core.flow.digest import digest_of
from flowfabric.core.flow.graph import Link, Plan, Policy, quorum_of
from flowfabric.core.flow.inputs import PLACES
from flowfabric.core.flow.model import START, EdgeKind, GroupKey, Join, OnSatisfied
from flowfabric.core.ids import ExecutionId, FlowId, public_id
from flowfabric.core.policy import DEFAULT, RetentionPolicy
from flowfabric.errors import InvalidInput
from flowfabric.task import Task
from flowfabric.worker.inputs import escaped

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Condition(msgspec.Struct, frozen=True, gc=False):
    """An upstream, and which of its ends are waited for."""

    node: Node[object]
    kind: EdgeKind


# What stands for a result among arguments.
Source = Union["Node[object]", "Choice[object]", Condition]


class Node(msgspec.Struct, Generic[R_co], eq=False, gc=False):
    """One member to be. As an argument it stands for its result."""

    name: str
    request: Request
    decode: Callable[[bytes], R_co]
    # The annotation that its result cannot be read without.
    needs: str = ""
    _id: ExecutionId | None = None

    def __repr__(self) -> str:
        return f"Node({self.name!r})"

    @property
    def id(self) -> str:
        """The id of the member, once its graph is submitted."""
        if self._id is None:
            raise InvalidInput("is not submitted", field="node", hint="submit its graph first")
        return public_id(self._id)

    @property
    def optional(self) -> Condition:
        """As an argument: its result, or None if it ended in another way than by success."""
        return Condition(self, EdgeKind.COMPLETION)

    @property
    def failed(self) -> Condition:
        """For `after`: when it has failed, was cancelled or ran out of time, but not when it was
        skipped. What is to clean up after it runs then, and is skipped otherwise."""
        return Condition(self, EdgeKind.FAILURE)

    @property
    def ended(self) -> Condition:
        """For `after`: when it has ended, in whatever way."""
        return Condition(self, EdgeKind.ORDER)


class Choice(Generic[R_co]):
    """Some of several nodes. As an argument it stands for what they pass on."""

    def __init__(self, nodes: Sequence[Node[object]], policy: Policy) -> None:
        self.nodes = tuple(nodes)
        self.policy = policy


Upstream = Node[object] | Choice[object] | Condition

_NOBODY: tuple[Upstream, ...] = ()
_SOURCES = (Node, Choice, Condition)
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
        connect: Callable[[], Awaitable[Client]],
        *,
        deadline: datetime | Span | None = None,
        retention: RetentionPolicy = DEFAULT.retention_policy,
    ) -> None:
        self.name = names.task_name(name, "name")
        self._connect = connect
        self._deadline = when(deadline, "deadline")
        self._retention = retention
        # Which place each node has; they are told apart by what they are, not by a name.
        self._nodes: dict[Node[object], int] = {}
        self._edges: list[Edge] = []
        self._policies: dict[tuple[Node[object], str], Policy] = {}
        self._is_submitted = False

    def add(
        self,
        task: Task[R],
        /,
        *args: object,
        after: Upstream | Iterable[Upstream] = _NOBODY,
        **kwargs: object,
    ) -> Node[R]:
        """A member that calls this task.

        It waits for every node among its arguments, and for those in `after`.
        """
        self._require_open()
        if not isinstance(task, Task):
            raise _no_task(task)
        values = task.handler.bind(args, kwargs)
        found: list[tuple[str, Source]] = []
        # The name of a parameter has nothing that a path would have to escape.
        plain = {name: _plain(value, name, found) for name, value in values.items()}
        later = {path.partition("/")[0] for path, _ in found}
        node: Node[R] = Node(
            f"{task.name}-{len(self._nodes)}",
            task.request(values | {name: plain[name] for name in later}, later),
            task.handler.result.decode,
            task.handler.result.needs,
        )
        for path, source in found:
            _require_readable(task, path, source)
        others = () if after is _NOBODY else _listed(after, "after")
        if found or others:
            self._hold(_Waits(node), found, others)
        self._nodes[node] = len(self._nodes)
        return node

    def any_of(self, *nodes: Node[R] | Iterable[Node[R]], let_run: bool = False) -> Choice[R]:
        """The first that succeeds; the others are cancelled unless they are to be `let_run`."""
        return Choice(self._several(nodes), Policy(Join.ANY_OF, 1, _rest(let_run)))

    def quorum(
        self, k: int, *nodes: Node[R] | Iterable[Node[R]], let_run: bool = False
    ) -> Choice[list[R]]:
        """The first k that succeed; as an argument, the list of their results."""
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
            raise InvalidInput("a choice of nothing", field="nodes", hint="pass nodes")
        return list(chosen)

    def _hold(
        self, waits: _Waits, found: Iterable[tuple[str, Source]], after: Iterable[object]
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
                f"{waits.node!r} waits for {upstream!r} in two ways",
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
            raise InvalidInput("was submitted", field="graph", hint="build a new one")

    async def submit(self, *, idempotency_key: str | None = None) -> FlowHandle:
        """Write the whole flow. With a key, submitting the same again answers the same flow."""
        self._require_open()
        if not self._nodes:
            raise InvalidInput("has no members", field="graph", hint="add some")
        key = None if idempotency_key is None else names.idempotency_key(idempotency_key)
        client = await self._connect()
        plan = self._plan(client, client.mint_flow(key), is_keyed=key is not None)
        for node, order in zip(self._nodes, plan.orders, strict=True):
            node._id = order.id
        handle = await client.submit_flow(plan)
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
        return msgspec.structs.replace(plan, digest=digest_of(plan, now_ms, self._deadline))


def _rest(let_run: bool) -> OnSatisfied:
    return OnSatisfied.LET_RUN if flag(let_run, "let_run") else OnSatisfied.CANCEL_REMAINING


def _no_task(task: object) -> InvalidInput:
    hint = "decorate it with @app.task" if callable(task) else "pass what @app.task made"
    return InvalidInput(f"{task!r} is not a task", field="task", hint=hint)


def _listed(given: object, field: str) -> Sequence[object]:
    """What may be said alone or as a list."""
    if isinstance(given, _SOURCES):
        return [given]
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        return list(given)
    raise InvalidInput(
        f"expected nodes, got {given!r}", field=field, hint="pass what `add` returned, or a list"
    )


def _require_result(on: Condition, place: str) -> None:
    if place and on.kind is not EdgeKind.COMPLETION:
        raise InvalidInput(
            f"{on.node!r} passes nothing when it is waited for so",
            field=place,
            hint="put it into `after`, or pass `node.optional`",
        )


def _require_readable(task: Task[R], path: str, source: Source) -> None:
    """What is passed to a parameter without annotation arrives as plain JSON."""
    name = path.partition("/")[0]
    if not task.handler.arguments.is_unsaid(name):
        return
    nodes = source.nodes if isinstance(source, Choice) else (source,)
    for each in nodes:
        node = each.node if isinstance(each, Condition) else each
        if node.needs:
            raise InvalidInput(
                f"task {task.name!r}: {node!r} passes {node.needs}, and no annotation says so",
                field=name,
                hint="annotate the parameter with what it takes",
            )


def _plain(value: object, path: str, found: list[tuple[str, Source]]) -> object:
    """The value with nothing where nodes stand; they and their places are put aside."""
    if type(value) in _LEAVES:
        return value
    if isinstance(value, _SOURCES):
        found.append((path, value))
        return None
    if isinstance(value, Mapping):
        return {
            key: _plain(each, f"{path}/{escaped(str(key))}", found) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(each, f"{path}/{place}", found) for place, each in enumerate(value)]
    return value
