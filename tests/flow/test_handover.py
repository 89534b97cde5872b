"""Who ends a member goes on with one that it sets free: claimed in the same write, or not."""

from __future__ import annotations

import msgspec

from flowfabric.core.flow.graph import Link
from flowfabric.core.flow.handover import HANDED_OVER
from flowfabric.core.model import Execution
from flowfabric.core.states import Reason, State
from flowfabric.engine.direct_ends import Followed
from flowfabric.engine.known_flows import BODY_BYTES_MAX
from flowfabric.engine.outcomes import Completed, Follow
from flowfabric.store import Store
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.build import KIND, LANE, TTL_MS
from flowfabric.testing.flows import flow_id, member, plan
from tests.flow.desk import FlowDesk

TOKEN = "followed"


def follow(limit: int = 10, lane: str = LANE) -> Follow:
    return Follow(
        lanes=[lane], tasks=[KIND], limit=limit, worker="follower", token=TOKEN, ttl_ms=TTL_MS
    )


async def end(here: FlowDesk, *names: str, ask: Follow | None = None) -> Followed:
    outcomes = [Completed(await here.start(name), b"7") for name in names]
    return await here.engine.finish_and_follow(outcomes, ask or follow())


async def test_the_next_of_a_chain_is_held_with_the_end_of_the_one_before(
    here: FlowDesk, faulty: FaultyStore
) -> None:
    await here.draw(plan("abc", "a>b b>c"))
    lease = await here.start("a")
    faulty.calls.clear()
    _, (next_lease,), is_unanswered = await here.engine.finish_and_follow(
        [Completed(lease, b"7")], follow()
    )
    assert (faulty.calls[Verb.COMMIT_EACH], faulty.calls[Verb.CLAIM]) == (1, 0)
    assert not is_unanswered
    stored = await here.member("b")
    assert next_lease.head == stored
    assert next_lease.payload == (await here.engine.adopt(member("b"))).payload
    assert (stored.state, stored.worker, stored.lease_token) == (State.ACTIVE, "follower", TOKEN)
    assert (stored.epoch, stored.attempt, stored.deps_open) == (1, 0, False)
    assert (await here.history(member("b")))[-1] == HANDED_OVER
    (last,) = (await here.engine.finish_and_follow([Completed(next_lease, b"8")], follow())).leases
    await here.engine.complete(last, b"9")
    assert await here.counters() == {"completed": 3}
    assert (await here.flow()).settled


async def test_what_it_is_handed_is_what_a_claim_would_get(here: FlowDesk, store: Store) -> None:
    """Both roads end in the same record, but for who holds it."""
    await here.draw(plan("ab", "a>b"))
    (mine,) = (await end(here, "a")).leases
    there = FlowDesk(store, here.clock)
    await there.engine.open()
    other = await there.draw(plan("ab", "a>b", flow=flow_id(77)))
    await there.end("a", flow=other.id)
    await there.dispatch()
    claimed = await there.start("b", flow=other.id)
    differs = ("id", "flow", "rev", "worker", "lease_token")
    assert _but(mine.head, differs) == _but(claimed.head, differs)


def _but(head: Execution, names: tuple[str, ...]) -> dict[str, object]:
    return {
        name: value for name, value in msgspec.structs.asdict(head).items() if name not in names
    }


async def test_results_are_passed_to_what_was_handed_over(
    here: FlowDesk, faulty: FaultyStore
) -> None:
    await here.draw(plan("ab", [Link(member("a"), member("b"), argument="number")]))
    (lease,) = (await end(here, "a")).leases
    faulty.calls.clear()
    given = await here.handed(lease)
    assert [(each.path, each.results) for each in given] == [("number", [b"7"])]
    assert not faulty.calls


async def test_each_end_is_followed_by_one_and_the_others_are_for_all(here: FlowDesk) -> None:
    await here.draw(plan("abcd", "a>b a>c a>d"))
    (lease,) = (await end(here, "a")).leases
    states = {member(name): await here.state(name) for name in "bcd"}
    assert states.pop(lease.id) is State.ACTIVE
    assert [*states.values()] == [State.WAITING, State.WAITING]


async def test_no_more_are_taken_than_there_is_room_for(here: FlowDesk) -> None:
    await here.draw(plan("abcd", "a>c b>d"))
    leases = (await end(here, "a", "b", ask=follow(limit=1))).leases
    assert len(leases) == 1
    assert sorted((await here.states("cd")).values()) == ["active", "waiting"]


async def test_another_lane_is_left_for_who_serves_it(here: FlowDesk) -> None:
    await here.draw(plan("ab", "a>b"))
    assert (await end(here, "a", ask=follow(lane="other"))).leases == []
    assert await here.state("b") is State.WAITING


async def test_what_is_kept_back_by_something_else_is_not_taken(here: FlowDesk) -> None:
    await here.draw(plan("ab", "a>b"))
    await here.engine.block(member("b"), Reason.PAUSED_BY_OPERATOR)
    assert (await end(here, "a")).leases == []
    await here.dispatch()
    assert await here.state("b") is State.BLOCKED_OPERATOR


async def test_a_long_payload_is_read_by_a_claim(here: FlowDesk) -> None:
    drawing = plan("ab", "a>b")
    first, second = drawing.orders
    long = msgspec.structs.replace(second, payload=b"x" * (BODY_BYTES_MAX + 1))
    await here.draw(msgspec.structs.replace(drawing, orders=[first, long]))
    assert (await end(here, "a")).leases == []
    assert await here.state("b") is State.WAITING


async def test_the_last_member_of_a_flow_is_followed_by_nothing(here: FlowDesk) -> None:
    await here.draw(plan("a"))
    assert (await end(here, "a")).leases == []
    assert (await here.flow()).settled


async def test_an_answer_that_was_lost_leaves_a_lease_that_can_be_asked_for(
    here: FlowDesk, faulty: FaultyStore
) -> None:
    await here.draw(plan("ab", "a>b"))
    lease = await here.start("a")
    faulty.plan.append(Fault(Verb.COMMIT_EACH, faulty.calls[Verb.COMMIT_EACH] + 1, Kind.AFTER))
    followed = await here.engine.finish_and_follow([Completed(lease, b"1")], follow())
    assert (followed.leases, followed.is_unanswered) == ([], True)
    (again,) = await here.engine.claim(
        [LANE], 10, tasks=[KIND], worker="follower", token=TOKEN, ttl_ms=TTL_MS, repeated=True
    )
    assert again.head == await here.member("b")
    await here.engine.complete(again, b"2")
    await here.dispatch()
    assert await here.counters() == {"completed": 2}


async def test_one_that_is_never_begun_is_reclaimed_when_its_lease_is_over(here: FlowDesk) -> None:
    await here.draw(plan("ab", "a>b"))
    (lease,) = (await end(here, "a")).leases
    here.clock.advance(TTL_MS)
    await here.timekeeper.run_once()
    assert await here.state("b") is State.ORPHANED
    assert (await here.start("b")).head.epoch > lease.epoch
