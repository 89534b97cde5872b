"""Changesets: everything in them is written, or nothing is."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from flowfabric.core.lifecycle import complete
from flowfabric.core.model import Execution, Lane, Lease
from flowfabric.core.operator import Source, block, cancel, set_tags
from flowfabric.core.states import LaneState, Reason, State
from flowfabric.core.transition import Changeset, LaneChange, Transition, patched
from flowfabric.errors import IllegalTransition
from flowfabric.store.protocol import Store
from flowfabric.testing.build import execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.steps import contents, head, loaded, put, result, take


class Scene(NamedTuple):
    """Two leases, two waiting rows, one lane; a changeset about the rows, one about lanes."""

    leases: list[Lease]
    rows: list[Execution]
    transitions: list[Transition]
    lanes: list[LaneChange]


async def scene(store: Store, clock: VirtualClock) -> Scene:
    await put(store, clock, order(0), order(1))
    leases = await take(store, clock, 2)
    rows = await put(store, clock, order(2), order(3, tags={"a.b": "1"}))
    now_ms = clock.advance(5)
    transitions = [
        complete(leases[0], now_ms, b"done"),
        cancel(leases[1].head, now_ms, "no", source=Source.OPERATOR),
        block(rows[0], now_ms, Reason.WAITING_FOR_QUOTA),
        set_tags(rows[1], now_ms, {"a.b": "2", "a.c": "3"}),
    ]
    lanes = [LaneChange("main", 1, LaneState.PAUSED), LaneChange("new", 0, LaneState.DRAINING)]
    return Scene(leases, rows, transitions, lanes)


async def test_a_changeset_is_written_whole(store: Store, clock: VirtualClock) -> None:
    on = await scene(store, clock)
    before = {row.id: row for row in (*(lease.head for lease in on.leases), *on.rows)}

    assert await store.commit(Changeset(on.transitions), clock.now_ms())
    assert await store.commit(Changeset(lanes=on.lanes), clock.now_ms())

    for transition in on.transitions:
        row = await head(store, transition.id)
        assert row == patched(before[transition.id], transition.patch)
    assert await result(store, on.leases[0].id) == b"done"
    assert (await loaded(store, on.rows[1].id)).tags == {"a.b": "2", "a.c": "3"}
    assert await store.lanes("", 10) == [
        Lane("main", LaneState.PAUSED, 2),
        Lane("new", LaneState.DRAINING, 1),
    ]


def _stale(lease: Lease) -> Lease:
    return Lease(msgspec.structs.replace(lease.head, epoch=lease.epoch + 1))


def _older(row: Execution) -> Execution:
    return msgspec.structs.replace(row, rev=row.rev - 1)


def _ghost(row: Execution) -> Execution:
    return msgspec.structs.replace(row, id=execution_id(99))


BAD = ("lease", "revision", "absent row", "lane", "lane that is there", "lane that is not there")


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", ["first", "last"])
async def test_one_guard_that_does_not_hold_keeps_everything_out(
    store: Store, clock: VirtualClock, bad: str, place: str
) -> None:
    on = await scene(store, clock)
    now_ms = clock.now_ms()
    spoiler: Transition | LaneChange
    match bad:
        case "lease":
            spoiler = complete(_stale(on.leases[0]), now_ms, b"")
        case "revision":
            spoiler = set_tags(_older(on.rows[1]), now_ms, {"a.b": "4"})
        case "absent row":
            spoiler = set_tags(_ghost(on.rows[1]), now_ms, {"a.b": "4"})
        case "lane":
            spoiler = LaneChange("main", 2, LaneState.DISABLED)
        case "lane that is there":
            spoiler = LaneChange("main", 0, LaneState.DISABLED)
        case _:
            spoiler = LaneChange("other", 1, LaneState.DISABLED)
    before = await contents(store)

    assert not await store.commit(_spoiled(on, spoiler, place), now_ms)

    assert await contents(store) == before


def _spoiled(on: Scene, spoiler: Transition | LaneChange, place: str) -> Changeset:
    """The changeset of the scene with one bad member in place of the good one, first or last."""
    if isinstance(spoiler, Transition):
        others = [each for each in on.transitions if each.id != spoiler.id]
        members = [spoiler, *others] if place == "first" else [*others, spoiler]
        return Changeset(members)
    lanes = [each for each in on.lanes if each.name != spoiler.name]
    changes = [spoiler, *lanes] if place == "first" else [*lanes, spoiler]
    return Changeset(lanes=changes)


async def test_after_a_refused_changeset_its_members_can_be_written(
    store: Store, clock: VirtualClock
) -> None:
    on = await scene(store, clock)
    lane = LaneChange("other", 1, LaneState.DISABLED)
    stale = complete(_stale(on.leases[0]), clock.now_ms(), b"")
    assert not await store.commit(_spoiled(on, lane, "last"), clock.now_ms())
    assert not await store.commit(_spoiled(on, stale, "last"), clock.now_ms())
    for changes in (Changeset(on.transitions), Changeset(lanes=on.lanes)):
        assert await store.commit(changes, clock.now_ms())
        assert not await store.commit(changes, clock.now_ms())
    assert (await head(store, on.leases[1].id)).state is State.CANCELLED


async def test_the_end_of_a_lease_counts_in_a_changeset_too(
    store: Store, clock: VirtualClock
) -> None:
    on = await scene(store, clock)
    clock.set(on.leases[0].until_ms)
    before = await contents(store)
    late = Changeset([complete(on.leases[0], clock.now_ms(), b"late")])
    assert not await store.commit(late, clock.now_ms())
    assert await contents(store) == before


async def test_an_empty_changeset_holds(store: Store, clock: VirtualClock) -> None:
    before = await contents(store)
    assert await store.commit(Changeset(), clock.now_ms())
    assert await contents(store) == before


async def test_changes_of_two_scopes_cannot_be_a_changeset(
    store: Store, clock: VirtualClock
) -> None:
    """No store of several servers could write them as a whole."""
    on = await scene(store, clock)
    elsewhere = (await put(store, clock, order(9, id=execution_id(9, partition=8))))[0]
    tagged = set_tags(elsewhere, clock.now_ms(), {"a.b": "1"})
    with pytest.raises(IllegalTransition):
        Changeset(on.transitions, on.lanes)
    with pytest.raises(IllegalTransition):
        Changeset([*on.transitions, tagged])


async def test_two_changes_of_one_record_cannot_be_a_changeset(
    store: Store, clock: VirtualClock
) -> None:
    on = await scene(store, clock)
    with pytest.raises(IllegalTransition):
        Changeset([on.transitions[0], on.transitions[0]])
    with pytest.raises(IllegalTransition):
        Changeset(lanes=[on.lanes[0], LaneChange("main", 1, LaneState.ACTIVE)])


async def test_a_large_changeset_is_one_change(store: Store, clock: VirtualClock) -> None:
    rows = await put(store, clock, *(order(n) for n in range(500)))
    now_ms = clock.now_ms()
    ended = [cancel(row, now_ms, "", source=Source.OPERATOR) for row in rows]
    spoiled = [*ended[:-1], cancel(_older(rows[-1]), now_ms, "", source=Source.OPERATOR)]
    before = await contents(store)
    assert not await store.commit(Changeset(spoiled), now_ms)
    assert await contents(store) == before
    assert await store.commit(Changeset(ended), now_ms)
    assert {(await head(store, row.id)).state for row in rows} == {State.CANCELLED}
