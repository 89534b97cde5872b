"""Flows with something to do: who gets them, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from flowfabric.core.flow.model import Line, LineKind, line_id
from flowfabric.core.ids import FlowId
from flowfabric.core.lifecycle import complete
from flowfabric.core.operator import Source, cancel
from flowfabric.core.transition import Applied, Changeset, Rejected
from flowfabric.store.protocol import Store
from flowfabric.testing.build import ask
from flowfabric.testing.build import order as solo
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.flow_steps import (
    add_lines,
    everything,
    flow_of,
    ids,
    patch,
    put_flow,
    take_flows,
)
from flowfabric.testing.conformance.steps import head, put_and_take, take
from flowfabric.testing.flows import FLOW, flow_id, member, plan


def line(number: int, flow: FlowId = FLOW, *, at_ms: int = 1, next_try_ms: int = 0) -> Line:
    return Line(
        flow=flow,
        at_ms=at_ms,
        id=line_id(LineKind.ENDED, str(number)),
        kind=LineKind.ENDED,
        execution=str(number),
        next_try_ms=next_try_ms,
    )


async def several(store: Store, clock: VirtualClock, count: int) -> list[FlowId]:
    """Flows with one line each, in the order of their ids."""
    flows = sorted(flow_id(number) for number in range(1, count + 1))
    for flow in flows:
        await put_flow(store, clock, plan("a", flow=flow))
        await add_lines(store, clock, line(1, flow))
    return flows


async def test_the_end_of_a_member_adds_its_line_and_leaves_the_flow(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("ab", "a>b"))
    before = await flow_of(store)
    lease = (await take(store, clock, only=member("a")))[0]
    ended = complete(lease, clock.now_ms(), b"1")
    assert await store.apply([ended], clock.now_ms()) == [Applied(member("a"))]
    found = await everything(store)
    assert (found.flow, found.lines) == (before, [ended.line])
    assert found.lines[0].about == "success"


async def test_a_refused_end_adds_no_line(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("a"))
    lease = (await take(store, clock))[0]
    other = await put_and_take(store, clock, solo(5))
    stale = msgspec.structs.replace(lease, head=msgspec.structs.replace(lease.head, epoch=9))
    now_ms = clock.now_ms()
    answers = await store.apply(
        [complete(stale, now_ms, b""), complete(other, now_ms, b"")], now_ms
    )
    assert [type(answer) for answer in answers] == [Rejected, Applied]
    assert (await everything(store)).lines == []


async def test_a_commit_adds_the_lines_of_its_ends(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("a"))
    row = await head(store, member("a"))
    ended = cancel(row, clock.now_ms(), "no", source=Source.OPERATOR)
    assert await store.commit(Changeset([ended]), clock.now_ms())
    assert (await everything(store)).lines == [ended.line]


async def test_a_flow_without_lines_is_not_given_out(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("a"))
    before = await everything(store)
    assert await take_flows(store, clock) == []
    assert await take_flows(store, clock, only=(FLOW, flow_id(9))) == []
    assert await everything(store) == before


async def test_a_flow_is_given_out_once_with_its_oldest_lines(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("a"))
    lines = [line(number, at_ms=10 - number) for number in range(6)]
    await add_lines(store, clock, *lines)
    before = await flow_of(store)
    (taken,) = await take_flows(store, clock, lines=4)
    assert taken.lines == lines[:1:-1]
    until_ms = clock.now_ms() + 1_000
    assert taken.flow == msgspec.structs.replace(before, busy_until_ms=until_ms)
    assert await flow_of(store) == taken.flow
    assert await take_flows(store, clock) == []
    assert await take_flows(store, clock, only=(FLOW,)) == []
    clock.set(until_ms)
    assert ids(await take_flows(store, clock)) == [FLOW]


async def test_a_changeset_gives_a_flow_back(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("a"))
    await add_lines(store, clock, line(1))
    assert ids(await take_flows(store, clock)) == [FLOW]
    await patch(store, clock, busy_until_ms=0)
    assert ids(await take_flows(store, clock)) == [FLOW]


async def test_lines_whose_time_has_not_come_wait(store: Store, clock: VirtualClock) -> None:
    await put_flow(store, clock, plan("a"))
    soon = clock.now_ms() + 50
    await add_lines(store, clock, line(1, next_try_ms=soon))
    assert await take_flows(store, clock) == []
    assert await take_flows(store, clock, only=(FLOW,)) == []
    await add_lines(store, clock, line(2))
    (taken,) = await take_flows(store, clock, lease_ms=1)
    assert [each.execution for each in taken.lines] == ["2"]
    clock.set(soon)
    (taken,) = await take_flows(store, clock)
    assert [each.execution for each in taken.lines] == ["1", "2"]


@pytest.mark.parametrize("column", ["parked", "next_try_ms"])
async def test_a_flow_that_was_put_aside_is_not_given_out(
    store: Store, clock: VirtualClock, column: str
) -> None:
    await put_flow(store, clock, plan("a"))
    await add_lines(store, clock, line(1))
    later = clock.now_ms() + 10
    await patch(store, clock, **{column: "broken" if column == "parked" else later})
    assert await take_flows(store, clock) == []
    assert await take_flows(store, clock, only=(FLOW,)) == []
    clock.set(later)
    assert ids(await take_flows(store, clock)) == ([] if column == "parked" else [FLOW])


async def test_a_flow_whose_timer_has_passed_is_given_out_without_lines(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("a", deadline_ms=clock.now_ms() + 10))
    assert await take_flows(store, clock) == []
    assert await take_flows(store, clock, only=(FLOW,)) == []
    clock.advance(10)
    (taken,) = await take_flows(store, clock, lease_ms=1)
    assert (taken.flow.id, taken.lines) == (FLOW, [])
    clock.advance(1)
    assert ids(await take_flows(store, clock, only=(FLOW,))) == [FLOW]


@pytest.mark.parametrize("only", [(), (FLOW,)], ids=["all", "named"])
@pytest.mark.parametrize("column", ["busy_until_ms", "next_try_ms"])
async def test_a_flow_whose_timer_has_passed_is_given_out_once_it_is_free(
    store: Store, clock: VirtualClock, column: str, only: tuple[FlowId, ...]
) -> None:
    free_ms = clock.now_ms() + 20
    await put_flow(store, clock, plan("a", deadline_ms=clock.now_ms() + 10))
    await patch(store, clock, **{column: free_ms})
    clock.set(free_ms - 1)
    assert await take_flows(store, clock, only=only) == []
    clock.set(free_ms)
    assert ids(await take_flows(store, clock, only=only)) == [FLOW]


async def flow_deadline(store: Store, clock: VirtualClock, at_ms: int) -> None:
    await put_flow(store, clock, plan("a", deadline_ms=at_ms))


async def flow_put_back(store: Store, clock: VirtualClock, at_ms: int) -> None:
    await put_flow(store, clock, plan("a"))
    await add_lines(store, clock, line(1))
    await patch(store, clock, next_try_ms=at_ms)


async def line_put_back(store: Store, clock: VirtualClock, at_ms: int) -> None:
    await put_flow(store, clock, plan("a"))
    await add_lines(store, clock, line(1, next_try_ms=at_ms))


async def lease_with_lines(store: Store, clock: VirtualClock, at_ms: int) -> None:
    await put_flow(store, clock, plan("a"))
    await add_lines(store, clock, line(1))
    assert await take_flows(store, clock, lease_ms=at_ms - clock.now_ms())


async def lease_after_the_deadline(store: Store, clock: VirtualClock, at_ms: int) -> None:
    await flow_deadline(store, clock, clock.advance(1))
    assert await take_flows(store, clock, lease_ms=at_ms - clock.now_ms())


@pytest.mark.parametrize(
    "promise",
    [flow_deadline, flow_put_back, line_put_back, lease_with_lines, lease_after_the_deadline],
)
async def test_the_next_turn_is_after_now(
    store: Store,
    clock: VirtualClock,
    promise: Callable[[Store, VirtualClock, int], Awaitable[None]],
) -> None:
    at_ms = clock.now_ms() + 50
    await promise(store, clock, at_ms)
    clock.set(at_ms - 1)
    assert await take_flows(store, clock) == []
    assert await store.next_turn(at_ms - 1) == at_ms
    assert await store.next_turn(at_ms) is None


async def test_a_lease_of_a_flow_with_nothing_to_do_is_no_turn(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("a"))
    await patch(store, clock, busy_until_ms=clock.now_ms() + 50)
    assert await store.next_turn(clock.now_ms()) is None


async def test_a_round_goes_through_all_flows(store: Store, clock: VirtualClock) -> None:
    flows = await several(store, clock, 5)
    first = ids(await take_flows(store, clock, limit=2, lease_ms=1))
    assert first == flows[:2]
    clock.advance(1)
    second = ids(await take_flows(store, clock, limit=2, after=first[-1], lease_ms=1))
    assert second == flows[2:4]
    clock.advance(1)
    third = ids(await take_flows(store, clock, limit=2, after=second[-1], lease_ms=1))
    assert third == [flows[4], flows[0]]


async def test_timers_take_their_turn_among_the_lines(store: Store, clock: VirtualClock) -> None:
    flows = await several(store, clock, 3)
    timed = sorted(flow_id(number) for number in range(4, 7))
    for flow in timed:
        await put_flow(store, clock, plan("a", flow=flow, deadline_ms=clock.now_ms() + 10))
    clock.advance(10)
    every = sorted([*flows, *timed])
    assert ids(await take_flows(store, clock, limit=4, after=every[3])) == [*every[4:], *every[:2]]
    assert ids(await take_flows(store, clock, limit=1)) == every[2:3]


async def test_only_the_named_flows_are_given_out(store: Store, clock: VirtualClock) -> None:
    flows = await several(store, clock, 4)
    wanted = (flows[2], flows[0])
    assert set(ids(await take_flows(store, clock, only=wanted))) == set(wanted)
    assert ids(await take_flows(store, clock)) == [flows[1], flows[3]]


async def test_flows_do_not_keep_work_from_workers(store: Store, clock: VirtualClock) -> None:
    await several(store, clock, 2)
    await take_flows(store, clock)
    assert len(await store.claim(ask(clock.now_ms(), limit=10))) == 2
