"""Entries written with a change of their execution, those of a replay, and how they go with it."""

from __future__ import annotations

import msgspec

from flowfabric.core.entries import Entry, Topic
from flowfabric.core.lifecycle import Failure, complete, fail
from flowfabric.core.operator import Source, cancel, replay
from flowfabric.core.policy import DAY_MS
from flowfabric.core.retention import Departure, FlowDeparture, Purge
from flowfabric.core.states import State
from flowfabric.core.transition import Changeset, Held, Transition
from flowfabric.store.protocol import Store
from flowfabric.testing.build import OTHER_TOKEN, TTL_MS, execution_id, order
from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.conformance.entries import append_of, kept, keys_of, named, write
from flowfabric.testing.conformance.flow_steps import flow_of, put_flow
from flowfabric.testing.conformance.purging import rows_of
from flowfabric.testing.conformance.steps import (
    apply,
    head,
    put,
    put_and_take,
    take,
)
from flowfabric.testing.flows import member, plan


def with_entries(transition: Transition, *entries: Entry) -> Transition:
    return msgspec.structs.replace(transition, entries=entries)


async def test_entries_of_a_transition_are_written_with_it(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    other = await put_and_take(store, clock, order(1))
    now_ms = clock.now_ms()
    failed = fail(lease, now_ms, Failure("broken", "a reason"))
    entries = named("a", "b")
    await apply(
        store,
        clock,
        with_entries(failed, *entries),
        complete(other, now_ms, b"result"),
    )
    assert (await head(store, lease.id)).state is State.FAILED
    assert await store.entries([Topic(lease.id, "notes")]) == [[kept(each) for each in entries]]
    assert await keys_of(store, other.id) == []


async def test_entries_of_a_refused_transition_are_not_written(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    other = await put_and_take(store, clock, order(1))
    clock.advance(TTL_MS // 2)
    await apply(store, clock, complete(other, clock.now_ms(), b""))
    late = [
        with_entries(complete(each, clock.now_ms(), b""), *named("a")) for each in (lease, other)
    ]
    answers = await store.apply(late, clock.now_ms())
    assert [type(answer).__name__ for answer in answers] == ["Applied", "Rejected"]
    assert await keys_of(store, lease.id) == ["a"]
    assert await keys_of(store, other.id) == []


async def test_what_is_there_stays_when_a_transition_brings_the_same_key(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    await write(store, clock, append_of(lease, *named("b")))
    done = with_entries(
        complete(lease, clock.now_ms(), b""), Entry("notes", "b", b"late"), Entry("notes", "a", b"")
    )
    await apply(store, clock, done)
    found = (await store.entries([Topic(lease.id, "notes")]))[0]
    assert found == [kept(Entry("notes", "a", b"")), kept(named("b")[0])]


async def test_entries_with_tags_and_patches_of_several_shapes(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    await put(store, clock, order(1))
    waiting = await head(store, execution_id(1))
    now_ms = clock.now_ms()
    tagged = msgspec.structs.replace(
        with_entries(complete(lease, now_ms, b""), *named("a")), tags={"demo.tag": "1"}
    )
    ended = cancel(waiting, now_ms, "enough", source=Source.OPERATOR)
    assert isinstance(ended, Transition)
    await apply(store, clock, tagged, with_entries(ended, *named("b", "c")))
    assert await keys_of(store, lease.id) == ["a"]
    assert await keys_of(store, waiting.id) == ["b", "c"]


async def test_a_changeset_writes_its_entries_or_nothing(store: Store, clock: VirtualClock) -> None:
    lease = await put_and_take(store, clock, order(0))
    other = await put_and_take(store, clock, order(1))
    now_ms = clock.now_ms()
    good = with_entries(complete(lease, now_ms, b""), *named("a"))
    bad = msgspec.structs.replace(complete(other, now_ms, b""), guard=Held(1, OTHER_TOKEN))
    assert not await store.commit(Changeset([good, bad]), now_ms)
    assert await keys_of(store, lease.id) == []
    assert await store.commit(Changeset([good]), now_ms)
    assert await keys_of(store, lease.id) == ["a"]


async def test_changesets_about_flows_write_the_entries_of_members(
    store: Store, clock: VirtualClock
) -> None:
    await put_flow(store, clock, plan("ab", ""))
    leases = {lease.id: lease for lease in await take(store, clock, 2)}
    now_ms = clock.now_ms()
    batch = [
        Changeset([with_entries(complete(leases[member(name)], now_ms, b""), *named("k", name))])
        for name in "ab"
    ]
    assert await store.commit_each(batch, now_ms) == [True, True]
    assert await keys_of(store, member("a")) == ["a", "k"]
    assert await keys_of(store, member("b")) == ["b", "k"]


async def test_a_replay_begins_a_generation_and_leaves_the_last_one_readable(
    store: Store, clock: VirtualClock
) -> None:
    lease = await put_and_take(store, clock, order(0))
    await write(store, clock, append_of(lease, Entry("steps", "a", b"before")))
    await apply(store, clock, complete(lease, clock.now_ms(), b""))
    ended = await head(store, lease.id)
    assert ended.generation == 0
    marked = Entry("marks", "m", b"")
    await apply(store, clock, with_entries(replay(ended, clock.now_ms()), marked))
    row = await head(store, lease.id)
    assert (row.generation, row.epoch) == (1, lease.epoch)
    assert await keys_of(store, lease.id, "steps") == []
    found = await store.entries([Topic(lease.id, "marks"), Topic(lease.id, "marks", generation=0)])
    assert found == [[kept(marked, generation=1)], []]
    (again,) = await take(store, clock, token=OTHER_TOKEN)
    after = Entry("steps", "a", b"after")
    await write(store, clock, append_of(again, after))
    asks = [Topic(lease.id, "steps", generation=n) for n in (None, 1, 0, 2)]
    now = kept(after, generation=1, epoch=again.epoch)
    assert await store.entries(asks) == [
        [now],
        [now],
        [kept(Entry("steps", "a", b"before"))],
        [],
    ]


async def test_entries_go_with_their_execution(store: Store, clock: VirtualClock) -> None:
    before = await rows_of(store)
    lease = await put_and_take(store, clock, order(0))
    other = await put_and_take(store, clock, order(1))
    await write(store, clock, append_of(lease, *named("a")), append_of(other, *named("a")))
    now_ms = clock.now_ms()
    await apply(store, clock, *(complete(each, now_ms, b"") for each in (lease, other)))
    clock.advance(DAY_MS)
    row = await head(store, lease.id)
    seen = [Departure(row.id, row.rev)]
    gone = await store.purge(Purge(now_ms=clock.now_ms(), executions=seen))
    assert (gone.gone, gone.left) == ([lease.id], 0)
    assert await keys_of(store, lease.id) == []
    assert await keys_of(store, other.id) == ["a"]
    row = await head(store, other.id)
    seen = [Departure(row.id, row.rev)]
    await store.purge(Purge(now_ms=clock.now_ms(), executions=seen))
    assert await rows_of(store) == before


async def test_more_entries_than_may_go_at_once_go_before_their_executions(
    store: Store, clock: VirtualClock
) -> None:
    """A store that lets go of all of them in one step needs no second one."""
    before = await rows_of(store)
    leases = [await put_and_take(store, clock, order(number)) for number in range(3)]
    await write(store, clock, *(append_of(lease, *named(*"abc")) for lease in leases))
    now_ms = clock.now_ms()
    await apply(store, clock, *(complete(lease, now_ms, b"") for lease in leases))
    clock.advance(DAY_MS)
    gone: list[str] = []
    for _ in range(6):
        departing = (await store.departing(clock.now_ms(), 10)).executions
        answer = await store.purge(Purge(now_ms=clock.now_ms(), executions=departing, entries=2))
        left = (await store.departing(clock.now_ms(), 10)).executions
        assert len(departing) == len(answer.gone) + len(left)
        assert answer.left == len(left)
        # What was seen before something of it went is refused.
        assert not {each for each in departing if each in left}
        gone += answer.gone
        if not left:
            break
    assert sorted(gone) == [lease.id for lease in leases]
    assert await rows_of(store) == before


async def test_a_flow_stays_as_long_as_a_member_has_entries(
    store: Store, clock: VirtualClock
) -> None:
    before = await rows_of(store)
    await put_flow(store, clock, plan("ab", ""))
    leases = await take(store, clock, 2)
    await write(store, clock, *(append_of(lease, *named(*"abc")) for lease in leases))
    members = 0
    for _ in range(6):
        flow = await flow_of(store)
        seen = [FlowDeparture(flow.id, flow.rev)]
        answer = await store.purge(Purge(now_ms=clock.now_ms(), flows=seen, entries=2))
        members += answer.members
        if answer.gone:
            break
        assert answer.left > 0
        assert (await flow_of(store)).rev == flow.rev + 1
    assert members == 2
    assert await rows_of(store) == before
