"""Flows that many want at once: no deadlock, no stale verdict, nothing made or done twice."""

from __future__ import annotations

import asyncio
import random

import pytest

from flowfabric.core.flow.changes import FlowPatch
from flowfabric.core.ids import FlowId
from flowfabric.core.lifecycle import complete
from flowfabric.core.operator import Source, cancel
from flowfabric.core.states import State
from flowfabric.core.transition import Applied, Changeset
from flowfabric.store.postgres import PostgresStore, connections
from flowfabric.testing import VirtualClock
from flowfabric.testing.conformance.flow_steps import (
    add_lines,
    drawn,
    flow_of,
    ids,
    put_flow,
    take_flows,
    whole,
)
from flowfabric.testing.conformance.flows_pending import line, several
from flowfabric.testing.conformance.steps import head, take
from flowfabric.testing.flows import FLOW, flow_id, member, plan
from tests.store.postgres.desk import Desk, waited_for

# Between the look at the lines and the lock of the flow.
PAUSE = "FROM (SELECT pg_advisory_xact_lock(7) OFFSET 0) AS pause CROSS JOIN unnest("
FREE_FLOW = "SELECT id FROM flow FOR UPDATE SKIP LOCKED"
FREE_EXECUTION = "SELECT id FROM execution FOR UPDATE SKIP LOCKED"
RAISE = "UPDATE flow SET rev = rev + 1 WHERE id = $1"
PROGRESS = "UPDATE execution SET progress_pct = 5, rev = rev + 1 WHERE id = ANY ($1::text[])"


async def test_a_flow_that_is_being_written_is_passed_over(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    flows = await several(store, clock, 3)
    raw = await desk.raw()
    async with raw.transaction():
        await raw.execute(RAISE, flows[1])
        assert ids(await take_flows(store, clock)) == [flows[0], flows[2]]
    assert ids(await take_flows(store, clock)) == [flows[1]]


async def test_a_changeset_is_judged_by_the_flow_that_it_waited_for(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    made = await put_flow(store, clock, plan("ab", "a>b"))
    row = await head(store, member("a"))
    changes = Changeset(
        transitions=[cancel(row, clock.now_ms(), "", source=Source.OPERATOR)],
        flows=[FlowPatch(FLOW, made.flow.rev, {"completed": 1})],
        lines=[line(1)],
    )
    raw = await desk.raw()
    async with raw.transaction():
        await raw.execute(RAISE, FLOW)
        waiting = asyncio.create_task(store.commit(changes, clock.now_ms()))
        await waited_for(raw)
    assert not await waiting
    assert (await flow_of(store)).completed == 0
    assert await head(store, member("a")) == row


@pytest.mark.parametrize("is_seen", [False, True])
async def test_a_changeset_is_judged_by_the_executions_that_it_waited_for(
    desk: Desk, store: PostgresStore, clock: VirtualClock, *, is_seen: bool
) -> None:
    """Somebody writes what a worker does not compare, and maybe what an engine does."""
    now_ms = clock.now_ms()
    made = await put_flow(store, clock, plan("ab"))
    (lease,) = await take(store, clock, 1)
    (other,) = {member("a"), member("b")} - {lease.id}
    row = await head(store, other)
    changes = Changeset(
        transitions=[
            complete(lease, now_ms, b"done"),
            cancel(row, now_ms, "", source=Source.OPERATOR),
        ],
        flows=[FlowPatch(FLOW, made.flow.rev, {"completed": 1})],
    )
    raw = await desk.raw()
    async with raw.transaction():
        changed = [lease.id, other] if is_seen else [lease.id]
        await raw.execute(PROGRESS, changed)
        waiting = asyncio.create_task(store.commit(changes, now_ms))
        await waited_for(raw)
    assert await waiting is not is_seen
    found = [await head(store, id) for id in (lease.id, other)]
    states = [State.ACTIVE, State.WAITING] if is_seen else [State.COMPLETED, State.CANCELLED]
    assert [row.state for row in found] == states
    assert found[0].progress_pct == 5
    assert found[0].rev == lease.head.rev + (1 if is_seen else 2)


@pytest.mark.parametrize("held", ["execution", "flow"])
async def test_flows_are_locked_before_executions(
    desk: Desk, store: PostgresStore, clock: VirtualClock, held: str
) -> None:
    """Whoever waits for the execution holds the flow, and who waits for the flow nothing."""
    made = await put_flow(store, clock, plan("a"))
    row = await head(store, member("a"))
    changes = Changeset(
        transitions=[cancel(row, clock.now_ms(), "", source=Source.OPERATOR)],
        flows=[FlowPatch(FLOW, made.flow.rev, {"completed": 1})],
    )
    raw, look = await desk.raw(), await desk.raw()
    async with raw.transaction():
        if held == "execution":
            await raw.execute(PROGRESS, [row.id])
        else:
            await raw.execute(RAISE, FLOW)
        waiting = asyncio.create_task(store.commit(changes, clock.now_ms()))
        await waited_for(raw)
        free = await look.fetch(FREE_FLOW if held == "execution" else FREE_EXECUTION)
    assert not await waiting
    assert len(free) == (0 if held == "execution" else 1)


async def test_a_flow_that_changed_after_its_lines_were_looked_at_is_left_for_the_next_turn(
    desk: Desk, store: PostgresStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that are done never come with the revision of the commit that removed them."""
    await put_flow(store, clock, plan("a"))
    await add_lines(store, clock, line(1))
    other, raw = await desk.opened(), await desk.raw()
    statement = store.sql.take("flow_named")
    slow = statement._replace(text=statement.text.replace("FROM unnest(", PAUSE, 1))
    assert slow != statement
    monkeypatch.setattr(store.sql, "take", lambda how: slow)
    async with raw.transaction():
        await raw.execute("SELECT pg_advisory_xact_lock(7)")
        waiting = asyncio.create_task(take_flows(store, clock, only=(FLOW,)))
        await waited_for(raw)
        (taken,) = await take_flows(other, clock, only=(FLOW,))
        patch = FlowPatch(FLOW, taken.flow.rev, {"busy_until_ms": 0})
        done = Changeset(flows=[patch], lines=[line(2)], done=taken.lines)
        assert await other.commit(done, clock.now_ms())
    assert await waiting == []
    (taken,) = await take_flows(other, clock, only=(FLOW,))
    assert taken.lines == [line(2)]


async def test_a_flow_is_made_once_by_many(
    desk: Desk, store: PostgresStore, clock: VirtualClock
) -> None:
    others = [store, *[await desk.opened() for _ in range(3)]]
    for number in range(1, 11):
        made = whole(drawn(plan("abc", "a>b b>c", flow=flow_id(number)), clock))
        answers = await asyncio.gather(
            *(each.commit_each([made], clock.now_ms()) for each in others)
        )
        assert sorted(answers) == [[False], [False], [False], [True]]


async def test_shuffled_commits_and_ends_never_deadlock(
    desk: Desk, store: PostgresStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dispatchers patch the same flows and members while workers finish the members."""
    monkeypatch.setattr(connections, "UNDONE", ())
    now_ms = clock.now_ms()
    flows = [flow_id(number) for number in range(1, 31)]
    for flow in flows:
        await put_flow(store, clock, plan("ab", flow=flow))
    leases = await take(store, clock, 60)
    rows = {lease.id: lease.head for lease in leases}
    others = [store, *[await desk.opened() for _ in range(3)]]

    def changes(flow: FlowId) -> Changeset:
        mine = [row for row in rows.values() if row.flow == flow]
        ends = [cancel(row, now_ms, "", source=Source.OPERATOR) for row in mine]
        return Changeset(transitions=ends, flows=[FlowPatch(flow, 1, {})])

    async def dispatch(number: int) -> int:
        batch = [changes(flow) for flow in random.Random(number).sample(flows, len(flows))]
        return sum(await others[number].commit_each(batch, now_ms))

    async def finish(number: int) -> int:
        ends = [complete(lease, now_ms, b"") for lease in random.Random(number).sample(leases, 60)]
        answers = await others[number].apply(ends, now_ms)
        return sum(isinstance(answer, Applied) for answer in answers)

    done = await asyncio.gather(*map(dispatch, range(4)), *map(finish, range(4)))
    assert 2 * sum(done[:4]) + sum(done[4:]) == 60
