"""One flow as an operator sees it: what became of it, and its members as a tree.

A member stands below the first of those that it waits for; the others are named in its line.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.text import Text
from rich.tree import Tree

from flowfabric.app import App
from flowfabric.cli.operating.texts import STYLES, ago, clock
from flowfabric.cli.terminal import console_for, table_of
from flowfabric.core.flow.member_names import name_in
from flowfabric.core.flow.model import Edge
from flowfabric.core.flow.summary import FlowSnapshot
from flowfabric.core.ids import ExecutionId, parse_execution_id
from flowfabric.core.model import Execution
from flowfabric.core.states import PUBLIC
from flowfabric.printing import one_line

# A tree of more lines than this says nothing; `ff ps --flow` lists them.
MEMBERS_MAX = 200


class SeenFlow(msgspec.Struct, frozen=True, kw_only=True):
    """One flow as it is now; its members only if they fit on a screen or two."""

    now_ms: int
    flow: FlowSnapshot
    members: list[Execution]
    edges: list[Edge]
    names: dict[str, str]


async def read(app: App, id: str) -> SeenFlow:
    run = app.flow_handle(id)
    status = await run.status()
    members: list[Execution] = []
    edges: list[Edge] = []
    if status.flow.total <= MEMBERS_MAX:
        picture = await run.graph()
        members, edges = picture.members, picture.edges
    return SeenFlow(
        now_ms=app.engine.clock.now_ms(),
        flow=status,
        members=members,
        edges=edges,
        names=await member_names(app, [each.id for each in members]),
    )


def show(seen: SeenFlow) -> None:
    console = console_for(sys.stdout)
    console.print(table_of(("flow", one_line(seen.flow.flow.id)), _facts(seen)))
    if seen.members:
        console.print(_tree(seen))
    elif seen.flow.flow.total:
        print(f"list its members with: ff ps --flow {seen.flow.flow.id}")


def _facts(seen: SeenFlow) -> Iterator[tuple[str, str]]:
    flow, summary = seen.flow.flow, seen.flow.summary
    counts = {
        word.removeprefix("members_"): getattr(summary, word)
        for word in summary.__struct_fields__
        if word.startswith("members_")
    }
    shown = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    facts = {
        "name": flow.name,
        "state": seen.flow.state,
        "outcome": seen.flow.outcome,
        "members": f"{flow.total:,}" + (f": {shown}" if shown else ""),
        "created": f"{clock(flow.created_ms)} ({ago(flow.created_ms, seen.now_ms)})",
        "deadline": clock(flow.deadline_ms),
        "cancel": flow.cancel_reason,
    }
    return ((name, text) for name, text in facts.items() if text)


def _tree(seen: SeenFlow) -> Tree:
    members = {each.id: each for each in seen.members}
    waits = _upstreams(seen.edges)
    below: defaultdict[ExecutionId | None, list[ExecutionId]] = defaultdict(list)
    for each in seen.members:
        first = next((up for up in waits.get(each.id, ()) if up in members), None)
        below[first].append(each.id)
    tree = Tree(Text(one_line(seen.flow.flow.name), style="bold"), guide_style="dim")
    open_nodes = [(tree, id) for id in reversed(below[None])]
    while open_nodes:
        parent, id = open_nodes.pop()
        node = parent.add(_line(members[id], waits.get(id, ())[1:], seen.names))
        open_nodes += [(node, child) for child in reversed(below[id])]
    return tree


def _upstreams(edges: Sequence[Edge]) -> Mapping[ExecutionId, list[ExecutionId]]:
    found: defaultdict[ExecutionId, list[ExecutionId]] = defaultdict(list)
    for edge in sorted(edges, key=lambda edge: edge.position):
        if edge.upstream not in found[edge.downstream]:
            found[edge.downstream].append(edge.upstream)
    return found


def _line(member: Execution, also: Sequence[ExecutionId], names: Mapping[str, str]) -> Text:
    state = PUBLIC[member.state]
    text = Text(one_line(names.get(member.id) or member.kind))
    text.append(f"  {state}", style=STYLES.get(state, "dim")).append(f"  {member.id}", style="dim")
    if also:
        shown = ", ".join(one_line(names.get(id) or id) for id in also)
        text.append(f"  also after {shown}", style="dim")
    return text


async def member_names(app: App, ids: Sequence[str]) -> dict[str, str]:
    """The names that members were given, by the ids that people see; nothing for one without."""
    stored = {parse_execution_id(id): id for id in ids}
    tags = await app.engine.read.tags_of(list(stored)) if stored else {}
    return {stored[id]: name_in(found) for id, found in tags.items() if name_in(found)}
