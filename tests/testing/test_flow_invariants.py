"""The rules about flows find what is wrong, and nothing where nothing is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from flowfabric.core.flow.graph import Policy
from flowfabric.core.flow.model import EdgeState, GroupState, Join, OnSatisfied
from flowfabric.core.states import State
from flowfabric.store.memory import MemoryStore
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.flow_invariants import Whole, broken_flow
from flowfabric.testing.flows import member, plan
from tests.flow.desk import FlowDesk

RACE = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)

_replace = msgspec.structs.replace


async def sound(clock: VirtualClock) -> Whole:
    """A race that is decided, a join that waits, and an end that nobody has dispatched."""
    desk = FlowDesk(MemoryStore(clock), clock)
    await desk.engine.open()
    await desk.draw(plan("abcdxy", "a>x b>x c>y d>y", policies={"x": RACE}))
    await desk.ended("a", "c")
    await desk.end("d")
    return await desk.whole()


def member_of(whole: Whole, name: str, **columns: object) -> Whole:
    rows = [_replace(row, **columns) if row.id == member(name) else row for row in whole.members]
    return _replace(whole, members=rows)


def group_of(whole: Whole, name: str, **columns: object) -> Whole:
    groups = [
        _replace(group, **columns) if group.downstream == member(name) else group
        for group in whole.groups
    ]
    return _replace(whole, groups=groups)


def edge_of(whole: Whole, name: str, **columns: object) -> Whole:
    edges = [
        _replace(edge, **columns) if edge.upstream == member(name) else edge for edge in whole.edges
    ]
    return _replace(whole, edges=edges)


BREAKS: dict[str, Callable[[Whole], Whole]] = {
    "lost member": lambda whole: _replace(whole, members=whole.members[1:]),
    "lost edge": lambda whole: _replace(whole, edges=whole.edges[1:]),
    "lost line": lambda whole: _replace(whole, lines=[]),
    "counted twice": lambda whole: _replace(whole, flow=_replace(whole.flow, completed=3)),
    "group counted twice": lambda whole: group_of(whole, "y", succeeded=2),
    "stuck group": lambda whole: group_of(edge_of(whole, "a", attempt=-1), "x", state="pending"),
    "decided too early": lambda whole: group_of(whole, "y", state=GroupState.SATISFIED),
    "resolved by nobody": lambda whole: edge_of(whole, "c", generation=1),
    "half resolved": lambda whole: edge_of(whole, "c", resolved_ms=None),
    "passes nothing on": lambda whole: edge_of(whole, "c", state=EdgeState.IMPOSSIBLE),
    "passes too much on": lambda whole: edge_of(whole, "b", attempt=0, state="satisfied"),
    "runs too early": lambda whole: member_of(whole, "y", state=State.WAITING, deps_open=False),
    "never runs": lambda whole: member_of(whole, "x", deps_open=True),
    "owed by nobody": lambda whole: group_of(whole, "x", cancel_owed=True, owed=member("b")),
    "flag without list": lambda whole: group_of(whole, "x", cancel_owed=True),
}


async def test_a_flow_as_it_should_be_breaks_no_rule(clock: VirtualClock) -> None:
    assert broken_flow(await sound(clock)) == []


@pytest.mark.parametrize("name", BREAKS)
async def test_what_is_wrong_is_said(clock: VirtualClock, name: str) -> None:
    assert broken_flow(BREAKS[name](await sound(clock)))
