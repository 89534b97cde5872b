"""Flows that were submitted elsewhere: read where they are worked on, and known from then on."""

from __future__ import annotations

import logging

import pytest

from flowfabric.core.flow.graph import Link
from flowfabric.core.model import Lease
from flowfabric.core.states import State
from flowfabric.engine.known_flows import RECORDS_MAX
from flowfabric.engine.outcomes import Completed, Follow
from flowfabric.store import Store
from flowfabric.testing import Fault, FaultyStore, Kind, Verb, VirtualClock
from flowfabric.testing.build import KIND, LANE, TTL_MS
from flowfabric.testing.flows import FLOW, chain, flow_id, links, member, plan
from tests.flow.desk import FlowDesk

FOLLOW = Follow(
    lanes=[LANE], tasks=[KIND], limit=10, worker="follower", token="followed", ttl_ms=TTL_MS
)


@pytest.fixture
async def elsewhere(store: Store, clock: VirtualClock) -> FlowDesk:
    """Another process, which submits and does not work."""
    desk = FlowDesk(store, clock)
    await desk.engine.open()
    return desk


async def begun(here: FlowDesk, name: str | int) -> Lease:
    """As a worker begins a member: it asks what it is handed."""
    lease = await here.start(name)
    await here.engine.flows.inputs([lease])
    return lease


async def learned(here: FlowDesk, flow: str = FLOW) -> bool:
    await here.engine.flows.learning.wait([flow])
    return here.engine.known.knows(flow)


async def test_an_end_waits_until_its_flow_is_known_and_goes_the_short_road(
    here: FlowDesk, elsewhere: FlowDesk, faulty: FaultyStore
) -> None:
    await elsewhere.draw(plan("abc", [Link(member("a"), member("b"), argument="n"), *links("b>c")]))
    lease = await begun(here, "a")
    assert not here.engine.known.knows(FLOW)
    _, (next_lease,), _ = await here.engine.finish_and_follow([Completed(lease, b"7")], FOLLOW)
    assert (await here.lines(), faulty.calls[Verb.APPLY]) == ([], 0)
    assert next_lease.id == member("b")
    assert next_lease.payload == (await elsewhere.engine.adopt(member("b"))).payload
    faulty.calls.clear()
    given = here.engine.flows.known_inputs([next_lease])
    assert [each.results for each in given[member("b")]] == [[b"7"]]
    (last,) = (await here.engine.finish_and_follow([Completed(next_lease, b"8")], FOLLOW)).leases
    await here.engine.complete(last, b"9")
    assert faulty.calls == {Verb.COMMIT_EACH: 2, Verb.ANY: 2}
    assert await here.counters() == {"completed": 3}
    assert (await here.flow()).settled


async def test_what_an_upstream_passed_before_it_was_known_is_looked_up(
    here: FlowDesk, elsewhere: FlowDesk
) -> None:
    await elsewhere.draw(plan("abc", [Link(member(up), member("c"), argument=up) for up in "ab"]))
    await elsewhere.ended("a")
    lease = await begun(here, "b")
    _, (last,), _ = await here.engine.finish_and_follow([Completed(lease, b'"b"')], FOLLOW)
    given = await here.handed(last)
    assert {each.path: each.results for each in given} == {"a": [b'"a"'], "b": [b'"b"']}


async def test_many_flows_are_read_in_few_calls(
    here: FlowDesk, elsewhere: FlowDesk, faulty: FaultyStore
) -> None:
    flows = [flow_id(number) for number in range(1, 9)]
    for flow in flows:
        await elsewhere.draw(plan("abc", "a>b b>c", flow=flow))
    leases = [await here.start("a", flow) for flow in flows]
    faulty.calls.clear()
    await here.engine.flows.inputs(leases)
    await here.engine.finish([Completed(lease, b"1") for lease in leases])
    assert (faulty.calls[Verb.GRAPH], faulty.calls[Verb.LOAD]) == (3, 1)
    assert faulty.calls[Verb.COMMIT_EACH] == 1
    assert all(here.engine.known.knows(flow) for flow in flows)


async def test_it_is_read_once_while_it_is_being_read(
    here: FlowDesk, elsewhere: FlowDesk, faulty: FaultyStore
) -> None:
    await elsewhere.draw(plan("abc", "a>c b>c"))
    leases = [await here.start(name) for name in "ab"]
    faulty.calls.clear()
    for lease in leases:
        await here.engine.flows.inputs([lease])
    assert await learned(here)
    assert (faulty.calls[Verb.GRAPH], faulty.calls[Verb.LOAD]) == (4, 1)


@pytest.mark.parametrize(("count", "is_known"), [(RECORDS_MAX // 3, True), (170, False)])
async def test_a_large_flow_is_not_read(
    here: FlowDesk, elsewhere: FlowDesk, count: int, is_known: bool
) -> None:
    await elsewhere.draw(plan(range(count), chain(range(count))))
    await elsewhere.dispatch()
    await begun(here, 0)
    assert await learned(here) is is_known


async def test_a_flow_from_whose_ends_nothing_follows_is_not_read(
    here: FlowDesk, elsewhere: FlowDesk
) -> None:
    await elsewhere.draw(plan("ab", "a>b"))
    await elsewhere.ended("a")
    await begun(here, "b")
    assert not await learned(here)


async def test_a_flow_with_a_deadline_is_not_read(here: FlowDesk, elsewhere: FlowDesk) -> None:
    await elsewhere.draw(plan("ab", "a>b", deadline_ms=here.clock.now_ms() + 60_000))
    await begun(here, "a")
    assert not await learned(here)


async def test_a_flow_with_open_lines_is_left_to_the_dispatcher(
    here: FlowDesk, elsewhere: FlowDesk
) -> None:
    await elsewhere.draw(plan("abc", "a>c b>c"))
    lease = await here.start("a")
    await elsewhere.end("b")
    await here.engine.flows.inputs([lease])
    assert not await learned(here)


async def test_who_does_not_dispatch_reads_nothing(desk: FlowDesk, elsewhere: FlowDesk) -> None:
    await elsewhere.draw(plan("abc", "a>b b>c"))
    await begun(desk, "a")
    assert not await learned(desk)


async def test_a_flow_that_others_write_to_as_well_is_not_read_again(
    here: FlowDesk, elsewhere: FlowDesk
) -> None:
    await elsewhere.draw(plan("abcd", "a>d b>d"))
    lease, other = await begun(here, "a"), await begun(here, "b")
    assert await learned(here)
    await elsewhere.engine.flows.build.link(FLOW, Link(member("a"), member("c")))
    await here.engine.complete(lease, b"1")
    assert await here.state("a") is State.COMPLETED
    assert len(await here.lines()) == 1
    await elsewhere.dispatch()
    await here.engine.flows.inputs([other])
    assert not await learned(here)
    await here.engine.complete(other, b"2")
    await elsewhere.dispatch()
    assert await here.state("d") is State.WAITING
    assert await here.counters() == {"completed": 2}


async def test_what_changes_while_it_is_read_is_not_kept(
    here: FlowDesk, elsewhere: FlowDesk, faulty: FaultyStore
) -> None:
    await elsewhere.draw(plan("abc", "a>b"))
    lease = await here.start("a")

    async def meanwhile() -> None:
        await elsewhere.engine.flows.build.link(FLOW, Link(member("b"), member("c")))

    third = faulty.calls[Verb.GRAPH] + 3
    faulty.plan.append(Fault(Verb.GRAPH, third, Kind.DELAY, hook=meanwhile))
    await here.engine.flows.inputs([lease])
    assert not await learned(here)
    assert len(faulty.hit) == 1
    assert here.engine.known.is_wanted(FLOW)


async def test_a_store_that_is_away_meanwhile_costs_only_the_short_road(
    here: FlowDesk, elsewhere: FlowDesk, faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    await elsewhere.draw(plan("abc", "a>b b>c"))
    lease = await here.start("a")
    faulty.plan.append(Fault(Verb.GRAPH, faulty.calls[Verb.GRAPH] + 2, Kind.BEFORE))
    with caplog.at_level(logging.WARNING, "flowfabric.engine"):
        await here.engine.flows.inputs([lease])
        await here.engine.complete(lease, b"1")
    assert [record.__dict__["flows"] for record in caplog.records] == [1]
    assert len(await here.lines()) == 1


async def test_closing_ends_what_is_being_read(
    here: FlowDesk, elsewhere: FlowDesk, faulty: FaultyStore
) -> None:
    await elsewhere.draw(plan("abc", "a>b b>c"))
    lease = await begun(here, "a")
    await here.engine.flows.learning.close()
    assert not await learned(here)
    await here.engine.flows.inputs([lease])
    assert await learned(here)
