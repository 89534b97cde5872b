"""Lines that are added to a flow whatever else happens to it: it only has to be there."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.changes import FlowPatch, Note
from flowfabric.core.flow.model import Line, LineKind, line_id
from flowfabric.core.transition import Changeset
from flowfabric.errors import IllegalTransition
from flowfabric.store.hints import Hint
from flowfabric.store.protocol import Store
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import everything, flow_of, put_flow, take_flows
from flowfabric.testing.flows import FLOW, flow_id, member, plan

KIND = LineKind.REQUEST_CANCEL


def wish(at_ms: int, flow: int = 1, about: str = "cancel_all no") -> Line:
    id = flow_id(flow)
    return Line(flow=id, at_ms=at_ms, id=line_id(KIND, id), kind=KIND, about=about)


def added(*lines: Line) -> Changeset:
    return Changeset(flows=[FlowPatch(lines[0].flow, None, {})], lines=lines)


async def test_a_line_is_added_and_the_flow_stays_as_it_was(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("ab", "a>b"))
    before = await everything(store)
    heard: list[Hint] = []
    store.hints.subscribe(heard.append)
    assert await store.commit(added(wish(5)), clock.now_ms())
    after = await everything(store)
    assert after.lines == [wish(5)]
    assert (after.flow, after.members, after.edges) == (before.flow, before.members, before.edges)
    assert any(FLOW in hint.flows for hint in heard)
    (taken,) = await take_flows(store, clock)
    assert (taken.flow.id, taken.lines) == (FLOW, [wish(5)])


async def test_a_line_is_added_while_the_flow_is_taken_and_changed(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("a"))
    assert await store.commit(added(wish(5)), clock.now_ms())
    await take_flows(store, clock)
    seen = await flow_of(store)
    assert await store.commit(added(wish(6)), clock.now_ms())
    # Whoever decided from what it saw before is not refused by it.
    rival = Changeset(flows=[FlowPatch(FLOW, seen.rev, {"busy_until_ms": 0})], done=[wish(5)])
    assert await store.commit(rival, clock.now_ms())
    assert await store.commit(added(wish(7)), clock.now_ms())
    assert (await everything(store)).lines == [wish(6), wish(7)]


async def test_a_line_that_is_added_twice_is_one(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("a"))
    for _ in range(2):
        assert await store.commit(added(wish(5)), clock.now_ms())
    assert (await everything(store)).lines == [wish(5)]


async def test_a_line_for_a_flow_that_is_not_there_is_refused_alone(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("a"))
    await put_flow(store, clock, plan("a", flow=flow_id(3)))
    stale = Changeset(flows=[FlowPatch(flow_id(3), 9, {})], lines=[wish(5, flow=3)])
    batch = [added(wish(5, flow=2)), added(wish(5)), stale]
    assert await store.commit_each(batch, clock.now_ms()) == [False, True, False]
    assert (await everything(store)).lines == [wish(5)]
    assert not await store.commit(added(wish(5, flow=2)), clock.now_ms())
    assert [taken.flow.id for taken in await take_flows(store, clock)] == [FLOW]


def test_nothing_but_lines_can_be_added_without_a_revision() -> None:
    seen = FlowPatch(FLOW, None, {})
    with pytest.raises(IllegalTransition, match="only outbox entries"):
        Changeset(flows=[seen], lines=[wish(5)], notes=[Note(member("a"), "noted", {})])
    with pytest.raises(IllegalTransition, match="only outbox entries"):
        Changeset(flows=[FlowPatch(FLOW, None, {"updated_ms": 1})], lines=[wish(5)])
    with pytest.raises(IllegalTransition, match="only outbox entries"):
        Changeset(flows=[seen], done=[wish(5)])
