"""Flows that are known here: their members' ends are written with what follows, or as any other."""

from __future__ import annotations

import pytest

from flowfabric.core.flow.graph import Link, Policy
from flowfabric.core.flow.model import Join, OnSatisfied
from flowfabric.core.lifecycle import Failure
from flowfabric.core.states import State
from flowfabric.core.transition import BATCH_LIMIT
from flowfabric.engine.known_flows import BODY_BYTES_MAX, FLOWS_MAX, RECORD_BYTES, KnownFlows
from flowfabric.engine.outcomes import Completed, Failed
from flowfabric.errors import LeaseExpired, StoreUnavailable
from flowfabric.testing import Fault, FaultyStore, Kind, Verb, VirtualClock
from flowfabric.testing.build import TTL_MS
from flowfabric.testing.conformance.flow_steps import drawn, whole
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.flow.desk import FlowDesk

RACE = Policy(Join.ANY_OF, 1, OnSatisfied.CANCEL_REMAINING)


async def test_an_end_and_what_follows_from_it_are_one_commit(
    here: FlowDesk, faulty: FaultyStore
) -> None:
    await here.draw(plan("abc", "a>b b>c"))
    lease = await here.start("a")
    faulty.calls.clear()
    await here.engine.complete(lease, b'"done"')
    assert faulty.calls == {Verb.COMMIT_EACH: 1, Verb.ANY: 1}
    assert await here.lines() == []
    assert await here.states("abc") == {
        "a": "completed",
        "b": "waiting",
        "c": "blocked_dependencies",
    }
    assert await here.counters() == {"completed": 1}
    assert (await here.history(member("a")))[-1] == "completed"


async def test_results_are_passed_without_a_look_at_the_store(
    here: FlowDesk, faulty: FaultyStore
) -> None:
    links = [Link(member("a"), member("b"), argument="number")]
    await here.draw(plan("ab", links))
    await here.engine.complete(await here.start("a"), b"7")
    lease = await here.start("b")
    faulty.calls.clear()
    given = await here.handed(lease)
    assert [(each.path, each.results) for each in given] == [("number", [b"7"])]
    assert not faulty.calls
    stranger = FlowDesk(here.store, here.clock)
    assert await stranger.handed(lease) == given


async def test_a_member_that_was_touched_since_its_release_is_looked_at(
    here: FlowDesk, faulty: FaultyStore
) -> None:
    links = [Link(member("a"), member("b"), argument="number")]
    await here.draw(plan("ab", links))
    await here.engine.complete(await here.start("a"), b"7")
    await here.engine.change_priority(member("b"), 5)
    lease = await here.start("b")
    faulty.calls.clear()
    assert [each.results for each in await here.handed(lease)] == [[b"7"]]
    assert faulty.calls[Verb.GRAPH] == 1


async def test_a_long_result_is_read_when_it_is_needed(here: FlowDesk, faulty: FaultyStore) -> None:
    body = b'"' + b"x" * BODY_BYTES_MAX + b'"'
    await here.draw(plan("ab", [Link(member("a"), member("b"), argument="text")]))
    await here.engine.complete(await here.start("a"), body)
    lease = await here.start("b")
    assert [each.results for each in await here.handed(lease)] == [[body]]


async def test_a_flow_that_changed_elsewhere_goes_the_usual_road(here: FlowDesk) -> None:
    await here.draw(plan("abc", "a>b"))
    stranger = FlowDesk(here.store, here.clock)
    await stranger.engine.open()
    await stranger.engine.flows.build.link(FLOW, Link(member("a"), member("c")))
    await here.engine.complete(await here.start("a"), b"1")
    assert not here.engine.known.knows(FLOW)
    assert await here.state("a") is State.COMPLETED
    assert len(await here.lines()) == 1
    await here.dispatch()
    assert await here.state("b") is State.WAITING


async def test_a_flow_with_open_lines_is_left_to_the_dispatcher(here: FlowDesk) -> None:
    """What ended first is acted on first."""
    await here.draw(plan("abc", "a>c b>c", policies={"c": RACE}))
    await here.engine.cancel(member("a"), "enough")
    assert not here.engine.known.knows(FLOW)
    await here.engine.complete(await here.start("b"), b"1")
    assert len(await here.lines()) == 2
    await here.dispatch()
    assert await here.state("c") is State.WAITING


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER])
async def test_an_answer_that_was_lost_is_given_again(
    here: FlowDesk, faulty: FaultyStore, kind: Kind
) -> None:
    await here.draw(plan("ab", "a>b"))
    lease = await here.start("a")
    faulty.plan.append(Fault(Verb.COMMIT_EACH, faulty.calls[Verb.COMMIT_EACH] + 1, kind))
    finished = await here.engine.complete(lease, b"1")
    assert (finished.state, finished.error) == (State.COMPLETED, None)
    await here.dispatch()
    assert await here.states("ab") == {"a": "completed", "b": "waiting"}
    assert await here.counters() == {"completed": 1}


async def test_a_store_that_is_away_is_told_as_ever(here: FlowDesk, faulty: FaultyStore) -> None:
    await here.draw(plan("ab", "a>b"))
    lease = await here.start("a")
    faulty.plan.append(Fault(Verb.ANY, faulty.calls[Verb.ANY] + 1, Kind.BEFORE, times=100))
    with pytest.raises(StoreUnavailable):
        await here.engine.complete(lease, b"1")
    faulty.plan.clear()
    assert await here.state("a") is State.ACTIVE


async def test_a_lease_that_is_over_is_refused_and_spoils_nobody(here: FlowDesk) -> None:
    await here.draw(plan("abc", "a>c b>c"))
    late = await here.start("a")
    here.clock.advance(TTL_MS)
    good = await here.start("b")
    answers = await here.engine.finish([Completed(late, b"1"), Completed(good, b"2")])
    assert isinstance(answers[0].error, LeaseExpired)
    assert (answers[1].state, answers[1].error) == (State.COMPLETED, None)
    await here.dispatch()
    assert (await here.group("c")).succeeded == 1


async def test_ends_of_one_flow_in_one_batch_are_one_commit(
    here: FlowDesk, faulty: FaultyStore
) -> None:
    await here.draw(plan("abcd", "a>d b>d c>d"))
    leases = [await here.start(name) for name in "abc"]
    faulty.calls.clear()
    failed = Failed(leases[2], Failure("broke", fatal=True))
    await here.engine.finish([Completed(leases[0], b"1"), Completed(leases[1], b"2"), failed])
    assert faulty.calls[Verb.COMMIT_EACH] == 1
    assert await here.state("d") is State.SKIPPED
    await here.dispatch()
    assert await here.counters() == {"completed": 2, "failed": 1, "skipped": 1}


async def test_losers_of_a_race_are_owed_their_cancel(here: FlowDesk) -> None:
    await here.draw(plan("abc", "a>c b>c", policies={"c": RACE}))
    await here.engine.complete(await here.start("a"), b"1")
    assert (await here.group("c")).cancel_owed
    await here.dispatch()
    assert await here.states("abc") == {"a": "completed", "b": "cancelled", "c": "waiting"}


async def test_a_settled_flow_is_not_kept(here: FlowDesk) -> None:
    await here.draw(plan("a"))
    assert here.engine.known.knows(FLOW)
    await here.engine.complete(await here.start("a"), b"1")
    assert not here.engine.known.knows(FLOW)
    assert (await here.flow()).settled


def test_only_so_many_flows_are_kept_and_none_before_somebody_works_here(
    clock: VirtualClock,
) -> None:
    known = KnownFlows()
    known.keep(whole(drawn(plan("a"), clock)))
    assert not known.knows(FLOW)
    known.is_kept = True
    for number in range(FLOWS_MAX + 1):
        known.keep(whole(drawn(plan("a", flow=flow_id(number)), clock)))
    assert not known.knows(flow_id(0))
    assert known.knows(flow_id(FLOWS_MAX))
    known.keep(whole(drawn(plan(range(BATCH_LIMIT + 1), flow=flow_id(9_999)), clock)))
    assert not known.knows(flow_id(9_999))


def test_payloads_and_results_are_kept_up_to_so_many_bytes(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.engine.known_flows.BYTES_MAX", 2 * (2 * RECORD_BYTES + 4))
    known = KnownFlows()
    known.is_kept = True
    for number in range(3):
        known.keep(whole(drawn(plan("ab", flow=flow_id(number)), clock)))
    assert [known.knows(flow_id(number)) for number in range(3)] == [False, True, True]
    known.forget(flow_id(1))
    known.keep(whole(drawn(plan("ab", flow=flow_id(4)), clock)))
    assert [known.knows(flow_id(number)) for number in (2, 4)] == [True, True]
