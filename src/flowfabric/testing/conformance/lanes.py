"""Lanes: listed by name, changed only as they were seen."""

from __future__ import annotations

import pytest

from flowfabric.core.model import Lane
from flowfabric.core.states import LaneState
from flowfabric.core.transition import Changeset, LaneChange
from flowfabric.store.protocol import Store
from flowfabric.testing.build import ask, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import put


async def change(store: Store, clock: VirtualClock, name: str, rev: int, *, to: LaneState) -> bool:
    return await store.commit(Changeset(lanes=[LaneChange(name, rev, to)]), clock.now_ms())


@pytest.mark.case("LI-028")
async def test_a_lane_is_listed_because_something_was_submitted_to_it(
    store: Store, clock: VirtualClock
) -> None:
    assert await change(store, clock, "set up", 0, to=LaneState.ACTIVE)
    await put(store, clock, order(0, lane="in use"))
    assert [lane.name for lane in await store.lanes("", 10)] == ["in use", "set up"]


async def test_lanes_are_listed_by_name_page_by_page(store: Store, clock: VirtualClock) -> None:
    names = ["b", "a", "c d", "B", "_", "c", "~", "0"]
    await put(store, clock, *(order(n, lane=name) for n, name in enumerate(names)))
    listed: list[str] = []
    while page := await store.lanes(listed[-1] if listed else "", 3):
        assert len(page) <= 3
        listed += [lane.name for lane in page]
    assert listed == sorted(names)
    assert await store.lanes("", 0) == []


async def test_a_lane_can_be_set_up_before_it_is_used(store: Store, clock: VirtualClock) -> None:
    assert await change(store, clock, "new", 0, to=LaneState.PAUSED)
    assert await store.lanes("", 10) == [Lane("new", LaneState.PAUSED, 1)]


@pytest.mark.parametrize("state", LaneState)
async def test_a_lane_takes_every_state(
    store: Store, clock: VirtualClock, state: LaneState
) -> None:
    await put(store, clock, order(0))
    before = (await store.lanes("", 10))[0]
    assert await change(store, clock, "main", before.rev, to=state)
    assert await store.lanes("", 10) == [Lane("main", state, before.rev + 1)]


@pytest.mark.parametrize("off_by", [-1, 1, 7])
async def test_a_lane_that_is_not_as_it_was_seen_is_left_alone(
    store: Store, clock: VirtualClock, off_by: int
) -> None:
    await put(store, clock, order(0))
    before = await store.lanes("", 10)
    assert not await change(store, clock, "main", before[0].rev + off_by, to=LaneState.PAUSED)
    assert await store.lanes("", 10) == before


async def test_a_lane_is_changed_once_by_each_look(store: Store, clock: VirtualClock) -> None:
    await put(store, clock, order(0))
    rev = (await store.lanes("", 10))[0].rev
    assert await change(store, clock, "main", rev, to=LaneState.PAUSED)
    assert not await change(store, clock, "main", rev, to=LaneState.ACTIVE)
    assert await change(store, clock, "main", rev + 1, to=LaneState.ACTIVE)
    assert [lane.rev for lane in await store.lanes("", 10)] == [rev + 2]


async def test_a_claim_does_not_judge_the_lane(store: Store, clock: VirtualClock) -> None:
    """Whether a paused lane hands out work is decided above the store."""
    await put(store, clock, order(0))
    assert await change(store, clock, "main", 1, to=LaneState.PAUSED)
    assert len(await store.claim(ask(clock.now_ms()))) == 1
