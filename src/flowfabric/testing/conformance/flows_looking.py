"""Looking at parts of flows: what is asked for is answered, from one moment, in a known order."""

from __future__ import annotations

import msgspec
import pytest

from flowfabric.core.flow.changes import FlowPatch, Resolution
from flowfabric.core.flow.model import EdgeState
from flowfabric.core.flow.views import Members, Sight, View
from flowfabric.core.lifecycle import complete
from flowfabric.core.states import Outcome, State
from flowfabric.core.transition import Changeset
from flowfabric.store.hints import Hint
from flowfabric.store.protocol import Store
from flowfabric.testing.build import ROUTE
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import (
    add_lines,
    everything,
    heads_of,
    look,
    put_flow,
    take_flows,
)
from flowfabric.testing.conformance.flows_pending import line
from flowfabric.testing.conformance.steps import Corrupter, apply, take
from flowfabric.testing.flows import FLOW, flow_id, member, plan

WEB = "a>c b>c c>d a>d b>e"


def pairs(view: View) -> list[tuple[str, str]]:
    return [(edge.upstream, edge.downstream) for edge in view.edges]


def named(*names: str) -> list[tuple[str, str]]:
    return [(member(name[0]), member(name[1])) for name in names]


async def test_an_unknown_flow_is_none_and_keeps_no_other_back(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("a"))
    nobody, somebody = await store.graph([Sight(flow=flow_id(99)), Sight(flow=FLOW)])
    assert nobody.flow is None
    assert somebody.flow is not None
    assert (somebody.edges, somebody.groups, somebody.heads, somebody.lines) == ([], [], {}, [])


async def test_edges_that_leave_come_with_who_waits_for_them(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("abcde", WEB))
    view = await look(store, Sight(flow=FLOW, leaving=[member("b"), member("a")]))
    assert pairs(view) == named("ac", "ad", "bc", "be")
    assert {group.downstream for group in view.groups} == {member(n) for n in "cde"}
    assert heads_of(view) == {member(n) for n in "cde"}
    first = await look(store, Sight(flow=FLOW, leaving=[member("b"), member("a")], edges=3))
    assert pairs(first) == named("ac", "ad", "bc")


async def test_resolved_edges_leave_nobody_any_more(store: Store, clock: VirtualClock) -> None:
    made = await put_flow(store, clock, plan("abcde", WEB))
    edge = made.edges[0]
    done = Resolution(*edge.key, EdgeState.IMPOSSIBLE, 0, -1, Outcome.FAILED, 1)
    changes = Changeset(flows=[FlowPatch(FLOW, made.flow.rev, {})], resolved=[done])
    assert await store.commit(changes, clock.now_ms())
    assert pairs(await look(store, Sight(flow=FLOW, leaving=[member("a")]))) == named("ad")
    one = await look(store, Sight(flow=FLOW, leaving=[member("a")], edges=1))
    assert pairs(one) == named("ad")
    entering = await look(store, Sight(flow=FLOW, entering=[member("c")]))
    assert [(e.upstream, e.state) for e in entering.edges] == [
        (member("a"), EdgeState.IMPOSSIBLE),
        (member("b"), EdgeState.PENDING),
    ]


@pytest.mark.parametrize("is_resolved", [True, False])
async def test_an_edge_that_is_there_is_not_drawn_again(
    store: Store, clock: VirtualClock, is_resolved: bool
) -> None:
    made = await put_flow(store, clock, plan("abcde", WEB))
    done = Resolution(*made.edges[0].key, EdgeState.IMPOSSIBLE, 0, -1, Outcome.FAILED, 1)
    resolved = Changeset(flows=[FlowPatch(FLOW, made.flow.rev, {})], resolved=[done])
    if is_resolved:
        assert await store.commit(resolved, clock.now_ms())
    before = await everything(store)
    other = msgspec.structs.replace(
        made.edges[0],
        state=EdgeState.PENDING if is_resolved else EdgeState.SATISFIED,
        position=9,
        argument="other",
    )
    leaving = pairs(await look(store, Sight(flow=FLOW, leaving=[member("a")])))
    again = Changeset(flows=[FlowPatch(FLOW, made.flow.rev + is_resolved, {})], edges=[other])
    assert await store.commit(again, clock.now_ms())
    assert (await everything(store)).edges == before.edges
    assert pairs(await look(store, Sight(flow=FLOW, leaving=[member("a")]))) == leaving


async def test_edges_that_enter_come_with_their_groups_and_on_request_with_their_upstreams(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("abcde", WEB))
    view = await look(store, Sight(flow=FLOW, entering=[member("c"), member("d")]))
    assert pairs(view) == named("ac", "ad", "bc", "cd")
    assert {group.downstream for group in view.groups} == {member("c"), member("d")}
    assert view.heads == {}
    ends = await look(store, Sight(flow=FLOW, entering=[member("c")], ends=True))
    assert heads_of(ends) == {member("a"), member("b")}


async def test_the_whole_graph_and_single_heads_and_groups(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("abcde", WEB))
    view = await look(
        store, Sight(flow=FLOW, whole=True, heads=[member("a"), member("z")], groups=[member("e")])
    )
    assert pairs(view) == named("ac", "ad", "bc", "be", "cd")
    assert heads_of(view) == {member("a")}
    assert [group.downstream for group in view.groups] == [member("e")]


async def test_members_come_in_pages_by_state(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("abcde", WEB))
    await put_flow(store, clock, plan("ab", flow=flow_id(2)))
    every = (await look(store, Sight(flow=FLOW, members=Members(limit=3)))).members
    assert every == [member(n) for n in "abc"]
    rest = await look(store, Sight(flow=FLOW, members=Members(limit=3, after=every[-1])))
    assert rest.members == [member(n) for n in "de"]
    assert heads_of(rest) == set(rest.members)
    waiting = Members(states=(State.WAITING,))
    assert (await look(store, Sight(flow=FLOW, members=waiting))).members == [
        member("a"),
        member("b"),
    ]


async def test_several_flows_in_one_look_keep_apart(store: Store, clock: VirtualClock) -> None:
    other = flow_id(2)
    await put_flow(store, clock, plan("ab", "a>b"))
    await put_flow(store, clock, plan("abc", "a>b a>c", flow=other))
    await add_lines(store, clock, line(1, other))
    mine, theirs = await store.graph(
        [
            Sight(flow=FLOW, leaving=[member("a")], lines=True),
            Sight(flow=other, leaving=[member("a", other)], lines=True, edges=1),
        ]
    )
    assert pairs(mine) == named("ab")
    assert pairs(theirs) == [(member("a", other), member("b", other))]
    assert heads_of(mine) == {member("b")}
    assert heads_of(theirs) == {member("b", other)}
    assert (mine.lines, [each.flow for each in theirs.lines]) == ([], [other])


async def test_the_oldest_lines_whose_time_has_come_can_be_asked_for(
    store: Store, clock: VirtualClock
) -> None:
    """So many of each flow, also where the same flow is asked for twice."""
    other = flow_id(2)
    for flow in (FLOW, other):
        await put_flow(store, clock, plan("a", flow=flow))
    now_ms = clock.now_ms()
    later = [line(number, at_ms=number, next_try_ms=now_ms + 1) for number in (1, 3)]
    ready = [line(number, at_ms=number // 2) for number in (9, 8, 7, 6)]
    await add_lines(store, clock, *later, *ready)
    await add_lines(store, clock, line(5, other))
    sights = [
        Sight(flow=flow, due_lines=most, now_ms=now_ms)
        for flow, most in ((FLOW, 3), (other, 3), (FLOW, 3), (FLOW, 9))
    ]
    found = [[each.execution for each in view.lines] for view in await store.graph(sights)]
    assert found == [["6", "7", "8"], ["5"], ["6", "7", "8"], ["6", "7", "8", "9"]]
    (after,) = await store.graph([Sight(flow=FLOW, due_lines=2, now_ms=now_ms + 1)])
    assert [each.execution for each in after.lines] == ["1", "3"]
    assert (await look(store, Sight(flow=FLOW))).lines == []


async def test_a_head_that_cannot_be_read_is_named_and_keeps_no_other_back(
    store: Store, clock: VirtualClock, corrupter: Corrupter
) -> None:
    await put_flow(store, clock, plan("abc", "a>b a>c"))
    await corrupter(member("b"))
    view = await look(store, Sight(flow=FLOW, leaving=[member("a")]))
    assert heads_of(view) == {member("c")}
    assert [(lost.kind, lost.name) for lost in view.unreadable] == [("execution", member("b"))]


async def test_hints_name_flows_that_have_something_to_do(
    store: Store, clock: VirtualClock
) -> None:
    heard: list[Hint] = []

    def hear(hint: Hint) -> None:
        # That somebody else wrote may be said at any time.
        if not hint.foreign:
            heard.append(hint)

    store.hints.subscribe(hear)
    await put_flow(store, clock, plan("ab", "a>b"))
    assert (heard[-1].ready, heard[-1].flows) == ((ROUTE,), ())
    lease = (await take(store, clock))[0]
    await apply(store, clock, complete(lease, clock.now_ms(), b""))
    assert [hint.flows for hint in heard if hint.flows] == [(FLOW,)]
    heard.clear()
    await add_lines(store, clock, line(7))
    assert [hint.flows for hint in heard] == [(FLOW,)]
    heard.clear()
    await take_flows(store, clock)
    assert heard == []
    store.hints.unsubscribe(hear)
