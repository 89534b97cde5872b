"""The summary of a flow (S1): what is counted, what state that makes, and when it is finished."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from flowfabric.core.flow.adding import Addition
from flowfabric.core.flow.model import CancelPolicy, FlowState
from flowfabric.core.flow.summary import (
    FlowStatus,
    Summary,
    encode_summary,
    stored_summary,
    summarize,
)
from flowfabric.core.states import PUBLIC, Reason, State
from flowfabric.engine.flow_projector import FlowProjector
from flowfabric.engine.outcomes import Completed
from flowfabric.errors import FlowAlreadyTerminal, FlowNotFound
from flowfabric.store.memory import MemoryStore
from flowfabric.testing import Fault, FaultyStore, Kind, Verb
from flowfabric.testing.flows import FLOW, flow_id, member, order, plan
from tests.corrupter import Raw
from tests.flow.desk import FlowDesk
from tests.flow.watched import Watched, told

PUBLIC_WORDS = (
    *("completed", "failed", "cancelled", "expired", "skipped"),
    *("active", "suspended", "waiting", "delayed", "rate_limited", "waiting_children"),
)
ENDED = PUBLIC_WORDS[:5]


def derived(**states: int) -> FlowStatus:
    return summarize(states, 5).public_flow_state


async def projected(desk: FlowDesk) -> Summary:
    await FlowProjector(desk.store, desk.engine.clock).run_once()
    found = stored_summary(await desk.flow())
    assert found is not None
    return found


def counts(summary: Summary) -> dict[str, int]:
    """The counters of members that are not zero."""
    cells = msgspec.structs.asdict(summary)
    found = {name: cells[f"members_{name}"] for name in PUBLIC_WORDS}
    return {name: count for name, count in found.items() if count}


@pytest.mark.case("FS-004")
def test_s1_26_a_summary_has_exactly_these_fields() -> None:
    assert [field.name for field in msgspec.structs.fields(Summary)] == [
        "total_members",
        "sampled_members",
        *(f"members_{name}" for name in PUBLIC_WORDS),
        "public_flow_state",
        "last_summary_update_at",
    ]
    assert {*msgspec.json.decode(encode_summary(summarize({"waiting": 1}, 5)))} == {
        field.name for field in msgspec.structs.fields(Summary)
    }


@pytest.mark.parametrize("state", State)
def test_s1_26_every_stored_state_is_counted_in_one_of_them(state: State) -> None:
    assert counts(summarize({state.value: 3}, 5)) == {PUBLIC[state].value: 3}


@pytest.mark.case("FS-005")
def test_s1_19_s1_20_s1_24_what_has_ended_is_completed_or_failed() -> None:
    for held in product((0, 1, 7), repeat=5):
        tally = {name: count for name, count in zip(ENDED, held, strict=True) if count}
        if not tally:
            continue
        is_bad = any(tally.get(name) for name in ("failed", "cancelled", "expired"))
        wanted = FlowStatus.FAILED if is_bad else FlowStatus.COMPLETED
        assert summarize(tally, 5).public_flow_state is wanted, tally
    assert derived(skipped=4) == "completed"


@pytest.mark.case("FS-006")
def test_s1_21_s1_22_s1_23_what_has_not_ended_is_running_blocked_or_open() -> None:
    assert derived(active=1, failed=3, delayed=2, waiting=1) == "running"
    assert derived(active=1, completed=9) == "running"
    for held_up in ("suspended", "delayed", "blocked_budget", "blocked_dependencies"):
        assert derived(**{held_up: 1, "waiting": 5, "failed": 1}) == "blocked"
    assert derived(waiting=1) == derived(waiting=1, completed=2, failed=1) == "open"
    assert derived(waiting=1, melted=1) == "open"
    assert derived() == "open"


def test_s1_18_s1_25_a_state_that_nobody_knows_is_in_no_counter_and_keeps_a_flow_open() -> None:
    summary = summarize({"completed": 2, "melted": 1}, 5)
    assert (summary.total_members, summary.sampled_members) == (3, 3)
    assert counts(summary) == {"completed": 2}
    assert summary.public_flow_state == "open"


@pytest.mark.case("FS-003")
async def test_s1_26_a_projection_counts_members_in_their_public_states(desk: FlowDesk) -> None:
    await desk.draw(plan("abc"))
    await desk.ended("a")
    await desk.start("b")
    now_ms = desk.clock.advance(5)
    found = await projected(desk)
    assert (found.total_members, found.sampled_members) == (3, 3)
    assert counts(found) == {"completed": 1, "active": 1, "waiting": 1}
    assert (found.public_flow_state, found.last_summary_update_at) == ("running", now_ms)


async def test_s1_22_s1_26_every_way_to_wait_has_its_counter(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("abcdef", "a>b"))
    await desk.engine.delay(await desk.start("c"), desk.clock.now_ms() + 1_000)
    await desk.engine.block(member("d"), Reason.WAITING_FOR_QUOTA)
    await raw.write(await desk.member("e"), "state", "suspended")
    found = await projected(desk)
    assert counts(found) == {
        "waiting": 2,
        "waiting_children": 1,
        "delayed": 1,
        "rate_limited": 1,
        "suspended": 1,
    }
    assert found.public_flow_state == "blocked"
    assert (await desk.engine.flows.summary(FLOW)) == found


@pytest.mark.case("FS-016")
@pytest.mark.parametrize("has_failed", [False, True])
async def test_s1_11_s1_35_every_store_tells_the_same_by_the_same_path(
    desk: FlowDesk, has_failed: bool
) -> None:
    await desk.draw(plan("abc", "a>b"))
    await desk.ended("a", outcome="failed" if has_failed else "success")
    found = await projected(desk)
    wanted = {"failed": 1, "skipped": 1} if has_failed else {"completed": 1, "waiting": 1}
    assert counts(found) == {**wanted, "waiting": 1 if has_failed else 2}
    assert (found.total_members, found.sampled_members) == (3, 3)
    assert found.public_flow_state == "open"
    assert encode_summary(found) == (await desk.flow()).summary


async def test_s1_11_a_member_that_ends_between_look_and_commit_is_not_overwritten(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("a"))
    last = Fault(Verb.COMMIT, 1, Kind.DELAY, hook=lambda: desk.ended("a"))
    projector = FlowProjector(FaultyStore(desk.store, [last]), desk.engine.clock)
    swept = await projector.run_once()
    assert (swept.processed, swept.errors) == (0, 0)
    flow = await desk.flow()
    summary = stored_summary(flow)
    assert summary is not None
    assert (flow.settled, summary.public_flow_state, counts(summary)) == (
        *(True, "completed"),
        {"completed": 1},
    )


async def test_s1_15_s1_16_s1_31_s1_32_large_flows_are_counted_whole_and_finish(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan(range(51)))
    leases = await desk.claim(51)
    await desk.engine.finish([Completed(lease, b"1") for lease in leases[1:]])
    await desk.dispatch()
    found = await projected(desk)
    assert (found.total_members, found.sampled_members) == (51, 51)
    assert counts(found) == {"completed": 50, "active": 1}
    assert not (await desk.flow()).settled
    # The commit that counts the last end is also the last summary: nobody has to come by.
    await desk.engine.complete(leases[0], b"1")
    await desk.dispatch()
    flow = await desk.flow()
    last = stored_summary(flow)
    assert last is not None
    assert (flow.settled, last.public_flow_state, counts(last)) == (
        *(True, "completed"),
        {"completed": 51},
    )


async def test_s1_17_s1_18_s1_25_a_member_that_cannot_be_read_is_counted_and_named(
    desk: FlowDesk, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    await desk.draw(plan("abc"))
    await desk.ended("a", "b")
    await raw.write(await desk.member("c"), "state", "melted")
    found = await projected(desk)
    assert (found.total_members, found.sampled_members) == (3, 3)
    assert counts(found) == {"completed": 2}
    assert found.public_flow_state == "open"
    # A store of objects cannot hold a word that is no state: there the record is marked.
    word = "unreadable" if isinstance(desk.store, MemoryStore) else "melted"
    strange = {"flow": FLOW, "states": [word]}
    assert told(caplog, "flow", "states") == [strange]
    assert not (await desk.flow()).settled
    # Every round tells of it, also when there is nothing to write.
    await projected(desk)
    assert told(caplog, "flow", "states") == [strange] * 2


async def test_s1_17_a_member_with_a_strange_id_is_counted(desk: FlowDesk, raw: Raw) -> None:
    await desk.draw(plan("abc"))
    await raw.write(await desk.member("c"), "id", "strange")
    found = await projected(desk)
    assert (found.total_members, found.sampled_members) == (3, 3)
    assert counts(found) == {"waiting": 3}


async def test_s1_27_s1_28_a_summary_is_written_when_something_changed(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    first = await projected(desk)
    before = await desk.flow()
    assert first.last_summary_update_at == await desk.store.now()
    desk.clock.advance(15_000)
    assert await projected(desk) == first
    assert await desk.flow() == before
    await desk.start("a")
    second = await projected(desk)
    assert second.last_summary_update_at == first.last_summary_update_at + 15_000
    settled_ms = desk.clock.advance(7)
    await desk.engine.cancel(member("b"), "enough")
    await desk.engine.cancel(member("a"), "enough")
    await desk.dispatch()
    last = stored_summary(await desk.flow())
    assert last is not None
    assert (last.public_flow_state, last.last_summary_update_at) == ("failed", settled_ms)
    desk.clock.advance(1)
    asked = await desk.engine.flows.summary(FLOW)
    assert asked.last_summary_update_at == settled_ms + 1


async def test_s1_30_a_finished_flow_takes_members_and_a_cancelled_one_none(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("a"))
    await desk.ended("a")
    assert (await desk.engine.flows.status(FLOW)).state == "completed"
    await desk.engine.flows.build.add(FLOW, Addition(orders=[order("b")]))
    assert (await desk.engine.flows.status(FLOW)).state == "open"
    await desk.ended("b")
    await desk.engine.flows.cancel(FLOW)
    with pytest.raises(FlowAlreadyTerminal):
        await desk.engine.flows.build.add(FLOW, Addition(orders=[order("c")]))


async def test_s1_29_s1_30_who_asks_is_shown_a_cancel_before_anything_else(
    desk: FlowDesk,
) -> None:
    await desk.draw(plan("ab"))
    await desk.start("a")
    assert (await desk.engine.flows.status(FLOW)).state == "running"
    await desk.engine.flows.cancel(FLOW, CancelPolicy.FLOW_ONLY)
    status = await desk.engine.flows.status(FLOW)
    assert (status.state, status.summary.public_flow_state) == ("cancelled", "running")
    assert status.flow.state is FlowState.CANCELLED
    assert (await projected(desk)).public_flow_state == "running"


async def test_a_finished_flow_stays_so_until_a_member_is_replayed(desk: FlowDesk) -> None:
    await desk.draw(plan("ab", "a>b"))
    await desk.ended("a", outcome="failed")
    finished = await desk.engine.flows.status(FLOW)
    assert (finished.state, counts(finished.summary)) == ("failed", {"failed": 1, "skipped": 1})
    desk.clock.advance(60_000)
    await desk.sweep()
    await desk.dispatch()
    again = await desk.engine.flows.status(FLOW)
    assert (again.state, again.flow) == ("failed", finished.flow)
    await desk.engine.replay(member("a"), downstream=True)
    assert (await desk.engine.flows.status(FLOW)).state == "blocked"
    await desk.ended("a")
    await desk.ended("b")
    assert (await desk.engine.flows.status(FLOW)).state == "completed"


async def test_a_status_is_counted_in_one_look_and_knows_of_ends_at_once(desk: FlowDesk) -> None:
    await desk.draw(plan("ab"))
    await desk.end("a")
    watched = Watched(desk.store)
    status = await FlowDesk(watched, desk.clock).engine.flows.status(FLOW)
    assert counts(status.summary) == {"completed": 1, "waiting": 1}
    assert status.flow.completed == 0
    assert sum(watched.calls.values()) == 2 * len(watched.sights) == 2
    assert status.summary.last_summary_update_at == desk.clock.now_ms()


async def test_a_flow_that_nobody_knows_has_no_status(desk: FlowDesk) -> None:
    with pytest.raises(FlowNotFound):
        await desk.engine.flows.status(flow_id(99))


@pytest.mark.parametrize("text", ["", "{}", "rubbish", '{"total_members":"x"}'])
async def test_a_stored_summary_that_cannot_be_read_is_written_anew(
    desk: FlowDesk, raw: Raw, text: str
) -> None:
    await desk.draw(plan("a"))
    right = await projected(desk)
    await raw.write(await desk.flow(), "summary", text)
    assert stored_summary(await desk.flow()) is None
    assert await projected(desk) == right
